"""Arrow columns as the rows of a text COPY (PostgreSQL manual, COPY, "Text Format"). Pure.

The text format suits every type. A column that is carried as PostgreSQL's text, such as an interval or a range, has no
binary form here, and one COPY cannot mix both formats. Each value is its canonical text, which the type's input
function reads back exactly.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.arrow_text import map_text
from levada.destinations.temporal_text import temporal_text
from levada.pgoutput.temporal import date_text, timestamp_text

_SLICE_BYTES: Final = 4 << 20
"""The Arrow bytes of the rows that are formatted together."""
_LARGE_BYTES: Final = 1 << 28
"""Above this size, in bytes, escaping might exceed the 2 GiB of Arrow's small strings."""

_ESCAPED: Final = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
"""The backslash is first, because the others are replaced by texts with a backslash."""


def copy_rows(
    rows: pa.Table | pa.RecordBatch, *, slice_bytes: int = _SLICE_BYTES, large_bytes: int = _LARGE_BYTES
) -> Iterator[memoryview]:
    """Yield the rows as COPY's text format, in slices of whole rows."""
    table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
    if not table.num_rows:
        return
    step = max(1, slice_bytes * table.num_rows // max(table.nbytes, 1))
    for first in range(0, table.num_rows, step):
        yield _lines(table.slice(first, step).combine_chunks(), large_bytes)


def _lines(table: pa.Table, large_bytes: int) -> memoryview:
    kind = pa.large_string() if table.nbytes > large_bytes else pa.string()
    columns = [_escaped(value_text(_chunk(column), kind)) for column in table.columns]
    if not columns:
        return memoryview(b"\n" * table.num_rows)
    rows = pc.binary_join_element_wise(*columns, pa.scalar("\t", kind), null_handling="replace", null_replacement="\\N")
    return memoryview(_data(pc.binary_join_element_wise(rows, pa.scalar("", kind), pa.scalar("\n", kind))))


def _chunk(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def value_text(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return PostgreSQL's text of each value, as Arrow strings of the type ``kind``. NULL stays NULL."""
    if values.null_count == len(values):
        return pa.nulls(len(values), kind)
    return next((text for accepts, text in _TEXTS if accepts(values.type)), _cast)(values, kind)


def _cast(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return pc.cast(values, kind)


def _bytes(values: pa.Array, kind: pa.DataType) -> pa.Array:
    binary = pa.large_binary() if kind == pa.large_string() else pa.binary()
    values = pc.cast(values, binary)
    dtype = np.int64 if binary == pa.large_binary() else np.int32
    offsets = np.frombuffer(values.buffers()[1], dtype)[values.offset : values.offset + len(values) + 1]
    digits = binascii.hexlify(_data(values))
    doubled = ((offsets - offsets[0]) * 2).astype(dtype)
    # A NULL may have bytes, which stay behind it.
    text = pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(doubled), pa.py_buffer(digits)])
    text = pc.binary_join_element_wise(pa.scalar("\\x", kind), text, pa.scalar("", kind))
    return _where_valid(values, text)


def _days(values: pa.Array, kind: pa.DataType) -> pa.Array:
    return temporal_text(values, date_text, kind=kind)


def _stamps(values: pa.Array, kind: pa.DataType) -> pa.Array:
    # Without a zone: every session has the time zone UTC.
    return temporal_text(values, lambda n: timestamp_text(n, zone=False), kind=kind)


def _lists(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return array literals (PostgreSQL manual, "Array Input and Output Syntax")."""
    lengths = pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)
    elements = value_text(values.flatten(), kind)
    if _needs_quotes(values.type.value_type):
        for plain in ("\\", '"'):
            elements = pc.replace_substring(elements, plain, "\\" + plain)
        quote = pa.scalar('"', kind)
        elements = pc.binary_join_element_wise(quote, elements, quote, pa.scalar("", kind))
    elements = pc.fill_null(elements, pa.scalar("NULL", kind))
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    if kind == pa.large_string():
        lists: pa.Array = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), elements)
    else:
        lists = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), elements)
    joined = pc.binary_join(lists, pa.scalar(",", kind))
    text = pc.binary_join_element_wise(pa.scalar("{", kind), joined, pa.scalar("}", kind), pa.scalar("", kind))
    return _where_valid(values, text)


def _ranges(values: pa.StructArray, kind: pa.DataType) -> pa.Array:
    """Return texts of built-in range types, whose bounds need no quotes: they have no comma and no bracket."""
    lower, upper, lower_inc, upper_inc, empty = values.flatten()
    none = pa.scalar("", kind)
    bounds = (pc.fill_null(value_text(bound, kind), none) for bound in (lower, upper))
    parts = [pc.if_else(lower_inc, pa.scalar("[", kind), pa.scalar("(", kind)), next(bounds)]
    parts += [pa.scalar(",", kind), next(bounds), pc.if_else(upper_inc, pa.scalar("]", kind), pa.scalar(")", kind))]
    text = pc.if_else(empty, pa.scalar("empty", kind), pc.binary_join_element_wise(*parts, none))
    return _where_valid(values, text)


def _maps(values: pa.MapArray, kind: pa.DataType) -> pa.Array:
    return pc.cast(map_text(values), kind)


def _needs_quotes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _where_valid(values: pa.Array, text: pa.Array) -> pa.Array:
    return pc.if_else(values.is_valid(), text, pa.scalar(None, text.type)) if values.null_count else text


_TEXTS: Final[Sequence[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array, pa.DataType], pa.Array]]]] = (
    (pa.types.is_binary, _bytes),
    (pa.types.is_date32, _days),
    (pa.types.is_timestamp, _stamps),
    (pa.types.is_list, _lists),
    (pa.types.is_struct, _ranges),
    (pa.types.is_map, _maps),
)
"""The types whose text is not Arrow's own."""


def _escaped(text: pa.Array) -> pa.Array:
    octets = np.frombuffer(_data(text), np.uint8)
    for plain, escaped in _ESCAPED:
        if (octets == ord(plain)).any():
            text = pc.replace_substring(text, plain, escaped)
    return text


def _data(array: pa.Array) -> Any:
    """Return the bytes of the values, without those before and after a slice."""
    _, offsets, data = array.buffers()
    if data is None or offsets is None:
        return b""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    ends = np.frombuffer(offsets, np.int64 if large else np.int32)[array.offset : array.offset + len(array) + 1]
    return data.slice(int(ends[0]), int(ends[-1] - ends[0]))
