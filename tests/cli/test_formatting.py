"""Numbers as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.cli import formatting


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (200 * 1024, "200 KiB"),
        (1023 * 1024, "1.0 MiB"),
        (64 << 20, "64.0 MiB"),
        (5 << 60, "5120 PiB"),
    ],
)
def test_size(count: int | None, text: str) -> None:
    """Bytes have a binary unit and stay short."""
    assert formatting.size(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0, "0s"),
        (0.44, "0.4s"),
        (9.96, "10s"),
        (59.6, "1m"),
        (200, "3m 20s"),
        (7500, "2h 5m"),
        (3600, "1h"),
        (86_400 * 3 + 3600 * 4 + 59, "3d 4h"),
    ],
)
def test_duration(seconds: float | None, text: str) -> None:
    """Durations have at most two units."""
    assert formatting.duration(seconds) == text


@given(st.floats(0, 100))
def test_percent_is_100_only_when_done(value: float) -> None:
    """A copy that is not committed never shows 100 %."""
    assert (formatting.percent(value) == "100%") == (value >= 100)


def test_number_and_rate() -> None:
    """Thousands are grouped. A missing rate has no text."""
    assert formatting.number(1_234_567) == "1,234,567"
    assert formatting.number(None) == "-"
    assert formatting.rate(1234.5) == "1,234/s"
    assert formatting.rate(0) == formatting.rate(None) == ""
