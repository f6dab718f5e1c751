"""The state of a table's part in cuts of all tables."""

from __future__ import annotations

from dataclasses import dataclass

from levada.values import Lsn


@dataclass(slots=True)
class TagState:
    """The part of one table in the cuts of all tables. Only the stage of these cuts assigns the fields.

    Until the table is tagged at ``until``, no change with a commit LSN of at least ``until`` is applied.
    """

    until: Lsn | None = None

    def end_of(self, batch_end: Lsn) -> Lsn:
        """Return the LSN at which a batch ends whose last segment ends at ``batch_end``."""
        return batch_end if self.until is None else min(batch_end, self.until)
