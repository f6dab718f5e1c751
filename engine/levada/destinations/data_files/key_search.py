"""Finds the rows with some keys in data files, also rows that are deleted by their positions.

A file of the table still has the values of such a row. Bounds in the file's footer exclude most row groups.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.layout import FileLayout, field_id, names_by_id
from levada.destinations.data_files.live_files import BATCH_ROWS, Positions, open_parquet, side_by_side
from levada.destinations.data_files.source_types import as_source
from levada.destinations.data_files.storage import FileSource, table_file
from levada.destinations.erasure import Remaining
from levada.destinations.keys import Keys, new_seed
from levada.errors import DestinationChanged
from levada.printable import counted
from levada.schema import ReplicatedTableSchema

_log = logging.getLogger(__name__)

_NONE = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class FoundRows:
    """The result of a search. ``positions`` has the files with rows of the keys. ``lacking`` lack a key column.

    The key column of such a file was another one, or was added after its rows.
    """

    positions: Mapping[str, Positions]
    lacking: frozenset[str]


@dataclass(frozen=True, slots=True)
class LeftFiles:
    """Files that no state of a table has: those with rows of the keys, and the number of those that cannot be read."""

    found: tuple[str, ...] = ()
    unreadable: int = 0

    def remaining(self, until: str) -> tuple[Remaining, ...]:
        """Return the files that cannot be read as a place that may have the rows, until the event ``until``."""
        if not self.unreadable:
            return ()
        where = f"{counted(self.unreadable, 'incomplete file')} of a writer that was killed, or that writes now"
        return (Remaining(where, until),)


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

    def files(self, storage: FileSource, paths: Iterable[str]) -> FoundRows:
        """Return the files that have one of the keys, with the ascending positions of these rows."""
        wanted = list(paths)
        found = dict(zip(wanted, side_by_side(partial(self.positions, storage), wanted), strict=True))
        positions = {path: at for path, at in found.items() if at is not None and len(at)}
        return FoundRows(positions, frozenset(path for path, at in found.items() if at is None))

    def left_files(self, storage: FileSource, paths: Iterable[str]) -> LeftFiles:
        """Return which of the files that no state of a table has can be removed, because they have rows of the keys.

        A file that was not written to its end cannot be read. It may be one that another writer writes now.
        """
        found, unreadable = [], 0
        for path in paths:
            try:
                positions = self.positions(storage, path)
            except DestinationChanged as error:
                _log.info("%s cannot be searched: %s", path, error.code)
                unreadable += 1
                continue
            if positions is not None and len(positions):
                found.append(path)
        return LeftFiles(tuple(sorted(found)), unreadable)

    def positions(self, storage: FileSource, path: str) -> Positions | None:
        """Return the ascending positions of the rows with one of the keys in a data file.

        Return None for a file that lacks a key column.
        """
        parts = []
        with open_parquet(storage, path) as file, table_file(storage, path):
            by_id = names_by_id(file)
            names = [by_id.get(field_id(f) or 0) for f in self.reader.fields]
            inside = [name for name in names if name is not None]
            if len(inside) < len(names):
                return None
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
