"""Numbers formatted for people."""

from __future__ import annotations

from typing import Final

UNKNOWN: Final = "-"
_BINARY: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size(count: float | None) -> str:
    """Return bytes with a binary unit and at most three digits before the point, such as ``1.2 MiB``."""
    if count is None:
        return UNKNOWN
    value = float(count)
    for unit in _BINARY:
        if abs(value) < 999.5 or unit == _BINARY[-1]:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 99.95 else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError("the last unit ends the loop")


def number(count: float | None) -> str:
    """Return a whole number with its digits in groups of three."""
    return UNKNOWN if count is None else f"{count:,.0f}"


def rate(per_second: float | None) -> str:
    """Return a count per second, or an empty string for zero or None."""
    return "" if not per_second else f"{per_second:,.0f}/s"


def percent(value: float | None) -> str:
    """Return a percentage. Values below 100 are never rounded to ``100%``."""
    if value is None:
        return UNKNOWN
    return "100%" if value >= 100 else f"{min(value, 99.9):.1f}%"


def duration(seconds: float | None) -> str:
    """Return seconds in the two largest non-zero units: ``0.4s``, ``12s``, ``3m 20s``, ``2h 5m``, ``3d 4h``."""
    if seconds is None:
        return UNKNOWN
    if seconds < 9.95:
        return f"{seconds:.1f}s" if seconds >= 0.05 else "0s"
    whole = round(seconds)
    for unit, part, length in (("s", "", 60), ("m", "s", 3600), ("h", "m", 86_400), ("d", "h", 0)):
        if whole < length or not length:
            scale = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
            rest = whole % scale[unit] // scale[part] if part else 0
            return f"{whole // scale[unit]}{unit}" + (f" {rest}{part}" if rest else "")
    raise AssertionError("the last unit has no end")
