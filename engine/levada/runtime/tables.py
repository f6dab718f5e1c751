"""What the supervisor knows of one table while it runs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from levada.copy.progress import CopyProgress
from levada.runtime.progress import ErrorProgress
from levada.stores.phases import Errored, TableReplicationPhase
from levada.values import QualifiedTable, TableId

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows


@dataclass(slots=True)
class TableRecord:
    """One table; the supervisor's thread alone changes it. Times are of the monotonic clock, in seconds.

    ``busy`` names the job that has the table (``copy``, ``apply``, ``maintain``), empty for none: a destination is
    never called for one table from two threads. A copy waits for capture's session ``copy_after_session``.
    """

    id: TableId
    name: QualifiedTable
    phase: TableReplicationPhase
    busy: str = ""
    attempts: int = 0
    copy: SnapshotRows | None = None
    copied: CopyProgress | None = None
    copy_after_session: int = 0
    suspended: bool = False
    published: bool = True
    pending_since: float | None = None
    last_apply_s: float = 0.0
    last_commit_at: datetime | None = None
    maintained_at: float = 0.0
    rows_applied: int = 0
    unrepresentable: int = 0
    mode: str = ""
    note: str = ""

    @property
    def error(self) -> ErrorProgress | None:
        """The error as a user sees it, None unless the table is parked."""
        if not isinstance(self.phase, Errored):
            return None
        return error_progress(self.phase)


def error_progress(parked: Errored) -> ErrorProgress:
    """Return an Errored phase as progress tells it."""
    return ErrorProgress(
        code=parked.code,
        reason=parked.reason,
        solution=parked.solution,
        retry_policy=parked.retry_policy.value,
        attempts=parked.attempts,
        next_retry=parked.next_retry,
    )
