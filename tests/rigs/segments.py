"""Segments that no stream wrote."""

from __future__ import annotations

from collections.abc import Mapping

from tests.segments.changes import NO_TRANSACTIONS

from levada.segments.files import SegmentFile, SegmentFiles
from levada.segments.manifest import Manifest
from levada.values import Lsn, SnapshotId, TableId, Witness


def segment(start: int, end: int, tables: dict[int, int], newest: Mapping[TableId, Lsn] | None = None) -> Manifest:
    """A manifest with so many rows of each table, and what its writer knew of earlier ones."""
    files = SegmentFiles.of(
        SegmentFile(f"{start}-{t}", None, TableId(t), SnapshotId(0), rows, rows * 10, Lsn(start), Lsn(end - 1), ())
        for t, rows in sorted(tables.items())
    )
    last = Witness(Lsn(end), 1, end)
    return Manifest("p", 1, Lsn(start), Lsn(end), files, (), (), (), 1, NO_TRANSACTIONS, start, last, newest or {})
