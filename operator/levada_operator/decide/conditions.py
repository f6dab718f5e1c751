"""Conditions, and the closed lists of their reasons; the CRDs have them too, and refuse a reason not listed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

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
    ),
    "Accepted": ("Valid", "InvalidSpec", "ImmutableChange", "ConflictingPipeline", "TooLarge", "RefusedByCluster"),
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
        "StuckTerminating",
        "ScaledToZero",
        "RefusedByCluster",
        "NotStarted",
    ),
    "SourceReachable": ("Connected", "Refused", "Unknown"),
    "SlotHealthy": ("Reserved", "Extended", "Unreserved", "Lost", "Missing", "Unknown"),
    "Replicating": ("Advancing", "Idle", "NoProgress", "ProgressStale", "Stopped", "NotStarted"),
    "TablesHealthy": ("AllHealthy", "SomeErrored", "Unknown"),
    "Suspended": ("NotRequested", "Draining", "Drained"),
}
"""The reasons of each of a Pipeline's conditions, by its type; the order is that of the status."""

TABLE_SYNC_REASONS: Final[dict[str, tuple[str, ...]]] = {
    "Ready": (
        "Streaming",
        "InitialCopy",
        "CatchingUp",
        "Errored",
        "Suspended",
        "NotSelected",
        "NotReported",
        "NotReplicating",
        "PodRefused",
    ),
    "Accepted": ("Valid", "InvalidSpec", "ImmutableChange", "Duplicate", "NoPipeline"),
}
"""The same for a TableSync."""

MAX_MESSAGE: Final = 2048


@dataclass(frozen=True, slots=True)
class Condition:
    """What is told of one matter; ``status`` None is Unknown."""

    type: str
    status: bool | None
    reason: str
    message: str = ""


def conditions_json(
    conditions: Iterable[Condition], before: Iterable[Mapping[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Write conditions as Kubernetes does; the time of a status that has not changed stays."""
    since = {c["type"]: (c.get("status"), c.get("lastTransitionTime")) for c in before}
    written = []
    for condition in conditions:
        status = "Unknown" if condition.status is None else str(condition.status)
        was, at = since.get(condition.type, (None, None))
        written.append(
            {
                "type": condition.type,
                "status": status,
                "reason": condition.reason,
                "message": shortened(condition.message, MAX_MESSAGE),
                "lastTransitionTime": at if was == status and at else timestamp(now),
                "observedGeneration": generation,
            }
        )
    return written


def shortened(text: str, most: int) -> str:
    """Cut a text to so many characters, with a mark where it was cut."""
    return text if len(text) <= most else text[: most - 1] + "…"


def timestamp(at: datetime) -> str:
    """Write a time (UTC) as Kubernetes does, in whole seconds."""
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
