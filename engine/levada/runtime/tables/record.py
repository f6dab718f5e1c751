"""The state of one table in a running pipeline."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from levada.runtime.job import Job
from levada.runtime.tables.apply_state import ApplyState
from levada.runtime.tables.copy_state import CopyState
from levada.runtime.tables.resync_state import ResyncState
from levada.status import ErrorProgress
from levada.stores.phases import Errored, TableReplicationPhase
from levada.values import QualifiedTable, TableId


@dataclass(slots=True)
class TableRecord:
    """One table. Only the supervisor's thread changes it. Times are of the monotonic clock, in seconds.

    ``busy`` is the job that has the table, or None. A destination is never called for one table from two threads.
    A batch or maintenance runs since ``busy_since``, None while it waits for a thread.
    """

    id: TableId
    name: QualifiedTable
    phase: TableReplicationPhase
    busy: Job | None = None
    busy_since: datetime | None = None
    attempts: int = 0
    suspended: bool = False
    apply: ApplyState = field(default_factory=ApplyState)
    copy: CopyState = field(default_factory=CopyState)
    resync: ResyncState = field(default_factory=ResyncState)
    mode: str = ""
    note: str = ""
    refuses_updates: bool = False
    """True if PostgreSQL refuses the table's UPDATEs and DELETEs because it is published without a replica identity."""
    destination_table: str = ""
    """The table's name at the destination, empty if it has none there."""
    misplaced: bool = False
    """True if the table is parked because it has no usable place of its own at the destination."""
    lost_copies: int = 0
    """The number of resyncs in a row because the table had missed changes."""
    lost_copied_at: float = float("-inf")
    """The time of the last such resync."""

    def begin(self, job: Job) -> None:
        """Assign the table to a job, which may wait for a free thread."""
        self.busy, self.busy_since = job, None

    def started(self, at: datetime) -> None:
        """Record that a thread has started the table's job."""
        self.busy_since = at

    def end(self) -> None:
        """Free the table after its job has ended."""
        self.busy, self.busy_since = None, None

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
