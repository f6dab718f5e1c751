"""The values of PostgreSQL's built-in range types, decoded to Arrow structs by the column.

The text is ``empty``, or ``[lower,upper)`` with a bracket or a parenthesis at each end (PostgreSQL manual, "Range Input
and Output"). An infinite bound has no text. The bounds of built-in types have no commas and no escapes, and quotes only
around a whole timestamp.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.pgoutput.wire import Bools, Decoded, Ints, RowError, Values, bitmap, booleans, cut
from levada.schema import ColumnType

_OPEN, _CLOSE, _INCLUSIVE, _UP_TO, _QUOTE, _E = b'()[]"e'
_EMPTY: Final = len("empty")

ElementDecoder = Callable[[Values, ColumnType], Decoded]


def decode_range(values: Values, column: ColumnType, decode: ElementDecoder) -> Decoded:
    """Decode a column of texts, and their bounds by ``decode``. Raise `RowError` for an invalid text.

    A row is unrepresentable as a whole if one of its bounds is.
    """
    assert column.element is not None
    octets, end = values.buffer.bytes, values.start + values.length
    first, last = values.first_bytes(), octets[end - 1]
    empty = values.only_valid((first == _E) & (values.length == _EMPTY))
    bounded = values.only_valid(~empty)
    comma = _commas(values, bounded)
    ends = (first == _INCLUSIVE) | (first == _OPEN), (last == _UP_TO) | (last == _CLOSE)
    wrong = bounded & (~ends[0] | ~ends[1] | (comma < 1))
    if wrong.any():
        raise RowError(int(wrong.argmax()), "an invalid range")
    lower = _bound(values, values.start + 1, comma - 1, bounded)
    upper = _bound(values, values.start + comma + 1, values.length - comma - 2, bounded)
    bounds, refused = _decoded((lower, upper), column.element, decode)
    if refused.any():
        bounds, _ = _decoded((lower.where(~refused), upper.where(~refused)), column.element, decode)
    valid = ~refused if values.valid is None else values.valid & ~refused
    flags = [booleans(flag, None) for flag in (bounded & (first == _INCLUSIVE), bounded & (last == _UP_TO), empty)]
    array = pa.Array.from_buffers(
        column.arrow, len(values), [None if valid.all() else bitmap(valid)], children=[*bounds, *flags]
    )
    return Decoded(array, values.refuse(refused))


def _commas(values: Values, bounded: Bools) -> Ints:
    """Return the position of the only comma in each text, -1 if there is none or another one."""
    texts = cut(values.where(bounded), pa.binary())
    one = pc.equal(pc.count_substring(texts, ","), 1)
    found = pc.if_else(one, pc.find_substring(texts, ","), -1)
    commas: Ints = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return commas


def _bound(values: Values, start: Ints, length: Ints, bounded: Bools) -> Values:
    """Return the texts of a bound, without quotes. An infinite one is NULL."""
    finite = bounded & (length > 0)
    start, length = np.where(finite, start, values.start), np.where(finite, length, 0)
    quoted = finite & (values.buffer.bytes[start] == _QUOTE)
    return Values(values.buffer, start + quoted, length - 2 * quoted, None if finite.all() else finite)


def _decoded(bounds: tuple[Values, Values], kind: ColumnType, decode: ElementDecoder) -> tuple[list[pa.Array], Bools]:
    found = [decode(bound, kind) for bound in bounds]
    refused = np.zeros(len(bounds[0]), np.bool_)
    for bound in found:
        if bound.refused is not None:
            refused[bound.refused.rows] = True
    return [bound.array for bound in found], refused
