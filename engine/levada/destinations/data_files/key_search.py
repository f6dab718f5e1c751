"""Finds the rows with some keys in data files, also rows that are deleted by their positions.

A file of the table still has the values of such a row. Bounds in the file's footer exclude most row groups.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.layout import FileLayout, field_id, names_by_id
from levada.destinations.data_files.live_files import BATCH_ROWS, READERS, Positions, open_parquet
from levada.destinations.data_files.source_types import as_source
from levada.destinations.data_files.storage import FileSource, table_file
from levada.destinations.keys import Keys, new_seed
from levada.schema import ReplicatedTableSchema

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class KeySearch:
    """A search for ``keys``. ``first`` has the values of the first key column, ascending and distinct, for bounds."""

    reader: KeyReader
    keys: Keys
    first: pa.Array

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, layout: FileLayout, keys: pa.Table) -> KeySearch:
        """Return a search. ``keys`` has the key columns by name. Raise NeedsOperator if the files lack a key column."""
        reader = KeyReader.of(schema, layout, new_seed())
        columns = [keys.column(c.name) for c in schema.key_columns]
        first = pc.unique(columns[0].combine_chunks())
        return cls(reader, reader.encode(columns), first.take(pc.sort_indices(first)) if _orders(first) else first)

    def files(self, storage: FileSource, paths: Iterable[str]) -> dict[str, Positions]:
        """Return the files that have one of the keys, with the ascending positions of these rows."""
        with ThreadPoolExecutor(READERS) as pool:
            wanted = list(paths)
            found = zip(wanted, pool.map(lambda path: self.positions(storage, path), wanted), strict=True)
            return {path: positions for path, positions in found if len(positions)}

    def positions(self, storage: FileSource, path: str) -> Positions:
        """Return the ascending positions of the rows with one of the keys in a data file."""
        parts = []
        with open_parquet(storage, path) as file, table_file(storage, path):
            by_id = names_by_id(file)
            names = [by_id.get(field_id(f) or 0) for f in self.reader.fields]
            inside = [name for name in names if name is not None]
            if len(inside) < len(names):
                # The rows are from before the key column was added, so they have none of the keys.
                return _NONE
            begin = 0
            for group in range(file.num_row_groups):
                if self._may_have(file, group, inside[0]):
                    parts += self._in_group(file, group, inside, begin)
                begin += file.metadata.row_group(group).num_rows
        return np.concatenate(parts) if parts else _NONE

    def _in_group(self, file: pq.ParquetFile, group: int, names: list[str], begin: int) -> list[Positions]:
        found = []
        for rows in file.iter_batches(batch_size=BATCH_ROWS, row_groups=[group], columns=names):
            columns = [rows.column(name) for name in names]
            known = np.flatnonzero(_present(columns, rows.num_rows))
            mine = [c.take(pa.array(known)) for c in columns] if len(known) < rows.num_rows else columns
            found.append(begin + known[_among(self.reader.encode(mine), self.keys)])
            begin += rows.num_rows
        return found

    def _may_have(self, file: pq.ParquetFile, group: int, name: str) -> bool:
        """Return False if the bounds of the first key column exclude all keys."""
        if not _orders(self.first):
            return True
        metadata = file.metadata.row_group(group)
        columns = (metadata.column(i) for i in range(metadata.num_columns))
        known = next((c.statistics for c in columns if c.path_in_schema == name), None)
        if known is None or not known.has_min_max:
            return True
        ends = pa.array([known.min, known.max], file.schema_arrow.field(name).type)
        return self.may_be_between(as_source(ends, self.first.type))

    def may_be_between(self, ends: pa.Array) -> bool:
        """Return False if no key's first value is at least ``ends[0]`` and at most ``ends[1]``."""
        if not _orders(self.first):
            return True
        inside = pc.and_(pc.greater_equal(self.first, ends[0]), pc.less_equal(self.first, ends[1]))
        return bool(pc.any(inside).as_py())


def _orders(values: pa.Array) -> bool:
    """Return True if Arrow orders the values as the bounds of Parquet do."""
    kind = values.type
    return any(accepts(kind) for accepts in (pa.types.is_integer, pa.types.is_string, pa.types.is_date32))


def _present(columns: list[pa.Array], rows: int) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows without NULL. The TRUNCATE of a changelog has no key."""
    present = np.ones(rows, np.bool_)
    for column in columns:
        if column.null_count:
            present &= column.is_valid().to_numpy(zero_copy_only=False)
    return present


def _among(rows: Keys, keys: Keys) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows whose key is one of ``keys``."""
    found: npt.NDArray[np.bool_] = np.isin(rows.high, keys.high)
    if rows.low is None or keys.low is None or not found.any():
        return found
    at = np.flatnonzero(found)
    found[at] = np.isin(_pairs(rows.high[at], rows.low[at]), _pairs(keys.high, keys.low))
    return found


def _pairs(high: npt.NDArray[Any], low: npt.NDArray[Any]) -> npt.NDArray[Any]:
    pairs = np.empty(len(high), np.dtype([("high", "<u8"), ("low", "<u8")]))
    pairs["high"], pairs["low"] = high, low
    return pairs
