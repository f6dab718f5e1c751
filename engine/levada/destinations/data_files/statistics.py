"""The statistics of the columns of a new Parquet file, from the metadata that its writer has. Pure.

Reading the footer back would give the same. Bounds are values of rows, so they appear in no message and no log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.data_files.layout import field_id

ELEMENT: Final = "element"
"""The name of a list's elements, in Arrow and in Parquet."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """A column of a Parquet file: a column of the table, or an innermost part of a list, a struct or a map.

    ``names`` is the path in the table's schema. ``field_id`` is the one of the innermost element.
    """

    names: tuple[str, ...]
    type: pa.DataType
    field_id: int | None

    @property
    def nested(self) -> bool:
        """Whether the values are parts of a list, a struct or a map."""
        return len(self.names) > 1


@dataclass(frozen=True, slots=True)
class ColumnStatistics:
    """The statistics of one column over all row groups of a file.

    ``bytes`` is the compressed size. ``values`` counts values with NULLs. ``nulls`` is None if the file has no
    statistics of the column. ``low`` and ``high`` are inclusive bounds, in Parquet's physical type. They are None
    without a value that is not NULL, and if a row group has no bounds because of a value of more than 4 KB. NaN has no
    place among them.
    """

    leaf: Leaf
    bytes: int
    values: int
    nulls: int | None
    low: Any = field(default=None, repr=False)
    high: Any = field(default=None, repr=False)


def column_statistics(schema: pa.Schema, metadata: pq.FileMetaData) -> tuple[ColumnStatistics, ...]:
    """Return the statistics of each leaf column. ``schema`` is the one that the file was written with."""
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    return tuple(_merged(leaf, [group.column(i) for group in groups]) for i, leaf in enumerate(leaves(schema)))


@lru_cache(maxsize=256)
def leaves(schema: pa.Schema) -> tuple[Leaf, ...]:
    """Return the leaf columns of a file with this schema, in Parquet's order."""
    return tuple(leaf for f in schema for leaf in _leaves_of(f, ()))


def _leaves_of(column: pa.Field, outer: tuple[str, ...]) -> Iterator[Leaf]:
    names = (*outer, column.name)
    if pa.types.is_list(column.type):
        yield from _leaves_of(column.type.value_field, names)
    elif pa.types.is_struct(column.type):
        for inner in column.type:
            yield from _leaves_of(inner, names)
    elif pa.types.is_map(column.type):
        for inner in (column.type.key_field, column.type.item_field):
            yield from _leaves_of(inner, names)
    else:
        yield Leaf(names, column.type, field_id(column))


def _merged(leaf: Leaf, chunks: list[Any]) -> ColumnStatistics:
    size = sum(chunk.total_compressed_size for chunk in chunks)
    values = sum(chunk.num_values for chunk in chunks)
    found = [chunk.statistics for chunk in chunks]
    if any(s is None or not s.has_null_count for s in found):
        return ColumnStatistics(leaf, size, values, None)
    nulls = sum(s.null_count for s in found)
    bounded = [s for s in found if s.has_min_max]
    if leaf.nested or not bounded or any(_hidden(leaf, s) for s in found):
        return ColumnStatistics(leaf, size, values, nulls)
    if len(bounded) == 1:
        return ColumnStatistics(leaf, size, values, nulls, bounded[0].min_raw, bounded[0].max_raw)
    order = _order(leaf.type)
    low, high = min((s.min_raw for s in bounded), key=order), max((s.max_raw for s in bounded), key=order)
    return ColumnStatistics(leaf, size, values, nulls, low, high)


def _hidden(leaf: Leaf, statistics: Any) -> bool:
    """Return True if a row group has values but no bounds of them.

    Those of other row groups are then no bounds of the file, and readers would pass over the values. Floats without
    bounds are all NaN.
    """
    return not (statistics.has_min_max or pa.types.is_floating(leaf.type)) and statistics.num_values > 0


def _order(kind: pa.DataType) -> Callable[[Any], Any]:
    # Bytes compare as Parquet orders them, without a sign, and so does UTF-8 as its characters. A decimal has a sign.
    if pa.types.is_decimal(kind):
        return lambda raw: int.from_bytes(raw, "big", signed=True) if isinstance(raw, bytes) else raw
    return lambda raw: raw
