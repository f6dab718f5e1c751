"""Values of deleted rows in the type that their column has in a new copy: equal there, or refused."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from levada.destinations.kept_values import NoConversionError, converted

TYPES = st.integers(1, 38).flatmap(lambda p: st.builds(pa.decimal128, st.just(p), st.integers(0, p)))
DIGITS = st.text("0123456789", max_size=45)
TEXTS = st.builds(lambda sign, whole, rest: f"{sign}{whole}0.{rest}0", st.sampled_from(("", "-")), DIGITS, DIGITS)


def fits(number: Fraction, kind: pa.DataType) -> bool:
    """Return True if the decimal has the number."""
    scaled = number * 10**kind.scale
    return scaled.denominator == 1 and abs(scaled) < 10**kind.precision


def value(values: pa.Array, kind: pa.DataType) -> Fraction | None:
    """Return the converted value, None if it is refused."""
    try:
        return Fraction(converted(values, kind)[0].as_py())
    except NoConversionError:
        return None


@given(TEXTS, TYPES)
@example("-3991942851602501746712073092117651693.106", pa.decimal128(38, 3))
@example("0.00000000000000000000000000000000000000007", pa.decimal128(2, 2))
def test_a_text_is_an_equal_decimal(text: str, kind: pa.DataType) -> None:
    """It is refused if the type lacks a digit of it, and zeros at both ends do not count."""
    number = Fraction(text)
    assert value(pa.array([text]), kind) == (number if fits(number, kind) else None)


@given(st.integers(-(10**38) + 1, 10**38 - 1), st.integers(0, 38), TYPES)
@example(459268053651198766365198, 4, pa.decimal128(38, 35))
@example(-99, 0, pa.decimal128(38, 38))
def test_a_decimal_is_an_equal_one(digits: int, scale: int, kind: pa.DataType) -> None:
    """It is refused if the other type lacks a digit of it."""
    held = pa.array([Decimal(digits)], pa.decimal128(38, 0)).view(pa.decimal128(38, scale))
    number = Fraction(digits, 10**scale)
    assert value(held, kind) == (number if fits(number, kind) else None)


@pytest.mark.parametrize("text", ["1e400", "-1e39", "1e-400", "nan(1)"])
def test_a_text_that_is_no_float_of_postgresql(text: str) -> None:
    """PostgreSQL raises an error for it, and so do we."""
    with pytest.raises(NoConversionError):
        converted(pa.array([text]), pa.float32())


@pytest.mark.parametrize("text", ["inf", "-Infinity", "0", "-0.0", "0e5", ".0", "1e-40", "3.4e38"])
def test_a_text_that_is_a_float(text: str) -> None:
    """The infinities and 0 are written in several ways."""
    [found] = converted(pa.array([text]), pa.float64()).to_pylist()
    assert found == float(text)
