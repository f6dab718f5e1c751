"""The comparisons of a table that is repaired, each of which reads as little as possible again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa

from levada.destinations.row_hashes import chunks_of
from levada.destinations.verification import CHUNK, ROWS, Comparison, FixedTable
from levada.printable import counted
from levada.verify.differences import Difference, Kind, compare_chunks, compare_keys
from levada.verify.rows import RowDifferences, compare_rows, rows_of_keys
from levada.verify.source_table import SourceTable

REPAIRED_ROWS: Final = 2_000_000
"""The rows of each side whose hashes are compared at a time, in a few hundred MB of memory."""


@dataclass(frozen=True, slots=True)
class Pass:
    """The result of one comparison. ``passes`` is the number of passes that the repair takes, as far as is known."""

    rows: RowDifferences
    source_rows: int
    lake_rows: int
    passes: int = 0


@dataclass(slots=True)
class Passes:
    """Compares a table with the source again after each change of a repair.

    The source's snapshot stays the same, so that its checksums are computed once. Those of the table are computed again
    for the files that the repair changed. Rows that differ are found by their hashes, in all chunks that differ, and so
    many at a time that they have ``most`` rows.
    """

    source: SourceTable
    comparison: Comparison
    told: Callable[[str], None]
    most: int = REPAIRED_ROWS
    _source: pa.Table | None = field(default=None, init=False)
    _lake: tuple[FixedTable, pa.Table] | None = field(default=None, init=False)

    def compare(self, lake: FixedTable, *, damaged: bool = False) -> Pass:
        """Return what differs. If the table was ``damaged``, most chunks differ, so that rows are compared directly."""
        self.told("reading the files")
        lake.check_files(None if self._lake is None else self._lake[0])
        rows = max(self.source.published.estimated_rows or 0, lake.estimated_rows)
        if damaged and self._source is None and rows <= self.most:
            return self._compare_all(lake, rows)
        if self._lake is None:
            self.told(f"comparing about {counted(rows, 'row')}")
            known = lake.chunks(self.comparison)
        else:
            self.told("comparing the changed files")
            known = lake.chunks_after(self.comparison, *self._lake)
        if self._source is None:
            self._source = self.source.chunks(self.comparison)
        self._lake = (lake, known)
        chunks = compare_chunks(self._source, known)
        left, kept = chunks.chunks, 0
        while left:
            wanted = first_chunks(left, (self._source, known), self.most)
            of = counted(self.comparison.chunks, "chunk")
            self.told(f"looking for the rows that differ, in {len(wanted)} of {of}")
            some = None if len(wanted) == self.comparison.chunks else wanted
            there, here = self.source.digests(self.comparison, some), lake.digests(self.comparison, some)
            found = self._compared(lake, there, here, some)
            kept += found.kept
            if found.total:
                found = replace(found, kept=kept)
                return Pass(found, chunks.source_rows, chunks.lake_rows, -(-chunks.rows // self.most))
            if not found.kept:
                # Both reads saw the same versions, so this would be an error of this program.
                name = self.source.published.name
                raise AssertionError(f"{name}: {len(wanted)} chunks differ, but none of their rows")
            left = left[len(wanted) :]
        return Pass(RowDifferences(kept=kept), chunks.source_rows, chunks.lake_rows)

    def _compare_all(self, lake: FixedTable, rows: int) -> Pass:
        self.told(f"comparing about {counted(rows, 'row')}, row by row")
        there, here = self.source.digests(self.comparison, None), lake.digests(self.comparison, None)
        self._source = chunks_of(there, self.comparison.chunks)
        self._lake = (lake, chunks_of(here, self.comparison.chunks))
        return Pass(self._compared(lake, there, here, None), there.num_rows, here.num_rows, 1)

    def _compared(
        self, lake: FixedTable, there: pa.Table, here: pa.Table, chunks: tuple[int, ...] | None
    ) -> RowDifferences:
        """Return what differs between the digests of both sides, with the marked rows of keys that are written."""
        found = compare_rows(there, here, keeps=self.comparison.keeps)
        if self.comparison.marked is None or not found.lost.num_rows:
            return found
        marked = lake.digests(replace(self.comparison, marked=True), chunks)
        return replace(found, gone=pa.concat_tables([found.gone, rows_of_keys(marked, found.lost)]))

    def examples(self, lake: FixedTable, rows: RowDifferences, most: int) -> tuple[Difference, ...]:
        """Return some of the keys that differ with their columns."""
        found: list[Difference] = []
        for kind in Kind:
            some = rows.of_kind(kind, most - len(found))
            if not (some.lost.num_rows or some.gone.num_rows):
                continue
            there = self.source.rows_at(self.comparison, some.lost)
            here = lake.rows_at(self.comparison, some.gone)
            found += compare_keys(self.comparison, there, here, most - len(found)).examples
        return tuple(found)


def first_chunks(chunks: tuple[int, ...], sides: tuple[pa.Table, pa.Table], rows_at_most: int) -> tuple[int, ...]:
    """Return the first chunks, at least one, that together have at most that many rows."""
    sizes: dict[int, int] = {}
    for side in sides:
        summed = side.group_by(CHUNK).aggregate([(ROWS, "sum")])
        pairs = zip(summed[CHUNK].to_pylist(), summed[f"{ROWS}_sum"].to_pylist(), strict=True)
        for chunk, rows in pairs:
            sizes[chunk] = max(sizes.get(chunk, 0), rows)
    taken: list[int] = []
    total = 0
    for chunk in chunks:
        total += sizes[chunk]
        if taken and total > rows_at_most:
            break
        taken.append(chunk)
    return tuple(taken)
