"""Conditions, and the closed lists of their reasons. The CRDs have the same lists as enums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from levada.status import GuardPolicy
from levada.values import age_of
from levada_operator.observe.objects import read_time

PIPELINE_REASONS: Final[dict[str, tuple[str, ...]]] = {
    "Ready": (
        "Streaming",
        "InitialCopy",
        "TablesErrored",
        "DriverNotReady",
        "Stopped",
        "NoProgress",
        "ProgressStale",
        "SlotUnhealthy",
        "SourceUnreachable",
        "Suspended",
        "NotAccepted",
        "Deleting",
        "Updating",
    ),
    "Accepted": (
        "Valid",
        "InvalidSpec",
        "ImmutableChange",
        "ConflictingPipeline",
        "TooLarge",
        "ManifestLost",
        "RefusedByCluster",
        "RolledBack",
        "Paused",
    ),
    "Approved": ("NothingWaits", "Automatic", "Approved", "ApprovalRequired"),
    "DriverAvailable": (
        "PodReady",
        "Starting",
        "PreflightFailed",
        "CrashLooping",
        "OutOfMemory",
        "Unschedulable",
        "ImagePullFailed",
        "SecretMissing",
        "PodRefused",
        "ConfigMissing",
        "Evicted",
        "NodeLost",
        "StuckTerminating",
        "ScaledToZero",
        "RefusedByCluster",
        "NotStarted",
    ),
    "SourceReachable": ("Connected", "Refused", "Unknown"),
    "SlotHealthy": ("Reserved", "Extended", "Unreserved", "Lost", "Missing", "Released", "Unknown"),
    "Replicating": ("Advancing", "Idle", "NoProgress", "ProgressStale", "Stopped", "NotStarted"),
    "TablesHealthy": ("AllHealthy", "SomeErrored", "Unknown"),
    "WithinLimits": ("NoLimitPassed", *(policy.value for policy in GuardPolicy), "Unknown"),
    "Suspended": ("NotRequested", "Draining", "Drained"),
    "Reconciling": ("Settled", "Progressing", "ApprovalRequired"),
}
PIPELINE_REASONS["Stalled"] = (
    "NotStalled",
    *(r for r in PIPELINE_REASONS["Accepted"] if r != "Valid"),
    *(r for r in PIPELINE_REASONS["DriverAvailable"] if r not in ("PodReady", "ScaledToZero", "RefusedByCluster")),
    *("Refused", "Unreserved", "Lost", "Missing", "Released", "SomeErrored", "NoProgress"),
)
"""The reasons of a Pipeline's conditions, by condition type. Conditions are listed in this order in status."""

TABLE_SYNC_REASONS: Final[dict[str, tuple[str, ...]]] = {
    "Ready": (
        "Streaming",
        "NotAccepted",
        "InitialCopy",
        "CatchingUp",
        "Errored",
        "TableDiffers",
        "Suspended",
        "NotSelected",
        "NotReported",
        "NotReplicating",
        "PodRefused",
        "Updating",
    ),
    "Accepted": ("Valid", "InvalidSpec", "ImmutableChange", "Duplicate", "NoPipeline"),
    "Verified": ("Equal", "Repaired", "Different", "NotCompared", "NotComparable", "Unknown"),
    "Stalled": ("InvalidSpec", "ImmutableChange", "Duplicate", "Errored", "TableDiffers"),
}
"""The reasons of a TableSync's conditions, by condition type."""

MAX_MESSAGE: Final = 2048


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition of Kubernetes. A ``status`` of None is Unknown.

    ``trails`` is True if it holds for an earlier generation, because the driver does not run the newest one.
    """

    type: str
    status: bool | None
    reason: str
    message: str = ""
    trails: bool = False


def conditions_json(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Return conditions in Kubernetes' format.

    ``before`` are the stored conditions. lastTransitionTime is kept where the condition's status is the same, unless
    it is in the future, and observedGeneration where the condition trails.
    """
    since = {c["type"]: (c.get("status"), c.get("lastTransitionTime"), c.get("observedGeneration")) for c in before}
    written = []
    for condition in conditions:
        status = "Unknown" if condition.status is None else str(condition.status)
        was, at, last = since.get(condition.type, (None, None, None))
        if last is None:
            last = generation - 1 if condition.status else generation
        written.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": shortened(condition.message, MAX_MESSAGE),
                "lastTransitionTime": at if was == status and _has_passed(at, now) else timestamp(now),
                "observedGeneration": min(last, generation) if condition.trails else generation,
            }
        )
    return written


def _has_passed(at: str | None, now: datetime) -> bool:
    """Return False for no time, and for one that a clock wrote which was ahead."""
    return bool(at) and age_of(read_time(at or ""), now) < timedelta.max


def stored_condition(of: str, status: Mapping[str, Any]) -> Condition:
    """Return the condition of a type in a stored status, Unknown if there is none."""
    for last in status.get("conditions", ()):
        if last["type"] == of:
            return Condition(of, {"True": True, "False": False}.get(last["status"]), last["reason"], last["message"])
    return Condition(of, None, "Unknown")


def shortened(text: str, most: int) -> str:
    """Return the text, cut to at most ``most`` characters. A cut text ends with an ellipsis."""
    return text if len(text) <= most else text[: most - 1] + "…"


def timestamp(at: datetime) -> str:
    """Format a time (UTC) in RFC 3339 with whole seconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
