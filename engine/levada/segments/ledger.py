"""The end of each table's newest segment: what shows that a segment is missing, whichever it is.

Every manifest has the ledger as it was before it, so the newest manifest has all of it. Where the slot is acknowledged
past the newest manifest, or that manifest is removed, the store keeps the ledger instead.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId


class Ledger:
    """Ends that only grow. Read from any thread, changed by one."""

    def __init__(self, ends: Mapping[TableId, Lsn] | None = None) -> None:
        self._ends: Mapping[TableId, Lsn] = dict(ends or {})

    @property
    def ends(self) -> Mapping[TableId, Lsn]:
        """The end of each table's newest segment, as of now. A later change does not show in it."""
        return self._ends

    def add(self, ends: Mapping[TableId, Lsn]) -> None:
        """Take over what is newer."""
        known = self._ends
        newer = {table: end for table, end in ends.items() if end > known.get(table, -1)}
        if newer:
            self._ends = {**known, **newer}

    def add_segments(self, manifests: Iterable[Manifest]) -> None:
        """Take over what these segments, and those before them, have."""
        for manifest in manifests:
            self.add(manifest.newest_with)

    def dumps(self) -> str:
        """Return the ledger as text for the store."""
        return json.dumps({str(int(table)): str(end) for table, end in sorted(self._ends.items())})

    @classmethod
    def loads(cls, text: str | None) -> Ledger:
        """Read what `dumps` returned; None is an empty one."""
        return cls({TableId(int(table)): Lsn.parse(end) for table, end in json.loads(text or "{}").items()})


def missing_end(table: TableId, position: Lsn, newest: Lsn | None, pending: Iterable[Manifest]) -> Lsn | None:
    """Return the end of a segment that the table needs and that is not there, None if it has all that it needs.

    ``position`` is what the table has applied, ``newest`` the end of its newest segment by the ledger, ``pending`` its
    staged segments that end after ``position``, oldest first.
    """
    reached = position
    for manifest in pending:
        before = manifest.newest.get(table, Lsn(0))
        if before > reached:
            return before
        reached = manifest.end_lsn
    return newest if newest is not None and newest > reached else None
