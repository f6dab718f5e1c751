"""The state of one table's copies that were made without a request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class OwnCopy:
    """The last copy of a table that was made without a request, and how many there were in a row.

    ``code`` and ``reason`` are of the error that it resolves, empty once the table is Ready. Only `OwnCopies` replaces
    it.
    """

    code: str = ""
    reason: str = ""
    copies: int = 0
    failed: int = 0
    """The number of these that ended before the table was Ready."""
    at: datetime | None = None
    bytes: int | None = None
    """The table's size at the source when the copy was decided."""
    held: str = ""
    """Why the parked table is not copied again by itself. It is not stored, nor are the next fields."""
    next_at: datetime | None = None
    """When the parked table is copied again, None for at once."""
    refused: int = 0
    """The number of attempts since the last copy that were refused before they read anything, at most a limit."""

    def to_text(self) -> str:
        """Return the stored part as text."""
        at = None if self.at is None else self.at.isoformat()
        return json.dumps([self.code, self.reason, self.copies, self.failed, at, self.bytes])

    @classmethod
    def from_text(cls, text: str) -> OwnCopy:
        """Parse the text that `to_text` returned."""
        code, reason, copies, failed, at, size = json.loads(text)
        return cls(code, reason, copies, failed, None if at is None else datetime.fromisoformat(at), size)
