"""The ends of the tables' segments in a manifest, packed because every manifest has those of all tables."""

from __future__ import annotations

import base64
import zlib
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, Self

import numpy as np
from pydantic import PlainSerializer, PlainValidator

from levada.values import Lsn, TableId

_TABLE: Final = np.dtype("<u4")
_END: Final = np.dtype("<u8")


class PackedEnds(Mapping[TableId, Lsn]):
    """An immutable mapping from table to LSN, as two arrays in the order of the tables. A table takes 12 bytes."""

    __slots__ = ("_ends", "_tables")

    def __init__(self, tables: np.ndarray[Any, Any], ends: np.ndarray[Any, Any]) -> None:
        # Python's bisect finds a table in them three times as fast as numpy does.
        self._tables = array("I", tables.astype("I").tobytes())
        self._ends = array("Q", ends.astype("Q").tobytes())

    def __getitem__(self, table: TableId) -> Lsn:
        at = bisect_left(self._tables, table)
        if at == len(self._tables) or self._tables[at] != table:
            raise KeyError(table)
        return Lsn(self._ends[at])

    def __iter__(self) -> Iterator[TableId]:
        return map(TableId, self._tables.tolist())

    def __len__(self) -> int:
        return len(self._tables)

    @classmethod
    def part_of(cls, ends: Mapping[TableId, Lsn], tables: Collection[TableId]) -> Self:
        """Return the ends of these tables."""
        if isinstance(ends, PackedEnds):
            every = np.frombuffer(ends._tables, "I")
            kept = np.isin(every, np.fromiter(tables, _TABLE, len(tables)))
            return cls(every[kept], np.frombuffer(ends._ends, "Q")[kept])
        found = {table: end for table in sorted(tables) if (end := ends.get(table)) is not None}
        return cls(np.fromiter(found.keys(), _TABLE, len(found)), np.fromiter(found.values(), _END, len(found)))

    def above(self, known: Mapping[TableId, Lsn]) -> dict[TableId, Lsn]:
        """Return the ends that are higher than the known ones, and those of unknown tables."""
        # Plain integers equal the keys and ends, and objects are made only for the few that are returned.
        pairs: Iterator[tuple[Any, Any]] = zip(self._tables.tolist(), self._ends.tolist(), strict=True)
        return {TableId(table): Lsn(end) for table, end in pairs if end > known.get(table, -1)}

    @classmethod
    def loads(cls, text: object) -> Self:
        """Parse the result of `pack`. Raise ValueError for anything else."""
        if not isinstance(text, str):
            raise ValueError("the packed ends are not a text")
        try:
            data = zlib.decompress(base64.b64decode(text, validate=True))
        except zlib.error:
            raise ValueError("the packed ends cannot be unpacked") from None
        count, rest = divmod(len(data), _TABLE.itemsize + _END.itemsize)
        if rest:
            raise ValueError("the packed ends are cut short")
        return cls(np.frombuffer(data, _TABLE, count), np.frombuffer(data, _END, count, count * _TABLE.itemsize))


def pack(ends: Mapping[TableId, Lsn]) -> str:
    """Return the mapping as a text."""
    tables = np.fromiter(ends.keys(), _TABLE, len(ends))
    order = np.argsort(tables)
    values = np.fromiter(ends.values(), _END, len(ends))
    return base64.b64encode(zlib.compress(tables[order].tobytes() + values[order].tobytes(), 1)).decode()


Ends = Annotated[Mapping[TableId, Lsn], PlainSerializer(pack), PlainValidator(PackedEnds.loads)]
"""A mapping that is packed in JSON."""
