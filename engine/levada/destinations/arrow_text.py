"""The canonical text of values in Arrow, as `levada.destinations.verification` defines it, a column at a time. Pure."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.verification import is_framed_by_length
from levada.schema import ColumnType, Kind

NULL_FRAME: Final = "~|"
_SINCE_2000_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970, both in UTC."""
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_BYTES: Final = 8


def framed(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Return the framed text of each value, which has the Arrow type of the ``kind``."""
    text = canonical_text(values, kind)
    if is_framed_by_length(kind):
        text = pc.binary_join_element_wise(pc.binary_length(text).cast(pa.string()), text, ":")
    return pc.fill_null(pc.binary_join_element_wise(text, "|", ""), NULL_FRAME)


def canonical_text(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Return the canonical text of each value. NULL has none."""
    match kind.kind:
        case Kind.FLOAT4 | Kind.FLOAT8:
            doubles = values.cast(pa.float64())
            bits = pc.fill_null(doubles, 0.0).to_numpy(zero_copy_only=False).view(np.uint64)
            return pc.if_else(pc.is_nan(doubles), "nan", _hexadecimal(bits, values))
        case Kind.DECIMAL:
            return decimal_text(values)
        case Kind.BYTEA:
            digests = [None if v is None else hashlib.md5(v, usedforsecurity=False) for v in values.to_pylist()]
            return pa.array([None if d is None else d.hexdigest() for d in digests], pa.string())
        case Kind.DATE:
            return values.cast(pa.int32()).cast(pa.string())
        case Kind.TIMESTAMP | Kind.TIMESTAMPTZ:
            micros = pc.fill_null(values.cast(pa.int64()), _SINCE_2000_US).to_numpy(zero_copy_only=False)
            return _hexadecimal((micros - _SINCE_2000_US).view(np.uint64), values)
        case Kind.ARRAY:
            assert kind.element is not None
            return _array_text(values, kind.element)
        case Kind.RANGE:
            return _range_text(values, kind)
        case Kind.MAP:
            return map_text(values)
    return values.cast(pa.string())


def shown_text(values: pa.Array, kind: ColumnType) -> pa.Array:
    """Return the text of each value for people."""
    match kind.kind:
        case Kind.DECIMAL:
            return decimal_text(values)
        case Kind.BYTEA:
            return pa.array([None if v is None else "\\x" + v.hex() for v in values.to_pylist()], pa.string())
        case Kind.ARRAY | Kind.RANGE:
            return pa.array([None if v is None else str(v) for v in values.to_pylist()], pa.string())
        case Kind.MAP:
            return map_text(values)
    return values.cast(pa.string())


def _array_text(values: pa.ListArray, element: ColumnType) -> pa.Array:
    first, last = (values.offsets[i].as_py() if len(values) else 0 for i in (0, -1))
    frames = framed(values.values.slice(first, last - first), element)
    offsets = pc.subtract(values.offsets, pa.scalar(first, pa.int32()))
    lists = pa.ListArray.from_arrays(offsets, frames, mask=values.is_null())
    return pc.binary_join_element_wise("[", pc.binary_join(lists, ""), "]", "")


def _range_text(values: pa.StructArray, kind: ColumnType) -> pa.Array:
    assert kind.element is not None
    lower, upper, lower_inc, upper_inc, empty = values.flatten()
    first, last = pc.if_else(lower_inc, "[", "("), pc.if_else(upper_inc, "]", ")")
    text = pc.binary_join_element_wise(first, framed(lower, kind.element), framed(upper, kind.element), last, "")
    return pc.if_else(empty, "empty", text)


def map_text(values: pa.MapArray) -> pa.Array:
    """Return maps from text to text as the extension hstore writes its values. NULL stays NULL."""
    first, last = (values.offsets[i].as_py() if len(values) else 0 for i in (0, -1))
    keys, texts = (_quoted(part.slice(first, last - first)) for part in (values.keys, values.items))
    pairs = pc.binary_join_element_wise(keys, pc.fill_null(texts, "NULL"), "=>")
    offsets = pc.subtract(values.offsets, pa.scalar(first, pa.int32()))
    return pc.binary_join(pa.ListArray.from_arrays(offsets, pairs, mask=values.is_null()), ", ")


def _quoted(texts: pa.Array) -> pa.Array:
    for plain in ("\\", '"'):
        texts = pc.replace_substring(texts, plain, "\\" + plain)
    return pc.binary_join_element_wise('"', texts, '"', "")


def _hexadecimal(numbers: npt.NDArray[Any], where: pa.Array) -> pa.Array:
    """Return 16 digits for each number of 64 bits, and NULL where ``where`` has it."""
    data = numbers.astype(">u8").view(np.uint8).reshape(-1, _BYTES)
    chars = np.empty((len(numbers), 2 * _BYTES), np.uint8)
    chars[:, 0::2], chars[:, 1::2] = _HEX[data >> 4], _HEX[data & 15]
    offsets = np.arange(len(numbers) + 1, dtype=np.int32) * (2 * _BYTES)
    texts = pa.StringArray.from_buffers(len(numbers), pa.py_buffer(offsets), pa.py_buffer(chars.tobytes()))
    return pc.if_else(where.is_valid(), texts, pa.scalar(None, pa.string())) if where.null_count else texts


def decimal_text(values: pa.Array) -> pa.Array:
    """Return the text of decimals with all digits of their scale, as PostgreSQL prints them. NULL stays NULL."""
    scale = values.type.scale
    # As a decimal without a scale, because Arrow prints small values with an exponent.
    unscaled = pa.Array.from_buffers(
        pa.decimal128(38, 0), len(values), values.buffers(), offset=values.offset, null_count=-1
    )
    digits = pc.cast(unscaled, pa.string())
    if scale == 0:
        return digits
    negative = pc.starts_with(digits, "-")
    padded = pc.utf8_lpad(pc.utf8_ltrim(digits, "-"), width=scale + 1, padding="0")
    whole = pc.utf8_slice_codeunits(padded, 0, -scale)
    sign = pc.if_else(negative, "-", "")
    return pc.binary_join_element_wise(sign, whole, ".", pc.utf8_slice_codeunits(padded, -scale), "")
