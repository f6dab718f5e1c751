"""The state of one table's copies, other than shadow copies."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import datetime

from levada.copy.progress import RunningCopy
from levada.runtime.tables.requests import CopySettings
from levada.status import CopyProgress


@dataclass(slots=True)
class CopyState:
    """The running copy and the last copy of one table.

    Only the copy stage assigns the fields. Other parts read them and call the methods, which are requests to it.
    """

    running: RunningCopy | None = None
    """The running copy, None before it has its snapshot."""
    finished: CopyProgress | None = None
    """The progress of the last copy, None if an earlier process made it."""
    settings: CopySettings | None = None
    """The settings of the running copy or of the last one."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set when the running copy must end early. The thread of the copy waits for it."""
    outdated: bool = False
    """True if the running copy may be of a WAL history that the source no longer has."""
    group: int = 0
    """The number of the running copies that share a thread and a snapshot with this one, 0 if it has its own."""
    alone: bool = False
    """True if the next copy must have a snapshot of its own, because the table is not small."""
    after_session: int = 0
    """The number of the replication session that must begin before the next copy."""
    committed_at: datetime | None = None
    """The time of the last copy's commit."""
    unrepresentable: int = 0
    """The number of values in the copies that became NULL."""

    interrupted: CopyProgress | None = None
    """The progress of a copy that an earlier process began, None without one."""
    began_again: str = ""
    """Why the present copy did not continue an earlier one. Empty if it did."""

    def cancel(self) -> None:
        """Request the end of the running copy."""
        self.cancelled.set()

    def outdate(self, why: str) -> None:
        """Request that the running copy is repeated, even if it is complete. ``why`` is for users."""
        self.outdated = True
        self.explain(why)
        self.cancel()

    def explain(self, why: str) -> None:
        """Report why the next copy does not continue an earlier one."""
        self.began_again = why

    def was_interrupted(self, progress: CopyProgress) -> None:
        """Report the progress of a copy that an earlier process began, and that the next copy continues."""
        self.interrupted = progress

    def wait_for_session(self, number: int) -> None:
        """Request that the next copy waits until the replication session with this number has begun."""
        self.after_session = max(self.after_session, number)

    def forget(self) -> None:
        """Forget the last copy, because the table is copied again."""
        self.running = self.finished = self.interrupted = None

    def replaced_by(self, shadow: CopyProgress | None, at: datetime) -> None:
        """Make a shadow copy, which replaced the table at the time ``at``, the last copy."""
        self.finished, self.committed_at = shadow, at
