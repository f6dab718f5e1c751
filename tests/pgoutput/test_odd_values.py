"""Values without a representation in Arrow, in PostgreSQL's binary format."""

from __future__ import annotations

import struct

import pytest

from levada.pgoutput.binary import BINARY
from levada.pgoutput.wire import Decoded, Values, WireBuffer, sizes_of
from levada.schema import ColumnType, Kind


def decode(column: ColumnType, *values: bytes) -> Decoded:
    """Decode the values of a column."""
    buffer, start, end = WireBuffer.join(list(values), sizes_of(list(values)))
    return BINARY[column.kind](Values(buffer, start, end - start), column)


def numeric(sign: int, *digits: int) -> bytes:
    """Return a numeric of base-10000 digits before the point, as ``numeric_send`` does."""
    return struct.pack(f">hhHh{len(digits)}h", len(digits), len(digits) - 1, sign, 0, *digits)


@pytest.mark.parametrize("precision", [9, 30])
def test_numerics_that_are_no_number_are_refused(precision: int) -> None:
    """NaN and both infinities are kept as texts, and never become a number."""
    one, specials = numeric(0, 1), [numeric(sign) for sign in (0xC000, 0xD000, 0xF000)]
    found = decode(ColumnType(Kind.DECIMAL, precision=precision, scale=2), one, *specials, numeric(0x4000, 1))
    assert [None if v is None else int(v) for v in found.array.to_pylist()] == [1, None, None, None, -1]
    assert found.refused is not None
    assert found.refused.rows.tolist() == [1, 2, 3]
    assert found.refused.texts == ["NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize(
    ("kind", "form"), [(Kind.DATE, ">i"), (Kind.TIMESTAMP, ">q"), (Kind.TIMESTAMPTZ, ">q")], ids=str
)
def test_infinities_of_dates_and_times_are_refused(kind: Kind, form: str) -> None:
    """They are the largest and the smallest number of PostgreSQL's format."""
    highest = (1 << (8 * struct.calcsize(form) - 1)) - 1
    found = decode(ColumnType(kind), *(struct.pack(form, n) for n in (0, highest, -highest - 1)))
    assert [v is None for v in found.array.to_pylist()] == [False, True, True]
    assert found.refused is not None
    assert found.refused.texts == ["infinity", "-infinity"]
