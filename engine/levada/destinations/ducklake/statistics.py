"""Statistics of data files, from their Parquet footers. Readers skip files by them, so a wrong bound hides rows.

A column without values has no bounds. A column of floats has no statistics, because NaN has no place among the bounds
of a Parquet file, and DuckDB would skip it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada import codes
from levada.destinations.data_files.live_files import open_parquet, side_by_side
from levada.destinations.data_files.statistics import leaves
from levada.destinations.data_files.storage import Storage, WrittenFile, table_file
from levada.destinations.ducklake.columns import LakeColumn
from levada.destinations.ducklake.types import FLOATS, bound, from_text, to_text
from levada.errors import DestinationChanged, Transient


@dataclass(frozen=True, slots=True)
class ColumnStats:
    """The statistics of one column in one file. ``values`` counts values that are not NULL. Bounds are inclusive."""

    column: int
    type: str
    bytes: int
    values: int
    nulls: int
    low: Any = None
    high: Any = None

    @property
    def texts(self) -> tuple[str | None, str | None]:
        """The bounds as the catalog's texts."""
        if self.low is None or self.high is None:
            return None, None
        return to_text(self.type, self.low), to_text(self.type, self.high)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file to add to a table. ``footer`` is the size of its Parquet metadata in bytes."""

    path: str
    rows: int
    bytes: int
    footer: int
    columns: tuple[ColumnStats, ...]


@dataclass(frozen=True, slots=True)
class TableStats:
    """The statistics of one column over all files that the table ever had. They only widen."""

    contains_null: bool
    low: str | None
    high: str | None

    def merged(self, kind: str, other: TableStats) -> TableStats:
        """Return the statistics of both. Floats have no bounds, not even those of other writers."""
        if kind in FLOATS:
            return TableStats(self.contains_null or other.contains_null, None, None)
        lows = [from_text(kind, t) for t in (self.low, other.low) if t is not None]
        highs = [from_text(kind, t) for t in (self.high, other.high) if t is not None]
        return TableStats(
            self.contains_null or other.contains_null,
            to_text(kind, min(lows)) if lows else None,
            to_text(kind, max(highs)) if highs else None,
        )


def table_stats(files: Sequence[DataFile], columns: Sequence[LakeColumn]) -> Mapping[int, tuple[str, TableStats]]:
    """Return the type and the statistics of each column over the files, by column ID.

    A column without statistics in the files may have anything. Without an entry for the table, a writer like DuckDB
    would take the bounds of its own rows as those of all rows.
    """
    merged: dict[int, ColumnStats] = {}
    for file in files:
        for column in file.columns:
            before = merged.get(column.column)
            merged[column.column] = column if before is None else _both(before, column)
    known = {i: (c.type, TableStats(c.nulls > 0, *c.texts)) for i, c in merged.items()}
    return {
        leaf.id: known.get(leaf.id, (leaf.type, TableStats(True, None, None))) for c in columns for leaf in c.leaves()
    }


def describe_files(storage: Storage, files: Sequence[WrittenFile], columns: Sequence[LakeColumn]) -> list[DataFile]:
    """Return the files with their statistics. ``columns`` are those in the files, in order.

    Raise Transient ``file_vanished`` if a file is missing. No snapshot refers to the files yet, so another tool may
    have removed them as orphans.
    """
    try:
        return side_by_side(lambda file: _describe(storage, file, columns), files)
    except DestinationChanged as error:
        raise Transient(
            codes.FILE_VANISHED,
            f"a file was removed before its commit: {error.message}",
            hint="if this persists, let no job remove orphan files that are younger than a day",
        ) from error


def describe_by_id(storage: Storage, file: WrittenFile, columns: Sequence[LakeColumn]) -> DataFile:
    """Return a file with the statistics of those of its columns that ``columns`` has, which are found by their IDs."""
    by_id = {column.id: column for column in columns}
    with open_parquet(storage, file.path) as parquet:
        metadata = parquet.metadata
        found = ((i, by_id.get(leaf.field_id or 0)) for i, leaf in enumerate(leaves(parquet.schema_arrow)))
        stats = tuple(_column_stats(parquet, i, c) for i, c in found if c is not None and c.type not in FLOATS)
        return DataFile(file.path, metadata.num_rows, file.bytes, metadata.serialized_size, stats)


def footer_size(storage: Storage, path: str) -> int:
    """Return the size of a file's Parquet metadata in bytes."""
    with table_file(storage, path), storage.open(path) as source:
        return int(pq.read_metadata(source).serialized_size)


def _describe(storage: Storage, file: WrittenFile, columns: Sequence[LakeColumn]) -> DataFile:
    with open_parquet(storage, file.path) as parquet:
        metadata = parquet.metadata
        leaves = [leaf for column in columns for leaf in column.leaves()]
        stats = tuple(_column_stats(parquet, i, leaf) for i, leaf in enumerate(leaves) if leaf.type not in FLOATS)
        return DataFile(file.path, metadata.num_rows, file.bytes, metadata.serialized_size, stats)


def _column_stats(parquet: pq.ParquetFile, index: int, column: LakeColumn) -> ColumnStats:
    chunks = [_chunk_stats(parquet, group, index, column) for group in range(parquet.metadata.num_row_groups)]
    total = ColumnStats(column.id, column.type, 0, 0, 0)
    for chunk in chunks:
        total = _both(total, chunk)
    return total


def _chunk_stats(parquet: pq.ParquetFile, group: int, index: int, column: LakeColumn) -> ColumnStats:
    chunk = parquet.metadata.row_group(group).column(index)
    found = chunk.statistics
    low = high = None
    if found.has_min_max:
        low, high = bound(column.type, found.min_raw), bound(column.type, found.max_raw)
    elif found.num_values:
        # Parquet has no bounds of more than 4 KB.
        low, high = _read_bounds(parquet, group, index, column)
    return ColumnStats(
        column.id, column.type, chunk.total_compressed_size, found.num_values, found.null_count, low, high
    )


def _read_bounds(parquet: pq.ParquetFile, group: int, index: int, column: LakeColumn) -> tuple[Any, Any]:
    path = parquet.metadata.row_group(group).column(index).path_in_schema
    values = parquet.read_row_group(group, columns=[path]).column(0).combine_chunks()
    while pa.types.is_nested(values.type):
        # A struct is read with this field alone.
        values = values.flatten() if pa.types.is_list(values.type) else values.flatten()[0]
    storage = getattr(values, "storage", values)
    found = pc.min_max(storage)
    return bound(column.type, found["min"].as_py()), bound(column.type, found["max"].as_py())


def _both(a: ColumnStats, b: ColumnStats) -> ColumnStats:
    lows = [c.low for c in (a, b) if c.low is not None]
    highs = [c.high for c in (a, b) if c.high is not None]
    return replace(
        a,
        bytes=a.bytes + b.bytes,
        values=a.values + b.values,
        nulls=a.nulls + b.nulls,
        low=min(lows, default=None),
        high=max(highs, default=None),
    )
