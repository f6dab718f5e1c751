"""Vectors of pgvector in both formats, and numerics that do not fit the type that a manifest chooses."""

from __future__ import annotations

import struct
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from levada.pgoutput.binary import binary_decoder
from levada.pgoutput.text import decode_text
from levada.pgoutput.wire import Decoded, RowError, Values, WireBuffer, sizes_of
from levada.schema import ColumnType, Kind
from levada.schema.types import Notation

FLOATS = ColumnType(Kind.FLOAT4)
VECTOR = ColumnType(Kind.ARRAY, element=FLOATS, notation=Notation.VECTOR)
HALFVEC = ColumnType(Kind.ARRAY, element=FLOATS, notation=Notation.HALFVEC)


def column(values: list[bytes | None]) -> Values:
    """Return the values of a column, with NULL for None."""
    data = [v or b"" for v in values]
    buffer, start, end = WireBuffer.join(data, sizes_of(data))
    valid = np.array([v is not None for v in values])
    return Values(buffer, start, end - start, None if valid.all() else valid)


def binary(kind: ColumnType, values: list[bytes | None]) -> Decoded:
    """Decode values in the binary format."""
    decode = binary_decoder(kind)
    assert decode is not None
    return decode(column(values), kind)


@given(st.lists(st.none() | st.lists(st.floats(width=32, allow_nan=False), min_size=1, max_size=9), max_size=9))
def test_both_formats_have_the_same_numbers(rows: list[list[float] | None]) -> None:
    """Of any length, with NULL between them, with the sign of zero and the smallest number."""
    texts = [None if r is None else f"[{','.join(str(np.float32(x)) for x in r)}]".encode() for r in rows]
    sent = [None if r is None else struct.pack(f">hh{len(r)}f", len(r), 0, *r) for r in rows]
    text, data = decode_text(column(texts), VECTOR).array, binary(VECTOR, sent).array
    assert text.type == data.type == VECTOR.arrow
    assert repr(text.to_pylist()) == repr(data.to_pylist())
    assert repr(data.to_pylist()) == repr([None if r is None else list(map(float, r)) for r in rows])


def test_halves_are_exact() -> None:
    """Every 16-bit float is a 32-bit one."""
    halves = [0.5, -0.0, 65504.0, 6e-8, float(np.float16(0.1))]
    found = binary(HALFVEC, [struct.pack(">hh5e", 5, 0, *halves), None]).array.to_pylist()
    assert repr(found) == repr([[float(np.float16(h)) for h in halves], None])


@pytest.mark.parametrize("text", [b"", b"[]", b"[1", b"1]", b"[1,]", b"[,1]", b"[1,,2]", b"[1,x]", b"{1}", b"[NULL]"])
def test_a_text_that_is_no_vector(text: bytes) -> None:
    """Its row is named."""
    with pytest.raises(RowError) as raised:
        decode_text(column([b"[1]", None, text]), VECTOR)
    assert raised.value.row == 2


@pytest.mark.parametrize("data", [b"", b"\0\1\0\0", b"\0\1\0\0\0\0\0", b"\xff\xff\0\0"])
def test_data_that_is_no_vector(data: bytes) -> None:
    """Its row is named."""
    with pytest.raises(RowError) as raised:
        binary(VECTOR, [struct.pack(">hhf", 1, 0, 1), data])
    assert raised.value.row == 1


def numeric_send(number: Decimal) -> bytes:
    """Return a finite number as PostgreSQL sends it."""
    sign, _, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    scale = max(0, -exponent)
    whole, _, rest = f"{number.copy_abs():f}".partition(".")
    whole, rest = whole.rjust(-(-len(whole) // 4) * 4, "0"), rest.ljust(-(-len(rest) // 4) * 4, "0")
    groups = [int((whole + rest)[i : i + 4]) for i in range(0, len(whole + rest), 4)]
    weight = len(whole) // 4 - 1
    while groups and not groups[0]:
        groups, weight = groups[1:], weight - 1
    while groups and not groups[-1]:
        groups = groups[:-1]
    weight = weight if groups else 0
    return struct.pack(f">hhHh{len(groups)}h", len(groups), weight, sign * 0x4000, scale, *groups)


NUMBERS = st.decimals(allow_nan=False, allow_infinity=False, places=None).filter(
    lambda d: abs(int(d.as_tuple().exponent)) < 400
)
TYPES = st.integers(1, 38).flatmap(lambda p: st.tuples(st.just(p), st.integers(0, p)))
DIGITS = st.text("0123456789", max_size=45)
LONG = st.builds(
    lambda sign, whole, rest: Decimal(f"{sign}{whole}0.{rest}0"), st.sampled_from(("", "-")), DIGITS, DIGITS
)


def _scaled(number: Decimal, scale: int) -> Fraction:
    return Fraction(number) * 10**scale


@given(st.lists(NUMBERS | LONG | st.decimals(-1000, 1000, places=3), max_size=9), TYPES)
@example([Decimal(f"1.{1:039}")], (1, 0))
@example([Decimal(f"-7.{1:041}"), Decimal("0.5")], (38, 2))
@example([Decimal(f"0.{1:038}"), Decimal(f"-0.{1:038}")], (38, 38))
@example([Decimal("-5174325175793810243.2"), Decimal("0.5")], (38, 22))
@example([Decimal("12345678901234567890123")], (38, 20))
@example([Decimal("3337691375731167341208493971063419.18516")], (37, 4))
def test_a_numeric_fits_or_is_refused_with_its_text(numbers: list[Decimal], digits: tuple[int, int]) -> None:
    """In both formats alike. No number is rounded, and zeros at the end do not count."""
    precision, scale = digits
    kind = ColumnType(Kind.DECIMAL, precision, scale)
    numbers = [n if n else n.copy_abs() for n in numbers]
    texts = [f"{n:f}" for n in numbers]
    fits = [(f := _scaled(n, scale)).denominator == 1 and abs(f) < 10**precision for n in numbers]
    # Python compares numbers exactly, and calculates with 28 digits.
    for found in (
        decode_text(column([t.encode() for t in texts]), kind),
        binary(kind, [numeric_send(n) for n in map(Decimal, texts)]),
    ):
        values = found.array.to_pylist()
        assert [v is not None for v in values] == fits
        assert all(v == n for v, n in zip(values, numbers, strict=True) if v is not None)
        refused = [] if found.refused is None else list(zip(found.refused.rows, found.refused.texts, strict=True))
        assert refused == [(i, t) for i, (t, fit) in enumerate(zip(texts, fits, strict=True)) if not fit]
