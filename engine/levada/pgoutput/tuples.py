"""TupleData of many rows, decoded column by column: the kinds and lengths of one column for all rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from levada.pgoutput.wire import Bools, Ints, RowError, Values, WireBuffer

_TEXT: Final = ord("t")
_NULL: Final = ord("n")
_UNCHANGED: Final = ord("u")


@dataclass(frozen=True, slots=True)
class TupleColumn:
    """One column of many tuples. ``unchanged`` is a mask of TOASTed values that were not sent, or None."""

    values: Values
    unchanged: Bools | None


def read_tuples(buffer: WireBuffer, start: Ints, end: Ints, columns: int) -> tuple[list[TupleColumn], Ints]:
    """Return the columns of tuples that begin at ``start``, and the end of each tuple.

    ``end`` is the exclusive limit of each tuple. Raise `RowError` if a value exceeds it.
    """
    _require(end - start >= 2, "a truncated tuple")
    _require(buffer.int2(start) == columns, "a tuple whose number of columns is not its relation's")
    at = start + 2
    found = []
    for _ in range(columns):
        column, at = _column(buffer, at)
        _require(at <= end, "a value that exceeds its message")
        found.append(column)
    return found, at


def _column(buffer: WireBuffer, at: Ints) -> tuple[TupleColumn, Ints]:
    # A position is at most the end of the data before the padding, so the kind and the field are readable.
    kinds = buffer.bytes[at]
    fields = buffer.fields(at + 1)
    length = fields.length()
    is_text = kinds == _TEXT
    if is_text.all():
        start = at + 5
        return TupleColumn(Values(buffer, start, length, None, fields), None), start + length
    unchanged = kinds == _UNCHANGED
    _require(is_text | unchanged | (kinds == _NULL), "a value of an unknown format")
    length = np.where(is_text, length, 0)
    start = at + np.where(is_text, 5, 1)
    values = Values(buffer, start, length, is_text, fields)
    return TupleColumn(values, unchanged if unchanged.any() else None), start + length


def _require(good: Bools, otherwise: str) -> None:
    if not good.all():
        raise RowError(int(good.argmin()), otherwise)
