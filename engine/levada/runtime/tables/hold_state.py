"""The state of a table whose applied changes end at one LSN, for a hold of the table or a cut of all tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from levada.values import Lsn, TableId


@dataclass(slots=True)
class HoldState:
    """The hold of one table. Only the stage of holds assigns the field.

    While ``until`` is set, no change with a commit LSN of at least ``until`` is applied.
    """

    until: Lsn | None = None

    def leaves_nothing(self, position: Lsn) -> bool:
        """Return True if a table that has applied everything below ``position`` applies no more until the hold ends."""
        return self.until is not None and position >= self.until

    def end_of(self, batch_end: Lsn) -> Lsn:
        """Return the LSN at which a batch ends whose last segment ends at ``batch_end``."""
        return batch_end if self.until is None else min(batch_end, self.until)


@dataclass(frozen=True, slots=True)
class Held:
    """A table that is held.

    ``parked`` is the code of its error, empty for a table without one. A parked table applies nothing, so it cannot be
    brought to an LSN. If it ``needs_resync``, the changes that it missed are no longer staged. If it ``is_compared``,
    it goes on after its repair without the changes that it missed. ``copied_at`` is the time of its last copy by this
    process.
    """

    table: TableId
    parked: str = ""
    needs_resync: bool = False
    is_compared: bool = False
    copied_at: datetime | None = None


@dataclass(slots=True)
class TagState:
    """The part of one table in the cuts of all tables. Only the stage of these cuts assigns the fields.

    Until the table is tagged at ``until``, no change with a commit LSN of at least ``until`` is applied.
    """

    until: Lsn | None = None

    def end_of(self, batch_end: Lsn) -> Lsn:
        """Return the LSN at which a batch ends whose last segment ends at ``batch_end``."""
        return batch_end if self.until is None else min(batch_end, self.until)
