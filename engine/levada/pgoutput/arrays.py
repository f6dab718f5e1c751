"""PostgreSQL's array literals and multiranges, decoded to Arrow lists by the column (PostgreSQL manual, "Arrays").

Arrays with as many dimensions as the column's type has lists in each other become lists, if each lower bound is 1. Any
other array is unrepresentable, except for an empty one, which has no dimensions and is an empty list. A multirange has
the ranges between its braces, and a comma after a bracket separates two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa

from levada.pgoutput.wire import PADDING, Bools, Bytes, Decoded, Ints, RowError, Values, WireBuffer, bitmap, cut
from levada.schema import ColumnType
from levada.schema.types import Notation

_BACKSLASH, _QUOTE, _COMMA, _OPEN, _CLOSE, _SQUARE = b'\\",{}['
_UP_TO, _THROUGH = b")]"
_NULL: Final = int.from_bytes(b"NULL", "big")

ElementDecoder = Callable[[Values, ColumnType], Decoded]


def decode_array(values: Values, column: ColumnType, decode: ElementDecoder) -> Decoded:
    """Decode a column of array literals, and their elements by ``decode``. Raise `RowError` for an invalid literal.

    A row is unrepresentable as a whole if a single element is.
    """
    assert column.element is not None
    ranges = column.notation is Notation.MULTIRANGE
    depth = 0 if ranges else column.depth
    refused = values.only_valid(_has_other_form(values, depth)) if depth else np.zeros(len(values), np.bool_)
    kept = values.where(~refused) if refused.any() else values
    elements, counts = _elements(kept, depth)
    child = _decoded(elements, counts, column.element, decode)
    if child.refused is not None:
        refused |= _marked(len(values), _row_of(child.refused.rows, counts))
        kept = values.where(~refused)
        elements, counts = _elements(kept, depth)
        child = _decoded(elements, counts, column.element, decode)
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum(counts, out=offsets[1:])
    validity = None if kept.valid is None else bitmap(kept.valid)
    array = pa.Array.from_buffers(column.arrow, len(values), [validity, pa.py_buffer(offsets)], children=[child.array])
    return Decoded(array, values.refuse(refused))


def _has_other_form(values: Values, depth: int) -> Bools:
    """Return a mask of the arrays with another number of dimensions or another lower bound than 1.

    PostgreSQL quotes an element that begins with a brace, so braces at the beginning are those of dimensions.
    """
    octets = values.buffer.bytes
    other: Bools = octets[values.start + depth] == _OPEN
    for level in range(1, depth):
        other |= octets[values.start + level] != _OPEN
    other &= (octets[values.start + 1] != _CLOSE) | (values.length != len("{}"))
    bounds: Bools = values.first_bytes() == _SQUARE
    return bounds | other


def _decoded(elements: Values, counts: Ints, kind: ColumnType, decode: ElementDecoder) -> Decoded:
    try:
        return decode(elements, kind)
    except RowError as error:
        raise RowError(int(_row_of(np.array([error.row]), counts)[0]), error.what) from None


def _row_of(elements: Ints, counts: Ints) -> Ints:
    rows: Ints = np.searchsorted(np.cumsum(counts), elements, side="right")
    return rows


def _marked(size: int, at: Ints) -> Bools:
    mask = np.zeros(size, np.bool_)
    mask[at] = True
    return mask


def _elements(values: Values, depth: int) -> tuple[Values, Ints]:
    """Return the elements as values in their own buffer, and the number of elements per row.

    Elements have no quotes and escapes any more. Those that are arrays, with a ``depth`` above 1, stay as they are. So
    do the ranges of a multirange, which has the depth 0.
    """
    rows = np.arange(len(values)) if values.valid is None else np.flatnonzero(values.valid)
    counts = np.zeros(len(values), np.int64)
    if not len(rows):
        return Values(WireBuffer(PADDING), counts[:0], counts[:0]), counts
    data, first, last = _literals(values, rows)
    escaped, escaping = escapes(data)
    quotes = (data == _QUOTE) & ~escaped
    inside = (np.cumsum(quotes) & 1).astype(np.bool_)
    _check_braces(data, first, last, inside, rows)
    bounds = (data == _COMMA) & ~inside
    if not depth:
        bounds[1:] &= (data[:-1] == _UP_TO) | (data[:-1] == _THROUGH)
    elif depth > 1:
        level = _level(data, inside)
        if (unbalanced := level[last] != 0).any():
            raise RowError(int(rows[unbalanced.argmax()]), "an invalid array")
        bounds &= level == 1
    bounds[first] = bounds[last] = True
    at = np.flatnonzero(bounds)
    # An element lies between two bounds, except between the end of one literal and the start of the next.
    of_one = ~_marked(len(data), last)[at[:-1]]
    left, right = at[:-1][of_one] + 1, at[1:][of_one]
    row = np.searchsorted(last, left)
    some = (last - first)[row] > 1
    left, right, row = left[some], right[some], row[some]
    counts[rows] = np.bincount(row, minlength=len(rows))
    if depth != 1:
        return Values(WireBuffer(data.tobytes() + PADDING), left, right - left), counts
    quoted = quotes[left]
    _check_elements(data, left, right, quotes, quoted, rows[row])
    buffer = WireBuffer(data.tobytes() + PADDING)
    valid = quoted | (right - left != 4) | (buffer.view(">u4")[left] != _NULL)
    return without_escapes(buffer, data, escaping, left + quoted, right - quoted, valid), counts


def _level(data: Bytes, text: Bools) -> Ints:
    """Return the number of braces that are open at each byte. Braces within a ``text`` are characters."""
    steps = (data == _OPEN).astype(np.int64) - (data == _CLOSE)
    steps[text] = 0
    return np.cumsum(steps)


def _literals(values: Values, rows: Ints) -> tuple[Bytes, Ints, Ints]:
    """Return the concatenated literals, and the positions of each literal's first and last byte."""
    length = values.length[rows]
    if not length.all():
        raise RowError(int(rows[length.argmin()]), "an invalid array")
    end = np.cumsum(length)
    text = cut(Values(values.buffer, values.start[rows], length), pa.binary())
    data: Bytes = np.frombuffer(text.buffers()[2], np.uint8, count=int(end[-1]))
    return data, end - length, end - 1


def escapes(data: Bytes) -> tuple[Bools, Bools]:
    """Return masks of the bytes that are escaped by a backslash, and of the backslashes that escape."""
    backslash = data == _BACKSLASH
    if not backslash.any():
        return backslash, backslash
    index = np.arange(len(data))
    # In a run of backslashes, the first, third and so on escape the following one.
    run_start = np.maximum.accumulate(np.where(backslash, -1, index)) + 1
    escaping = backslash & ((index - run_start) % 2 == 0)
    escaped = np.zeros_like(escaping)
    escaped[1:] = escaping[:-1]
    return escaped, escaping


def _check_braces(data: Bytes, first: Ints, last: Ints, inside: Bools, rows: Ints) -> None:
    good = (last > first) & (data[first] == _OPEN) & (data[last] == _CLOSE) & ~inside[last]
    if not good.all():
        raise RowError(int(rows[good.argmin()]), "an invalid array")


def _check_elements(data: Bytes, left: Ints, right: Ints, quotes: Bools, quoted: Bools, rows: Ints) -> None:
    """Raise `RowError` for an unquoted empty element, and for a quote anywhere except at both ends of an element."""
    size = right - left
    seen = np.concatenate(([0], np.cumsum(quotes)))
    good = (size > quoted) & (seen[right] - seen[left] == 2 * quoted) & (quotes[right - 1] == quoted)
    if not good.all():
        raise RowError(int(rows[good.argmin()]), "an invalid array")


def without_escapes(buffer: WireBuffer, data: Bytes, escaping: Bools, start: Ints, end: Ints, valid: Bools) -> Values:
    """Return the texts between these positions of ``data`` without the bytes that ``escaping`` marks."""
    if escaping.any():
        moved = np.concatenate(([0], np.cumsum(~escaping)))
        start, end = moved[start], moved[end]
        buffer = WireBuffer(data[~escaping].tobytes() + PADDING)
    return Values(buffer, start, np.where(valid, end - start, 0), None if valid.all() else valid)
