"""Numbers in status are rounded: monotone, close, and the same for what differs little."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from levada_operator.decide.rounding import (
    count_text,
    rounded_bytes,
    rounded_rows,
    rounded_seconds,
    seconds_text,
    size_text,
)

NUMBERS = st.integers(0, 1 << 60)


@given(NUMBERS, NUMBERS)
def test_rounding_is_monotone(one: int, other: int) -> None:
    """A larger number is never rounded to a smaller one."""
    low, high = sorted((one, other))
    for rounded in (rounded_bytes, rounded_rows, rounded_seconds):
        a, b = rounded(low), rounded(high)
        assert a is not None
        assert b is not None
        assert a <= b


@given(NUMBERS)
def test_rounding_is_close_and_final(number: int) -> None:
    """Bytes are within a sixteenth and 64 KiB, rows within a hundredth. A second rounding changes nothing."""
    size, rows = rounded_bytes(number), rounded_rows(number)
    assert size is not None
    assert rows is not None
    assert 0 <= number - size <= max(number / 16, 65536)
    assert 0 <= number - rows <= number / 100
    assert rounded_bytes(size) == size
    assert rounded_rows(rows) == rows


def test_texts() -> None:
    """Numbers are written as people read them."""
    assert [size_text(n) for n in (None, 0, 1_258_291, 1 << 30, 17 << 40)] == ["", "0", "1.2Mi", "1Gi", "17Ti"]
    assert [count_text(n) for n in (0, 999, 12_640_000, 88_000_000)] == ["0", "999", "12.6M", "88M"]
    assert [seconds_text(n) for n in (None, 0, 4, 60, 7200, 172800)] == ["", "0s", "4s", "1m", "2h", "2d"]
