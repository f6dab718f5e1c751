"""The facts that a table's metadata has about a Parquet file, and whether the file's values agree with them.

Readers pass over a file, or a row group, by its counts and bounds. So a changed bit there hides rows from a filter, and
no reader without a filter notices it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Context
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from levada.destinations.data_files.layout import names_by_id
from levada.destinations.data_files.statistics import Leaf, leaves

_EXACT: Final = Context(prec=76)
_INTEGERS: Final = (pa.types.is_integer, pa.types.is_timestamp, pa.types.is_date32, pa.types.is_time)


@dataclass(frozen=True, slots=True)
class ListedColumn:
    """The facts about one column. ``low`` and ``high`` are inclusive bounds, in the form of `physical`."""

    nulls: int | None = None
    low: Any = field(default=None, repr=False)
    high: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ListedFile:
    """The facts about one file. ``columns`` has those of columns outside of lists, by field ID."""

    path: str
    rows: int
    bytes: int
    columns: Mapping[int, ListedColumn] = field(default_factory=dict, repr=False)


def agrees(listed: ListedFile, file: pq.ParquetFile) -> bool:
    """Return True if the counts and bounds in the metadata and in the file's footer are those of the file's values.

    All pages are read.
    """
    names, metadata, rows = names_by_id(file), file.metadata, 0
    if names and not set(listed.columns) <= set(names):
        return False
    numbers = {name: number for number, name in names.items()}
    tops = {i: leaf for i, leaf in enumerate(leaves(file.schema_arrow)) if not leaf.nested}
    nulls = dict.fromkeys(listed.columns, 0)
    for group in range(file.num_row_groups):
        values = file.read_row_group(group)
        rows += values.num_rows
        for i, leaf in tops.items():
            column, number = values.column(leaf.names[0]), numbers.get(leaf.names[0])
            chunk, bounds = metadata.row_group(group).column(i), physical_bounds(column)
            # Arrow ends the process, if the statistics of another type are read.
            if chunk.physical_type != file.schema.column(i).physical_type:
                return False
            stated = [_of_footer(leaf, chunk.statistics)]
            if number in nulls:
                nulls[number] += column.null_count
                stated.append(listed.columns[number])
            if not all(_holds(s, bounds) for s in stated) or stated[0].nulls not in (None, column.null_count):
                return False
    exact = all(listed.columns[number].nulls in (None, counted) for number, counted in nulls.items())
    return rows == metadata.num_rows == listed.rows and (exact or not names)


def is_text_or_bytes(kind: pa.DataType) -> bool:
    """Return True for a type whose bounds are the bytes of its values, such as a text or Iceberg's UUID."""
    is_bytes = pa.types.is_binary(kind) or pa.types.is_fixed_size_binary(kind) or kind == pa.uuid()
    return bool(pa.types.is_string(kind) or is_bytes)


def physical(kind: pa.DataType) -> Callable[[pa.ChunkedArray], pa.ChunkedArray] | None:
    """Return a conversion of values to what Parquet's statistics have of them. None for a type without order."""
    if is_text_or_bytes(kind):
        return lambda values: values.cast(pa.binary())
    if any(matches(kind) for matches in _INTEGERS):
        return lambda values: values.cast(pa.int64() if kind.bit_width == 64 else pa.int32())
    if pa.types.is_floating(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
        return lambda values: values
    return None


def physical_bounds(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    """Return the least and the greatest value, or None without one. NaN does not count."""
    convert = physical(values.type)
    if convert is None:
        return None
    found = pc.min_max(convert(values)).as_py()
    low, high = found["min"], found["max"]
    if low is None or low != low:
        return None
    if pa.types.is_decimal(values.type):
        # The default context would round to 28 digits.
        scale = values.type.scale
        return int(low.scaleb(scale, _EXACT)), int(high.scaleb(scale, _EXACT))
    return low, high


def _of_footer(leaf: Leaf, found: Any) -> ListedColumn:
    if found is None:
        return ListedColumn()
    nulls = found.null_count if found.has_null_count else None
    if not found.has_min_max or physical(leaf.type) is None:
        return ListedColumn(nulls)
    low, high = (_number(leaf.type, raw) for raw in (found.min_raw, found.max_raw))
    return ListedColumn(nulls, low, high)


def _number(kind: pa.DataType, raw: Any) -> Any:
    is_bytes = pa.types.is_decimal(kind) and isinstance(raw, bytes)
    return int.from_bytes(raw, "big", signed=True) if is_bytes else raw


def _holds(stated: ListedColumn, bounds: tuple[Any, Any] | None) -> bool:
    if bounds is None:
        return True
    low, high = bounds
    # Spark states NaN if a value is NaN. Readers ignore such a bound, and no comparison with it is true.
    return not (stated.low is not None and stated.low > low) and not (stated.high is not None and stated.high < high)
