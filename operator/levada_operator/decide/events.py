"""Kubernetes Events: the closed list of their reasons, and the condition changes that are reported as Events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from levada.status import GuardPolicy
from levada_operator.decide.conditions import PIPELINE_REASONS, Condition
from levada_operator.observe.objects import ObjectKey

NORMAL: Final = "Normal"
WARNING: Final = "Warning"

EVENT_REASONS: Final[dict[str, str]] = {
    "SpecChanged": NORMAL,
    "SpecRefused": WARNING,
    "ObjectsUnread": WARNING,
    "ReconcileFailed": WARNING,
    "ApprovalRequired": WARNING,
    "RolledBack": WARNING,
    "DriverUpdated": NORMAL,
    "ConflictingPipeline": WARNING,
    "DriverReady": NORMAL,
    "PreflightFailed": WARNING,
    "CrashLooping": WARNING,
    "OutOfMemory": WARNING,
    "Unschedulable": WARNING,
    "ImagePullFailed": WARNING,
    "SecretMissing": WARNING,
    "PodRefused": WARNING,
    "ConfigMissing": WARNING,
    "Evicted": WARNING,
    "NodeLost": WARNING,
    "StuckTerminating": WARNING,
    "RefusedByCluster": WARNING,
    "SourceConnected": NORMAL,
    "SourceUnreachable": WARNING,
    "SlotHealthy": NORMAL,
    "SlotUnhealthy": WARNING,
    "LimitPassed": WARNING,
    "WithinLimits": NORMAL,
    "NoProgress": WARNING,
    "ProgressStale": WARNING,
    "Stopped": WARNING,
    "TablesErrored": WARNING,
    "TablesHealthy": NORMAL,
    "TableErrored": WARNING,
    "TableRecovered": NORMAL,
    "TableDiffers": WARNING,
    "TableEqual": NORMAL,
    "TableSyncRemoved": NORMAL,
    "Suspended": NORMAL,
    "Resumed": NORMAL,
    "ForeignOperator": WARNING,
    "CleanupStarted": NORMAL,
    "CleanupWaiting": WARNING,
    "CleanupFinished": NORMAL,
    "CleanupAbandoned": WARNING,
}
"""The type of each reason, Normal or Warning."""

_EVENT_OF_REASON: Final[dict[tuple[str, str], str]] = {
    ("Accepted", "InvalidSpec"): "SpecRefused",
    ("Approved", "ApprovalRequired"): "ApprovalRequired",
    ("Accepted", "ImmutableChange"): "SpecRefused",
    ("Accepted", "TooLarge"): "SpecRefused",
    ("Accepted", "ManifestLost"): "SpecRefused",
    ("Accepted", "Duplicate"): "SpecRefused",
    ("Accepted", "ConflictingPipeline"): "ConflictingPipeline",
    ("Accepted", "RefusedByCluster"): "RefusedByCluster",
    ("Accepted", "RolledBack"): "RolledBack",
    ("DriverAvailable", "PodReady"): "DriverReady",
    ("SourceReachable", "Connected"): "SourceConnected",
    ("SourceReachable", "Refused"): "SourceUnreachable",
    ("SlotHealthy", "Reserved"): "SlotHealthy",
    ("SlotHealthy", "Unreserved"): "SlotUnhealthy",
    ("SlotHealthy", "Lost"): "SlotUnhealthy",
    ("SlotHealthy", "Missing"): "SlotUnhealthy",
    ("SlotHealthy", "Released"): "SlotUnhealthy",
    ("Replicating", "NoProgress"): "NoProgress",
    ("Replicating", "ProgressStale"): "ProgressStale",
    ("Replicating", "Stopped"): "Stopped",
    ("TablesHealthy", "AllHealthy"): "TablesHealthy",
    ("TablesHealthy", "SomeErrored"): "TablesErrored",
    **{("WithinLimits", policy.value): "LimitPassed" for policy in GuardPolicy},
    ("WithinLimits", "NoLimitPassed"): "WithinLimits",
    ("Suspended", "Drained"): "Suspended",
    ("Suspended", "NotRequested"): "Resumed",
    ("Ready", "Errored"): "TableErrored",
    ("Verified", "Different"): "TableDiffers",
    ("Verified", "Equal"): "TableEqual",
    ("Verified", "Repaired"): "TableEqual",
    ("Ready", "PodRefused"): "PodRefused",
}
_RECOVERY: Final = frozenset(
    {"SlotHealthy", "TablesHealthy", "WithinLimits", "Resumed", "SourceConnected", "TableEqual"}
)
"""Reasons that are reported only after their opposite."""
_NO_FAILURES: Final = (None, "Unknown", "NotRequested", "Extended", "NotCompared", "NotComparable")
"""Reasons of conditions that have no recovery."""
_DRIVER_FAILURES: Final = frozenset(PIPELINE_REASONS["DriverAvailable"]) - {
    "PodReady",
    "Starting",
    "ScaledToZero",
    "NotStarted",
}


@dataclass(frozen=True, slots=True)
class EventDraft:
    """The object, reason and message of an Event to record."""

    about: ObjectKey
    reason: str
    message: str

    @property
    def type(self) -> str:
        """Normal or Warning."""
        return EVENT_REASONS[self.reason]


def transitions(
    about: ObjectKey, before: Iterable[Mapping[str, Any]], now: Iterable[Condition]
) -> Iterator[EventDraft]:
    """Yield an Event for each condition whose reason changed to a reported one, and for a table's recovery."""
    reasons = {c["type"]: c["reason"] for c in before}
    for condition in now:
        was = reasons.get(condition.type)
        if condition.reason == was:
            continue
        reason = _EVENT_OF_REASON.get((condition.type, condition.reason))
        if condition.type == "DriverAvailable" and condition.reason in _DRIVER_FAILURES:
            reason = condition.reason
        if reason is None or (reason in _RECOVERY and was in _NO_FAILURES):
            continue
        if condition.type == "Replicating" and condition.reason == "Stopped" and not condition.message:
            continue
        yield EventDraft(about, reason, condition.message or condition.reason)
    if about.kind == "TableSync" and reasons.get("Ready") == "Errored":
        ready = next((c for c in now if c.type == "Ready"), None)
        if ready is not None and ready.status:
            yield EventDraft(about, "TableRecovered", "the table streams again")
