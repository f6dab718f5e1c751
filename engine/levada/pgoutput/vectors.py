"""The values of pgvector's types vector and halfvec, decoded to Arrow lists by the column.

The text is ``[1,2.5,-0]``, without NULL and with at least one number. The binary format is that of ``vector_send``: the
number of dimensions and an unused zero as 16-bit integers, then the numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from levada.pgoutput.wire import PADDING, Decoded, Ints, RowError, Values, WireBuffer, bitmap, cut
from levada.schema import ColumnType
from levada.schema.types import Notation

_OPEN, _CLOSE, _COMMA = b"[],"
_HEADER: Final = 4

ElementDecoder = Callable[[Values, ColumnType], Decoded]


def decode_vector(values: Values, column: ColumnType, decode: ElementDecoder) -> Decoded:
    """Decode a column of texts, and the numbers by ``decode``. Raise `RowError` for an invalid text."""
    assert column.element is not None
    rows = np.arange(len(values)) if values.valid is None else np.flatnonzero(values.valid)
    counts = np.zeros(len(values), np.int64)
    if not len(rows):
        return _lists(values, column, counts, pa.nulls(0, column.element.arrow))
    length = values.length[rows]
    if (short := length < len("[0]")).any():
        raise RowError(int(rows[short.argmax()]), "an invalid vector")
    text = cut(Values(values.buffer, values.start[rows], length), pa.binary())
    end = np.cumsum(length)
    data = np.frombuffer(text.buffers()[2], np.uint8, count=int(end[-1]))
    first, last = end - length, end - 1
    good = (data[first] == _OPEN) & (data[last] == _CLOSE)
    if not good.all():
        raise RowError(int(rows[good.argmin()]), "an invalid vector")
    bounds = data == _COMMA
    bounds[first] = bounds[last] = True
    at = np.flatnonzero(bounds)
    # A number lies between two bounds, except between the end of one text and the start of the next.
    of_one = np.ones(len(at) - 1, np.bool_)
    ends = np.searchsorted(at, last)
    of_one[ends[:-1]] = False
    left, right = at[:-1][of_one] + 1, at[1:][of_one]
    counts[rows] = np.diff(ends, prepend=-1) - 1
    numbers = Values(WireBuffer(data.tobytes() + PADDING), left, right - left)
    try:
        child = decode(numbers, column.element).array
    except RowError as error:
        raise RowError(int(np.searchsorted(np.cumsum(counts), error.row, side="right")), "an invalid vector") from None
    return _lists(values, column, counts, child)


def decode_binary_vector(values: Values, column: ColumnType) -> Decoded:
    """Decode a column in the binary format. Raise `RowError` for a value of another size."""
    size, dtype = (2, ">f2") if column.notation is Notation.HALFVEC else (4, ">f4")
    counts = values.read(">i2").astype(np.int64)
    if values.valid is not None:
        counts = np.where(values.valid, counts, 0)
    wrong = values.only_valid((counts < 0) | (values.length != _HEADER + size * counts))
    if wrong.any():
        raise RowError(int(wrong.argmax()), "an invalid vector")
    start = values.start + _HEADER
    body = cut(Values(values.buffer, start, counts * size), pa.binary())
    total = int(counts.sum())
    octets = np.frombuffer(body.buffers()[2], np.uint8, count=total * size) if total else np.empty(0, np.uint8)
    return _lists(values, column, counts, pa.array(octets.view(dtype).astype(np.float32)))


def _lists(values: Values, column: ColumnType, counts: Ints, child: pa.Array) -> Decoded:
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    validity = None if values.valid is None else bitmap(values.valid)
    return Decoded(
        pa.Array.from_buffers(column.arrow, len(values), [validity, pa.py_buffer(offsets)], children=[child])
    )
