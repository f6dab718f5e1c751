"""Conversion of columns between the Arrow types of data files and those of the source. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.kept_values import converted

_UUID_BYTES: Final = 16
_UUID_CHARS: Final = 36
_HYPHENS: Final = [8, 13, 18, 23]
_DIGITS: Final = np.frombuffer(b"0123456789abcdef", np.uint8)
_PLACES: Final = np.delete(np.arange(_UUID_CHARS), _HYPHENS)


def as_stored(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return a column of the source in the Arrow type of a data file. Raise ArrowInvalid for a value out of range."""
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([as_stored(c, kind) for c in column.chunks], kind)
    if kind == pa.uuid():
        return pa.ExtensionArray.from_storage(kind, _uuid_bytes(column))
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, as_stored(column, kind.storage_type))
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        return _converted_list(column, kind, as_stored)
    return column.cast(kind)


def as_source(column: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array | pa.ChunkedArray:
    """Return a column of a data file in the source's Arrow type. A time may be stored as text.

    Raise `NoConversionError` for another type than that of the column in the file, if it lacks a value.
    """
    if column.type == kind:
        return column
    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([as_source(c, kind) for c in column.chunks], kind)
    if column.type == pa.uuid():
        return as_source(_uuid_texts(column.storage), kind)
    if isinstance(column.type, pa.BaseExtensionType):
        return as_source(column.storage, kind)
    if pa.types.is_time64(kind) and pa.types.is_string(column.type):
        moments = pc.binary_join_element_wise("1970-01-01", column, " ")
        return moments.cast(pa.timestamp("us")).cast(kind)
    if pa.types.is_list(kind) and pa.types.is_list(column.type):
        return _converted_list(column, kind, as_source)
    return converted(column, kind)


def _converted_list(
    column: pa.ListArray, kind: pa.DataType, convert: Callable[[pa.Array, pa.DataType], pa.Array]
) -> pa.ListArray:
    first = column.offsets[0].as_py() if len(column) else 0
    last = column.offsets[-1].as_py() if len(column) else 0
    elements = convert(column.values.slice(first, last - first), kind.value_type)
    offsets = pc.subtract(column.offsets, pa.scalar(first, pa.int32()))
    return pa.ListArray.from_arrays(offsets, elements, type=kind, mask=column.is_null())


def _uuid_bytes(texts: pa.StringArray) -> pa.FixedSizeBinaryArray:
    """Return canonical texts as their 16 bytes."""
    valid = texts.drop_null()
    chars = np.frombuffer(_data(valid), np.uint8)
    digits = chars.reshape(-1, _UUID_CHARS)[:, _PLACES]
    nibbles = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0"))
    values = (nibbles[:, 0::2] << 4) | nibbles[:, 1::2]
    return _spread(
        pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(_UUID_BYTES), len(valid), [None, pa.py_buffer(values.astype(np.uint8).tobytes())]
        ),
        texts,
    )


def _uuid_texts(values: pa.FixedSizeBinaryArray) -> pa.StringArray:
    """Return 16 bytes as canonical texts."""
    valid = values.drop_null()
    start = valid.offset * _UUID_BYTES
    data = np.frombuffer(valid.buffers()[1] or b"", np.uint8)[start : start + len(valid) * _UUID_BYTES]
    data = data.reshape(-1, _UUID_BYTES)
    chars = np.full((len(valid), _UUID_CHARS), ord("-"), np.uint8)
    chars[:, _PLACES[0::2]] = _DIGITS[data >> 4]
    chars[:, _PLACES[1::2]] = _DIGITS[data & 15]
    offsets = np.arange(len(valid) + 1, dtype=np.int32) * _UUID_CHARS
    texts = pa.StringArray.from_buffers(len(valid), pa.py_buffer(offsets), pa.py_buffer(chars.tobytes()))
    return _spread(texts, values)


def _data(texts: pa.StringArray) -> bytes | memoryview:
    begin, end = (texts.offset, texts.offset + len(texts))
    offsets = np.frombuffer(texts.buffers()[1] or b"\0\0\0\0", np.int32)
    return memoryview(texts.buffers()[2] or b"")[offsets[begin] : offsets[end]] if len(texts) else b""


def _spread(dense: pa.Array, where: pa.Array) -> pa.Array:
    """Return ``dense`` at the valid places of ``where``, and NULL at the others."""
    if not where.null_count:
        return dense
    valid = where.is_valid().to_numpy(zero_copy_only=False)
    return dense.take(pa.array(np.cumsum(valid) - 1, mask=~valid))
