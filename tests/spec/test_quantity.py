"""Quantities are read as Kubernetes reads them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.spec import format_bytes, parse_bytes, parse_quantity


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("64Mi", 64 * 2**20),
        ("20Gi", 20 * 2**30),
        ("1.5Ki", 1536),
        ("1k", 1000),
        ("2G", 2 * 10**9),
        ("1Pi", 2**50),
        ("1500m", 2),
        ("0.5Ki", 512),
        ("1.0001", 2),
        (4096, 4096),
    ],
)
def test_bytes(text: str | int, amount: int) -> None:
    """A quantity is a number and a unit. A fraction of a byte is rounded up, as Kubernetes does."""
    assert parse_bytes(text) == amount


@pytest.mark.parametrize(
    "text", ["", "Mi", "64 Mi", "64MB", "64mi", "-1", "1e3", "1,5Gi", "0x10", "٣Mi", "1Mi\n", True]
)
def test_what_is_no_quantity_is_refused(text: str | int) -> None:
    """Spaces, other units, signs, other digits: refused with examples of what would be right."""
    with pytest.raises(ValueError, match="64Mi"):
        parse_bytes(text)


@pytest.mark.parametrize("text", ["0", "0Gi", "100m", 0])
def test_less_than_a_byte_is_no_size(text: str | int) -> None:
    """A size is at least a byte: 100m is a slip for 100M or 100Mi."""
    with pytest.raises(ValueError, match="at least 1 byte"):
        parse_bytes(text)


@given(st.integers(min_value=1, max_value=2**62))
def test_written_sizes_are_read_back(amount: int) -> None:
    """Any size that is written is read back as it was."""
    assert parse_bytes(format_bytes(amount)) == amount


@given(st.decimals(min_value=0, max_value=10**9, places=3), st.sampled_from(["k", "Ki", "M", "Mi", "G", "Gi"]))
def test_units_multiply(number: Decimal, unit: str) -> None:
    """A quantity is its number times its unit, exactly."""
    base, step = (1024, "KMG".find(unit[0]) + 1) if unit.endswith("i") else (1000, "kMG".find(unit[0]) + 1)
    assert parse_quantity(f"{number}{unit}") == number * base**step
