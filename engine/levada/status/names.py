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


class CutPhase(StrEnum):
    """The phase of a cut of all tables."""

    REQUESTED = "Requested"
    """The cut's LSN is not chosen yet."""
    PENDING = "Pending"
    """Some tables have not reached the cut's LSN yet."""
    COMPLETE = "Complete"
    """Every table is kept as of the cut's LSN."""
    INCOMPLETE = "Incomplete"
    """Some tables are left out. The others are kept as of the cut's LSN."""
    DROPPING = "Dropping"
    """The cut is being removed from its tables."""


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


class CatchUpState(StrEnum):
    """The answer to the question when the destination will have caught up with the source."""

    CAUGHT_UP = "CaughtUp"
    """It trails by no more than batching causes."""
    CATCHING_UP = "CatchingUp"
    NOT_AT_THIS_RATE = "NotAtThisRate"
    """The lag does not fall, so it never will at the rates of the last five minutes."""


class GuardPolicy(StrEnum):
    """An action of the guard at a limit, from the mildest to the most severe. Each includes the milder ones."""

    WARN = "Warn"
    """The passed limit is reported."""
    PAUSE_COPIES = "PauseCopies"
    """No copy begins. Running copies continue."""
    PARK_SLOWEST = "ParkSlowest"
    """The tables that hold the most are parked until a resync, and their staged changes are removed."""
    RELEASE_SLOT = "ReleaseSlot"
    """The slot is dropped, so that the source can remove the WAL."""


class GuardMeasure(StrEnum):
    """A figure that the guard compares with limits. The values are the names of the manifest's fields."""

    RETAINED_WAL = "retainedWal"
    """Bytes of WAL that the slot keeps on the source's disk."""
    RETAINED_WAL_PERCENT = "retainedWalPercent"
    """The same as a percentage of `max_slot_wal_keep_size`."""
    STAGED = "staged"
    """Bytes of staged changes."""
    STAGING_FREE = "stagingFree"
    """Free bytes of the volume of the staging area. Its limits are passed from above."""
