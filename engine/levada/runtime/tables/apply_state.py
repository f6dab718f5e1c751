"""The state of one table's batches, maintenance and watermark reads."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(slots=True)
class ApplyState:
    """The batches, the maintenance and the watermark read of one table. Times are of the monotonic clock, in seconds.

    Only the apply stage assigns the fields. Other parts read them and call the methods, which are requests to it.
    """

    pending_since: float | None = None
    """The time since which changes wait for a batch. None if none wait, or if a batch has taken them."""
    last_apply_s: float = 0.0
    """The duration of the last batch."""
    last_apply_tasks: int = 0
    """The number of tasks that wrote the last batch."""
    committed_at: datetime | None = None
    """The time of the last batch's commit."""
    maintained_at: float = 0.0
    rows_applied: int = 0
    unrepresentable: int = 0
    """The number of values in the batches that became NULL."""
    watermark_unknown: bool = False
    """True if the destination's watermark must be read before changes are applied."""

    def changes_wait(self, since: float) -> None:
        """Request a batch for changes that wait since ``since``. Older waiting changes keep their time."""
        if self.pending_since is None:
            self.pending_since = since

    def copied(self, now: float) -> None:
        """Request no maintenance before the next interval, because a copy was written just now."""
        self.maintained_at = now

    def read_watermark(self) -> None:
        """Request that the destination's watermark is read as soon as no job has the table."""
        self.watermark_unknown = True
