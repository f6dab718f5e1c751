"""The state of one table in a running pipeline."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime

from levada.copy.progress import RunningCopy
from levada.runtime.job import Job
from levada.runtime.tables.apply_state import ApplyState
from levada.runtime.tables.requests import CopySettings
from levada.runtime.tables.resync import Resync
from levada.status import CopyProgress, ErrorProgress
from levada.stores.phases import Errored, TableReplicationPhase
from levada.values import QualifiedTable, TableId


@dataclass(slots=True)
class TableRecord:
    """One table. Only the supervisor's thread changes it. Times are of the monotonic clock, in seconds.

    ``busy`` is the job that has the table, or None. A destination is never called for one table from two threads.
    A batch or maintenance runs since ``busy_since``, None while it waits for a thread. A copy waits for
    capture's session ``copy_after_session``, uses the settings ``copied_as``, and ends when ``cancel`` is set.
    """

    id: TableId
    name: QualifiedTable
    phase: TableReplicationPhase
    busy: Job | None = None
    busy_since: datetime | None = None
    cancel: threading.Event = field(default_factory=threading.Event)
    attempts: int = 0
    copy: RunningCopy | None = None
    copied: CopyProgress | None = None
    copy_after_session: int = 0
    suspended: bool = False
    apply: ApplyState = field(default_factory=ApplyState)
    copied_at: datetime | None = None
    """The time of the last copy's commit."""
    unrepresentable_copied: int = 0
    """The number of values in the copies that became NULL."""
    mode: str = ""
    note: str = ""
    refuses_updates: bool = False
    """True if PostgreSQL refuses the table's UPDATEs and DELETEs because it is published without a replica identity."""
    destination_table: str = ""
    """The table's name at the destination, empty if it has none there."""
    misplaced: bool = False
    """True if the table is parked because it has no usable place of its own at the destination."""
    copied_as: CopySettings | None = None
    copy_outdated: bool = False
    """True if the running copy may be of a WAL history that the source no longer has."""
    resync: Resync | None = None
    """The shadow copy that will replace the table."""
    resync_error: ErrorProgress | None = None
    """The error after which the last shadow copy was given up."""
    lost_copies: int = 0
    """The number of resyncs in a row because the table had missed changes."""
    lost_copied_at: float = float("-inf")
    """The time of the last such resync."""

    def begin(self, job: Job) -> None:
        """Assign the table to a job, which may wait for a free thread."""
        self.busy, self.busy_since = job, None

    def end(self) -> None:
        """Free the table after its job has ended."""
        self.busy, self.busy_since = None, None

    @property
    def last_commit_at(self) -> datetime | None:
        """The time of the last commit at the destination, None before the first of this process."""
        return max((at for at in (self.apply.committed_at, self.copied_at) if at is not None), default=None)

    @property
    def unrepresentable(self) -> int:
        """The number of values that became NULL since the process started."""
        return self.apply.unrepresentable + self.unrepresentable_copied

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
