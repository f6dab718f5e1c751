"""Reads data files without the rows that position deletes have removed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.data_files.layout import field_id, names_by_id
from levada.destinations.data_files.storage import FileSource, table_file
from levada.schema.types import repeated

READERS: Final = 4
"""Threads that read files. Reads from an object store spend most of their time waiting."""
BATCH_ROWS: Final = 131_072
_NULL: Final[Mapping[int, pa.Array]] = MappingProxyType({})

T = TypeVar("T")
R = TypeVar("R")

Positions = npt.NDArray[np.int64]


def side_by_side(task: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return the results for all items in order, each in a thread. One item is not worth a thread."""
    if len(items) <= 1:
        return [task(item) for item in items]
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(task, items))


@dataclass(frozen=True, slots=True, eq=False)
class LiveFile:
    """A data file, and the ascending positions of its deleted rows."""

    path: str
    deleted: Positions

    def read(
        self,
        storage: FileSource,
        fields: Sequence[pa.Field],
        batch_rows: int = BATCH_ROWS,
        groups: Collection[int] | None = None,
        missing: Mapping[int, pa.Array] = _NULL,
    ) -> Iterator[tuple[pa.RecordBatch, Positions]]:
        """Yield the columns of the remaining rows, with the rows' positions. Names are those of ``fields``.

        ``groups`` are the row groups that are read, None for all.

        A column that is not in the file was added to the table later. It has its value of ``missing``, by field ID, and
        without one NULL. The rows of a batch are in one row group, whose size has a bound: a small file may have very
        large values, if they are alike.
        """
        with open_parquet(storage, self.path) as file, table_file(storage, self.path):
            by_id = names_by_id(file)
            inside = [by_id.get(number) if (number := field_id(f)) is not None else None for f in fields]
            names = [name for name in inside if name]
            begins = itertools.accumulate(
                (file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)), initial=0
            )
            for group, first in zip(range(file.num_row_groups), begins, strict=False):
                if groups is not None and group not in groups:
                    continue
                for batch in file.iter_batches(batch_size=batch_rows, row_groups=[group], columns=names):
                    positions = self._kept(first, first + batch.num_rows)
                    first += batch.num_rows  # the position within the row group
                    arrays = [
                        _absent(f, missing, batch.num_rows) if name is None else batch.column(name)
                        for f, name in zip(fields, inside, strict=True)
                    ]
                    rows = pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])
                    if len(positions) < batch.num_rows:
                        rows = rows.take(pa.array(positions - (first - batch.num_rows)))
                    yield rows, positions

    def _kept(self, begin: int, end: int) -> Positions:
        kept = np.ones(end - begin, np.bool_)
        low, high = np.searchsorted(self.deleted, [begin, end])
        kept[self.deleted[low:high] - begin] = False
        return np.flatnonzero(kept) + begin


def _absent(column: pa.Field, missing: Mapping[int, pa.Array], rows: int) -> pa.Array:
    value = missing.get(-1 if (number := field_id(column)) is None else number)
    return pa.nulls(rows, column.type) if value is None else repeated(value, rows)


def without_deletes(path: str) -> LiveFile:
    """Return a data file without deleted rows."""
    return LiveFile(path, np.empty(0, np.int64))


def sorted_positions(files: npt.NDArray[np.integer[Any]], positions: Positions) -> tuple[Positions, Positions]:
    """Return the files' numbers and the positions, sorted by both. Both together have at most 63 bits.

    One number for each row is sorted ten times as fast as two.
    """
    bits = int(positions.max(initial=0)).bit_length()
    merged = files.astype(np.int64)
    merged <<= bits
    merged |= positions
    merged.sort()
    return merged >> bits, merged & ((1 << bits) - 1)


def open_parquet(storage: FileSource, path: str) -> pq.ParquetFile:
    """Open a data file for reading. The caller closes it."""
    with table_file(storage, path):
        return pq.ParquetFile(storage.open(path), page_checksum_verification=True)
