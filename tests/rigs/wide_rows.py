"""Rows that are wide."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

from levada.schema import ColumnType, Kind
from levada.testing import column, table

WIDE = table(
    column(1, "id", Kind.INT8),
    column(2, "b", Kind.BOOL),
    column(3, "i2", Kind.INT2),
    column(4, "i4", Kind.INT4),
    column(5, "f4", Kind.FLOAT4),
    column(6, "f8", Kind.FLOAT8),
    column(7, "n", Kind.DECIMAL, precision=38, scale=10),
    column(8, "small", Kind.DECIMAL, precision=9, scale=2),
    column(9, "t", Kind.TEXT),
    column(10, "bytes", Kind.BYTEA),
    column(11, "d", Kind.DATE),
    column(12, "clock", Kind.TIME),
    column(13, "ts", Kind.TIMESTAMP),
    column(14, "tz", Kind.TIMESTAMPTZ),
    column(15, "u", Kind.UUID),
    column(16, "j", Kind.JSON),
    column(17, "texts", Kind.ARRAY, element=ColumnType(Kind.TEXT)),
    column(18, "ids", Kind.ARRAY, element=ColumnType(Kind.UUID)),
    name="public.wide",
)


BIG = Decimal("9999999999999999999999999999.9999999999")


VALUES: dict[str, list[Any]] = {
    "b": [True, False, None],
    "i2": [-32768, 32767, 0, 9, 10, -9, -10],
    "i4": [-(2**31), 2**31 - 1, 0, 9, 10, 100],
    "f4": [float("nan"), float("inf"), -float("inf"), -0.0, 0.1, 1e30, 9.5, 10.25],
    "f8": [float("nan"), float("inf"), -float("inf"), -0.0, 0.1, 1e300, 5e-324, 9.5, 10.25],
    "n": [BIG, BIG.copy_negate(), *(Decimal(f"{n}.{n:010}") for n in (0, 1, 9, 10))],
    "small": [Decimal("-9999999.99"), Decimal("9999999.99"), Decimal("0.01"), Decimal("-0.01"), Decimal("9.50")],
    "t": ["", "a", "Z", "é", "\U0001f600", "x" * 5000 + "b", "x" * 5000 + "a", "\uffff", "'q'", "NULL", "10", "9"],
    "bytes": [b"", b"\x00", b"\xff" * 3, b"\x80", b"y" * 6000],
    "d": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "clock": [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(12, 0, 0, 1), dt.time(9)],
    "ts": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1969, 12, 31, 23, 0, 0, 5)],
    "tz": [
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
        dt.datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC),
    ],
    "u": [str(uuid.UUID(int=n)) for n in (0, 1, 2**127, 2**128 - 1, 2**127 - 1)],
    "j": ["{}", '{"a": 1e400}', '"\\ud800"', "null", "[1, 2]", '{"k": "\\u0000"}'],
    "texts": [[], [""], ["a", None], [None], ["\x7f", "é"]],
    "ids": [[], [None], [str(uuid.UUID(int=7)), None]],
}


def wide_rows() -> list[dict[str, Any]]:
    """Rows with each value of each column, with NULL in all of them at first."""
    rows: list[dict[str, Any]] = [{"id": 0}]
    for name, values in VALUES.items():
        rows += [{"id": len(rows) + i, name: v} for i, v in enumerate(values)]
    return rows
