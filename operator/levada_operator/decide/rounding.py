"""Rounded numbers for status, so that it changes rarely. The driver's `/metrics` has the exact numbers.

Every function is monotone: a larger amount is never shown as a smaller one.
"""

from __future__ import annotations

from typing import Final

_FLOOR: Final = 64 * 1024
_SECONDS: Final = (0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi")
_DECIMAL: Final = ("k", "M", "G", "T", "P")


def rounded_bytes(amount: int | None) -> int | None:
    """Round down to five significant binary digits. Less than 64 Ki counts as 0."""
    if amount is None:
        return None
    if amount < _FLOOR:
        return 0
    unit = 1 << max(0, amount.bit_length() - 5)
    return amount // unit * unit


def rounded_rows(count: int | None) -> int | None:
    """Round down to three significant decimal digits."""
    if count is None:
        return None
    unit = int("1" + "0" * max(0, len(str(count)) - 3))
    return count // unit * unit


def rounded_seconds(seconds: float | None) -> int | None:
    """Round up to the next step of `_SECONDS`, or to whole days if it is longer than a day."""
    if seconds is None:
        return None
    for step in _SECONDS:
        if seconds <= step:
            return step
    return -(-int(seconds) // 86400) * 86400


def size_text(amount: int | None) -> str:
    """Format a number of bytes, for example 1.2Mi."""
    return "" if amount is None else _scaled(amount, 1024, _BINARY)


def count_text(count: int | None) -> str:
    """Format a count, for example 12.6M."""
    return "" if count is None else _scaled(count, 1000, _DECIMAL)


def seconds_text(seconds: int | None) -> str:
    """Format a duration in its largest unit, for example 4s, 5m, 2h or 3d."""
    if seconds is None:
        return ""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _scaled(amount: int, base: int, units: tuple[str, ...]) -> str:
    if amount < base:
        return str(amount)
    value = float(amount)
    for unit in units:
        value /= base
        if value < base or unit == units[-1]:
            break
    return f"{value:.1f}{unit}" if value < 100 and not value.is_integer() else f"{value:.0f}{unit}"
