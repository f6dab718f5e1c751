"""The values of the document's fields that have a closed list of values."""

from __future__ import annotations

from enum import StrEnum


class PipelineState(StrEnum):
    """The state of the pipeline's process."""

    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"


class TablePhase(StrEnum):
    """The phase of a table. `levada.stores.phases` has what each phase carries."""

    INIT = "Init"
    DATA_SYNC = "DataSync"
    FINISHED_COPY = "FinishedCopy"
    SYNC_WAIT = "SyncWait"
    CATCHUP = "Catchup"
    SYNC_DONE = "SyncDone"
    READY = "Ready"
    ERRORED = "Errored"


class RetryPolicy(StrEnum):
    """The way in which an error is retried."""

    NO_RETRY = "NoRetry"
    MANUAL_RETRY = "ManualRetry"
    TIMED_RETRY = "TimedRetry"


class ResyncStep(StrEnum):
    """The step of a shadow copy."""

    WAITING = "Waiting"
    """The copy waits until fewer copies run."""
    COPYING = "Copying"
    CATCHING_UP = "CatchingUp"
    """Changes since the copy's snapshot are applied to it."""
    GIVEN_UP = "GivenUp"
    """An error that is not retried ended the resync."""
