"""The ledger of each table's newest segment, which makes any missing segment detectable.

Each manifest contains the ledger as it was before that segment, so the newest manifest has the latest one. The store
keeps the ledger when the slot is acknowledged past the newest manifest, or when that manifest is removed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from levada.segments.ends import PackedEnds
from levada.segments.manifest import Manifest
from levada.values import Lsn, TableId


class Ledger:
    """The end of each table's newest segment. Ends only grow. Any thread may read it, but only one may change it."""

    def __init__(self, ends: Mapping[TableId, Lsn] | None = None) -> None:
        self._ends: Mapping[TableId, Lsn] = dict(ends or {})

    @property
    def ends(self) -> Mapping[TableId, Lsn]:
        """The current ends. The mapping is immutable, so later changes do not appear in it."""
        return self._ends

    def add(self, ends: Mapping[TableId, Lsn]) -> None:
        """Add the ends that are higher than the known ones."""
        known = self._ends
        if isinstance(ends, PackedEnds):
            newer = ends.above(known)
        else:
            newer = {table: end for table, end in ends.items() if end > known.get(table, -1)}
        if newer:
            self._ends = {**known, **newer}

    def add_segments(self, manifests: Iterable[Manifest]) -> None:
        """Add the ends of these segments, and the ends recorded in their manifests."""
        for manifest in manifests:
            if manifest.newest is not self._ends:
                self.add(manifest.newest)
            self.add(dict.fromkeys(manifest.tables, manifest.end_lsn))

    def dumps(self) -> str:
        """Return the ledger as text for the store."""
        return json.dumps({str(int(table)): str(end) for table, end in sorted(self._ends.items())})

    @classmethod
    def loads(cls, text: str | None) -> Ledger:
        """Parse the result of `dumps`. Return an empty ledger for None."""
        return cls({TableId(int(table)): Lsn.parse(end) for table, end in json.loads(text or "{}").items()})


def missing_end(table: TableId, position: Lsn, newest: Lsn | None, pending: Iterable[Manifest]) -> Lsn | None:
    """Return the end of a segment that the table needs but that is missing, or None if none is missing.

    ``position`` is the LSN below which the table has applied every change. ``newest`` is the end of its newest segment
    in the ledger. ``pending`` are its staged segments that end after ``position``, oldest first.
    """
    reached = position
    for manifest in pending:
        before = manifest.newest.get(table, Lsn(0))
        if before > reached:
            return before
        reached = manifest.end_lsn
    return newest if newest is not None and newest > reached else None
