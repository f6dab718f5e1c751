"""One table of a running pipeline: its identity, its phase, and the states of its stages."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime

from levada.runtime.job import Job
from levada.runtime.tables.apply_state import ApplyState
from levada.runtime.tables.copy_state import CopyState
from levada.runtime.tables.hold_state import HoldState, TagState
from levada.runtime.tables.own_copy_state import OwnCopy
from levada.runtime.tables.resync_state import ResyncState
from levada.runtime.tables.retries import RetryState
from levada.status import ErrorProgress
from levada.stores.phases import Errored, TableReplicationPhase
from levada.values import QualifiedTable, TableId


@dataclass(slots=True)
class PlaceState:
    """The place of one table at the destination, and how the table is kept there. Only `PlaceCheck` assigns it."""

    name: str = ""
    """The table's name at the destination, empty if it has none there."""
    misplaced: bool = False
    """True if the table is parked because it has no usable place of its own."""
    follows: bool = False
    """True until the table's copy to the place that its name has, which was that of another table."""
    mode: str = ""
    note: str = ""
    """The reason for the mode, if it is not the configured one."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job that has a table. It runs since ``since``, None while it waits for a thread."""

    kind: Job
    since: datetime | None = None


@dataclass(slots=True)
class TableRecord:
    """One table. Only the supervisor's thread changes it.

    The registry assigns identity and phase. Each state has one owner, see docs/architecture/state.md. A destination is
    never called for one table from two threads, because a stage assigns the table to a job before the call.
    """

    id: TableId
    name: QualifiedTable
    phase: TableReplicationPhase
    suspended: bool = False
    job: RunningJob | None = None
    retries: RetryState = field(default_factory=RetryState)
    place: PlaceState = field(default_factory=PlaceState)
    apply: ApplyState = field(default_factory=ApplyState)
    copy: CopyState = field(default_factory=CopyState)
    resync: ResyncState = field(default_factory=ResyncState)
    hold: HoldState = field(default_factory=HoldState)
    tag: TagState = field(default_factory=TagState)
    own: OwnCopy = field(default_factory=OwnCopy)

    def begin(self, job: Job) -> None:
        """Assign the table to a job, which may wait for a free thread."""
        self.job = RunningJob(job)

    def started(self, at: datetime) -> None:
        """Record that a thread has started the table's job."""
        if self.job is not None:
            self.job = replace(self.job, since=at)

    def keep_own_copy(self, own: OwnCopy) -> None:
        """Record a copy that was made, or is not made, without a request. For `OwnCopies`."""
        self.own = own

    def end(self) -> None:
        """Free the table after its job has ended."""
        self.job = None

    @property
    def busy(self) -> Job | None:
        """The kind of job that has the table, None if it is free."""
        return None if self.job is None else self.job.kind

    @property
    def last_commit_at(self) -> datetime | None:
        """The time of the last commit at the destination, None before the first of this process."""
        return max((at for at in (self.apply.committed_at, self.copy.committed_at) if at is not None), default=None)

    @property
    def unrepresentable(self) -> int:
        """The number of values that became NULL since the process started."""
        return self.apply.unrepresentable + self.copy.unrepresentable

    @property
    def error(self) -> ErrorProgress | None:
        """The error as a user sees it, None unless the table is parked."""
        if not isinstance(self.phase, Errored):
            return None
        return error_progress(self.phase)


def error_progress(parked: Errored) -> ErrorProgress:
    """Return the error of a parked table as progress reports it."""
    return ErrorProgress(
        code=parked.code,
        reason=parked.reason,
        solution=parked.solution,
        retry_policy=parked.retry_policy,
        attempts=parked.attempts,
        next_retry=parked.next_retry,
    )
