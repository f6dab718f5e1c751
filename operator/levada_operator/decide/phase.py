"""The phases of Pipelines and tables. A Pipeline's phase is a summary of its conditions."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from levada.status import TablePhase
from levada_operator.decide.conditions import Condition


class PipelinePhase(StrEnum):
    """The phase that `kubectl get pipelines` prints."""

    PENDING = "Pending"
    STARTING = "Starting"
    COPYING = "Copying"
    STREAMING = "Streaming"
    DEGRADED = "Degraded"
    STALE = "Stale"
    FAILED = "Failed"
    SUSPENDING = "Suspending"
    SUSPENDED = "Suspended"
    DELETING = "Deleting"


class TableSyncPhase(StrEnum):
    """The engine's phases of a table, and those that only the operator can determine."""

    PENDING = "Pending"
    """The driver has not reported the table yet."""
    INIT = TablePhase.INIT.value
    DATA_SYNC = TablePhase.DATA_SYNC.value
    FINISHED_COPY = TablePhase.FINISHED_COPY.value
    SYNC_WAIT = TablePhase.SYNC_WAIT.value
    CATCHUP = TablePhase.CATCHUP.value
    SYNC_DONE = TablePhase.SYNC_DONE.value
    READY = TablePhase.READY.value
    ERRORED = TablePhase.ERRORED.value
    STALE = "Stale"
    """The table was Ready, but its changes are currently not read from the source."""
    SUSPENDED = "Suspended"
    REMOVED = "Removed"
    """The Pipeline no longer replicates the table."""


COPYING: frozenset[str] = frozenset({TableSyncPhase.INIT, TableSyncPhase.DATA_SYNC})
CATCHING_UP: frozenset[str] = frozenset(
    {TableSyncPhase.FINISHED_COPY, TableSyncPhase.SYNC_WAIT, TableSyncPhase.CATCHUP, TableSyncPhase.SYNC_DONE}
)

_FATAL_DRIVER = frozenset(
    {
        "PreflightFailed",
        "CrashLooping",
        "OutOfMemory",
        "ImagePullFailed",
        "SecretMissing",
        "PodRefused",
        "ConfigMissing",
        "RefusedByCluster",
    }
)


def pipeline_phase(conditions: Mapping[str, Condition], *, deleting: bool) -> PipelinePhase:
    """Return the phase for these conditions, given by type. The first rule that applies decides."""
    driver, ready = conditions["DriverAvailable"], conditions["Ready"]
    suspended = conditions["Suspended"]
    if deleting:
        return PipelinePhase.DELETING
    if suspended.status:
        return PipelinePhase.SUSPENDED
    if suspended.reason == "Draining":
        return PipelinePhase.SUSPENDING
    if driver.reason == "NotStarted" and not conditions["Accepted"].status:
        return PipelinePhase.FAILED
    if conditions["SlotHealthy"].status is False or driver.reason in _FATAL_DRIVER:
        return PipelinePhase.FAILED
    if ready.reason == "Stopped":
        return PipelinePhase.FAILED
    if driver.reason in ("NotStarted", "Unschedulable", "Evicted", "NodeLost", "StuckTerminating"):
        return PipelinePhase.PENDING
    if conditions["Replicating"].reason == "ProgressStale":
        return PipelinePhase.STALE
    if conditions["Replicating"].reason == "NoProgress" or conditions["SourceReachable"].status is False:
        return PipelinePhase.DEGRADED
    if conditions["Replicating"].reason == "NotStarted":
        return PipelinePhase.STARTING
    if conditions["TablesHealthy"].status is False:
        return PipelinePhase.DEGRADED
    if ready.reason == "DriverNotReady":
        return PipelinePhase.STARTING
    return PipelinePhase.COPYING if ready.reason == "InitialCopy" else PipelinePhase.STREAMING
