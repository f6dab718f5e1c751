"""Dates and times that Arrow's casts do not parse or cannot hold, converted exactly one by one.

Years are PostgreSQL's: the proleptic Gregorian calendar, in which 1 BC precedes 1 AD.
"""

from __future__ import annotations

import re
from typing import Final

US_PER_SECOND: Final = 1_000_000
US_PER_DAY: Final = 86_400 * US_PER_SECOND

INFINITIES: Final = frozenset({"infinity", "-infinity"})
_INT64_MAX: Final = (1 << 63) - 1
_INT32_MAX: Final = (1 << 31) - 1

_DATE: Final = r"(?P<year>\d{4,7})-(?P<month>\d\d)-(?P<day>\d\d)"
_ZONE: Final = r"(?P<sign>[+-])(?P<zh>\d\d)(?::(?P<zm>\d\d)(?::(?P<zs>\d\d))?)?"
_DATE_ONLY: Final = re.compile(_DATE + r"(?P<bc> BC)?", re.ASCII)
_TIMESTAMP: Final = re.compile(
    _DATE + r" (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:\.(?P<f>\d{1,6}))?" + f"(?:{_ZONE})?(?P<bc> BC)?", re.ASCII
)


def date_days(text: str) -> int | None:
    """Return days since 1970-01-01, or None for infinity and for dates beyond 32 bits.

    Raise ValueError for an invalid date.
    """
    if text in INFINITIES:
        return None
    match = _DATE_ONLY.fullmatch(text)
    if match is None:
        raise ValueError(text)
    days = _days(match)
    return days if abs(days) <= _INT32_MAX else None


def timestamp_us(text: str) -> int | None:
    """Return microseconds since 1970-01-01 UTC, or None for infinity and for timestamps beyond 64 bits.

    The largest number of 64 bits is None too, because DuckDB reads it as infinity. A text without a zone is in UTC.
    Raise ValueError for an invalid timestamp.
    """
    if text in INFINITIES:
        return None
    match = _TIMESTAMP.fullmatch(text)
    if match is None:
        raise ValueError(text)
    hour, minute, second = int(match["h"]), int(match["m"]), int(match["s"])
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(text)
    offset = int(match["zh"] or 0) * 3600 + int(match["zm"] or 0) * 60 + int(match["zs"] or 0)
    if match["sign"] == "-":
        offset = -offset
    seconds = _days(match) * 86_400 + hour * 3600 + minute * 60 + second - offset
    us = seconds * US_PER_SECOND + int((match["f"] or "").ljust(6, "0"))
    return us if abs(us) < _INT64_MAX else None


def _days(match: re.Match[str]) -> int:
    year, month, day = int(match["year"]), int(match["month"]), int(match["day"])
    if not (year and 1 <= month <= 12 and 1 <= day <= 31):
        raise ValueError(match.string)
    return days_from_civil(1 - year if match["bc"] else year, month, day)


def days_from_civil(year: int, month: int, day: int) -> int:
    """Return days since 1970-01-01. Year 0 is 1 BC.

    The algorithm is from Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    """
    year -= month <= 2
    era = year // 400
    of_era = year - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


def civil_from_days(days: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970-01-01. The inverse of `days_from_civil`."""
    days += 719_468
    era, of_era = divmod(days, 146_097)
    year = (of_era - of_era // 1_460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    shifted = (5 * of_year + 2) // 153
    month = shifted + (3 if shifted < 10 else -9)
    return year + era * 400 + (month <= 2), month, of_year - (153 * shifted + 2) // 5 + 1


def date_text(days: int) -> str:
    """Format days since 1970-01-01 as PostgreSQL does under ``DateStyle = ISO``."""
    shown, bc = _date_text(days)
    return shown + bc


def timestamp_text(us: int, *, zone: bool) -> str:
    """Format microseconds since 1970-01-01 UTC like PostgreSQL under ``TimeZone = UTC`` and ``DateStyle = ISO``."""
    days, rest = divmod(us, US_PER_DAY)
    seconds, fraction = divmod(rest, US_PER_SECOND)
    tail = f".{fraction:06d}".rstrip("0") if fraction else ""
    shown, bc = _date_text(days)
    clock = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{shown} {clock}{tail}{'+00' if zone else ''}{bc}"


def _date_text(days: int) -> tuple[str, str]:
    year, month, day = civil_from_days(days)
    return f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day:02d}", "" if year > 0 else " BC"
