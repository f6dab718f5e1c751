"""Scans a table with pyarrow, file by file. Rows that position deletes have removed are skipped."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.iceberg.files import (
    ROW_GROUP_ROWS,
    Positions,
    names_by_id,
    open_parquet,
    storage_errors,
    table_file,
)
from levada.destinations.iceberg.schema import NestedField
from levada.destinations.iceberg.table import IcebergTable

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

READERS: Final = 4
"""Threads that read files. Reads from an object store spend most of their time waiting."""


@dataclass(frozen=True, slots=True, eq=False)
class LiveFile:
    """A data file, and the ascending positions of its deleted rows."""

    path: str
    deleted: Positions

    def read(self, io: FileIO, fields: Sequence[NestedField]) -> Iterator[tuple[pa.RecordBatch, Positions]]:
        """Yield the columns of the remaining rows, with the rows' positions. Names and types are those of ``fields``.

        A column that is not in the file is NULL, because it was added to the table later.
        """
        with open_parquet(io, self.path) as file, storage_errors(f"read {self.path}"):
            by_id = names_by_id(file)
            inside = [by_id[f.id] for f in fields if f.id in by_id]
            first = 0
            for batch in file.iter_batches(batch_size=ROW_GROUP_ROWS, columns=inside):
                positions = self._kept(first, first + batch.num_rows)
                first += batch.num_rows
                arrays = [batch.column(by_id[f.id]) if f.id in by_id else _nulls(batch, f) for f in fields]
                rows = pa.RecordBatch.from_arrays(arrays, names=[f.name for f in fields])
                if len(positions) < batch.num_rows:
                    rows = rows.take(pa.array(positions - (first - batch.num_rows)))
                yield rows, positions

    def _kept(self, begin: int, end: int) -> Positions:
        kept = np.ones(end - begin, np.bool_)
        low, high = np.searchsorted(self.deleted, [begin, end])
        kept[self.deleted[low:high] - begin] = False
        return np.flatnonzero(kept) + begin


def without_deletes(path: str) -> LiveFile:
    """Return a data file without deleted rows."""
    return LiveFile(path, np.empty(0, np.int64))


def _nulls(batch: pa.RecordBatch, field: NestedField) -> pa.Array:
    return pa.nulls(batch.num_rows, field.arrow.type)


def live_files(table: IcebergTable) -> list[LiveFile]:
    """Return the data files of the current snapshot.

    If another writer added files that are not Parquet, or equality deletes, the table is rewritten first.
    """
    planned = table.plan()
    if planned is None:
        table.rewrite_all()
        planned = table.plan()
        assert planned is not None, f"{table.name} has files that Iceberg did not rewrite"
    deletes = {path for paths in planned.values() for path in paths}
    deleted = _positions(table.storage().io(), sorted(deletes)) if deletes else {}
    return [LiveFile(path, deleted[path]) if path in deleted else without_deletes(path) for path in planned]


def _positions(io: FileIO, paths: Sequence[str]) -> Mapping[str, Positions]:
    """Return the distinct deleted positions of each data file, in ascending order."""
    with ThreadPoolExecutor(READERS) as pool:
        parts = list(pool.map(lambda path: _read_deletes(io, path), paths))
    rows = pa.concat_tables(parts).combine_chunks()
    codes = pc.dictionary_encode(rows.column("file_path")).combine_chunks()
    order = np.argsort(codes.indices.to_numpy(), kind="stable")
    positions = rows.column("pos").to_numpy()[order]
    bounds = np.searchsorted(codes.indices.to_numpy()[order], np.arange(len(codes.dictionary) + 1))
    return {
        path: np.unique(positions[begin:end])
        for path, begin, end in zip(codes.dictionary.to_pylist(), bounds[:-1], bounds[1:], strict=True)
    }


def _read_deletes(io: FileIO, path: str) -> pa.Table:
    with table_file(path), io.new_input(path).open() as source:
        return pq.read_table(source, columns=["file_path", "pos"])
