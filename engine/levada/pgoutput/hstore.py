"""The values of the extension hstore, decoded to Arrow maps by the column.

The text is ``"a"=>"1", "b"=>NULL`` (PostgreSQL manual, "hstore"). Each key and each value that is not NULL has quotes,
and backslashes before quotes and backslashes within. No key occurs twice, and the keys have PostgreSQL's order. The
text of an empty hstore is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from levada.pgoutput.arrays import escapes, without_escapes
from levada.pgoutput.wire import PADDING, Bools, Bytes, Ints, RowError, Values, WireBuffer, bitmap, cut, strings
from levada.schema import ColumnType, Kind

_QUOTE, _COMMA, _BLANK = b'", '
_ARROW: Final = int.from_bytes(b"=>", "big")
_NULL: Final = int.from_bytes(b"NULL", "big")
_GAP: Final = len(", ")
_MAP: Final = ColumnType(Kind.MAP).arrow


@dataclass(frozen=True, slots=True)
class _Pairs:
    """The positions of the keys and values between their quotes, and those at which the whole pairs end.

    A value that is NULL has no length.
    """

    key: Ints
    key_end: Ints
    value: Ints
    value_end: Ints
    valid: Bools
    end: Ints


def decode_hstore(values: Values) -> pa.Array:
    """Return a column of texts as maps. Raise `RowError` for an invalid text."""
    rows = np.arange(len(values)) if values.valid is None else np.flatnonzero(values.valid)
    length = values.length[rows]
    text = cut(Values(values.buffer, values.start[rows], length), pa.binary())
    ends = np.cumsum(length)
    data = np.frombuffer(text.buffers()[2] or b"", np.uint8, count=int(ends[-1]) if len(rows) else 0)
    buffer = WireBuffer(data.tobytes() + PADDING)
    escaped, escaping = escapes(data)
    quotes = np.flatnonzero((data == _QUOTE) & ~escaped)
    pairs = _pairs(buffer, quotes, ends, rows)
    row = np.searchsorted(ends, pairs.key, side="right")
    _check_gaps(data, pairs, row, ends, rows)
    counts = np.zeros(len(values), np.int64)
    counts[rows] = np.bincount(row, minlength=len(rows))
    every = np.ones(len(row), np.bool_)
    try:
        keys = strings(without_escapes(buffer, data, escaping, pairs.key, pairs.key_end, every))
        texts = strings(without_escapes(buffer, data, escaping, pairs.value, pairs.value_end, pairs.valid))
    except RowError as error:
        raise RowError(int(rows[row[error.row]]), error.what) from None
    entries = pa.StructArray.from_arrays([keys, texts], fields=[_MAP.key_field, _MAP.item_field])
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    validity = None if values.valid is None else bitmap(values.valid)
    return pa.Array.from_buffers(_MAP, len(values), [validity, pa.py_buffer(offsets)], children=[entries])


def _pairs(buffer: WireBuffer, quotes: Ints, ends: Ints, rows: Ints) -> _Pairs:
    """Return the pairs. A text between quotes is a key if an arrow follows, and else the value of the one before."""
    inside = np.diff(np.searchsorted(quotes, ends), prepend=0)
    if (odd := inside % 2 == 1).any():
        raise _invalid(rows, int(odd.argmax()))
    first, last = quotes[0::2], quotes[1::2]
    is_key = buffer.view(">u2")[last + 1] == _ARROW
    number = np.flatnonzero(is_key)
    after = last[number] + 1 + len("=>")
    quoted = buffer.bytes[after] == _QUOTE
    is_null = buffer.view(">u4")[after] == _NULL
    # The text after a key with a quoted value is that value, and every other text is a key.
    follows = np.minimum(number + 1, max(len(first) - 1, 0))
    wrong = np.where(quoted, is_key[follows] | (first[follows] != after), ~is_null)
    if wrong.any():
        raise _invalid(rows, int(np.searchsorted(ends, first[number[wrong.argmax()]], side="right")))
    if len(first) != len(number) + np.count_nonzero(quoted):
        loose = np.ones(len(first), np.bool_)
        loose[number] = loose[follows[quoted]] = False
        raise _invalid(rows, int(np.searchsorted(ends, first[loose.argmax()], side="right")))
    value = after + quoted
    value_end = np.where(quoted, last[follows] if len(first) else after, value)
    return _Pairs(first[number] + 1, last[number], value, value_end, quoted, np.where(quoted, value_end + 1, after + 4))


def _check_gaps(data: Bytes, pairs: _Pairs, row: Ints, ends: Ints, rows: Ints) -> None:
    """Raise `RowError` unless a comma and a blank separate the pairs of a row, with nothing before and after them."""
    if not len(rows):
        return
    starts = np.concatenate(([0], ends[:-1]))
    is_first = np.diff(row, prepend=-1) > 0
    before = np.where(is_first, starts[row], np.concatenate(([0], pairs.end[:-1] + _GAP)) if len(row) else row)
    wrong = pairs.key - 1 != before
    between = pairs.end[:-1][~is_first[1:]]
    covered = starts.copy()
    covered[row] = pairs.end
    bad = covered != ends
    bad[row[wrong]] = True
    parts = (data[between] == _COMMA) & (data[np.minimum(between + 1, len(data) - 1)] == _BLANK)
    bad[row[:-1][~is_first[1:]][~parts]] = True
    if bad.any():
        raise _invalid(rows, int(bad.argmax()))


def _invalid(rows: Ints, at: int) -> RowError:
    return RowError(int(rows[min(at, len(rows) - 1)]), "an invalid hstore")
