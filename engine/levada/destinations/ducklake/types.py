"""The types of DuckLake's columns: their Arrow types, and their values as text. Pure.

The catalog has bounds and defaults of columns as text. Bounds are compared as the values of Parquet's statistics: an
unscaled integer for a decimal, days, microseconds, and bytes for text.
"""

from __future__ import annotations

import math
import re
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa

from levada.pgoutput.text import parse_text
from levada.schema import ColumnType, Kind
from levada.schema.types import NESTED

LIST: Final = "list"
STRUCT: Final = "struct"
MAP: Final = "map"
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")

_NAMES: Final[Mapping[Kind, str]] = {
    Kind.BOOL: "boolean",
    Kind.INT2: "int16",
    Kind.INT4: "int32",
    Kind.INT8: "int64",
    Kind.OID: "int64",
    Kind.FLOAT4: "float32",
    Kind.FLOAT8: "float64",
    Kind.TEXT: "varchar",
    Kind.BYTEA: "blob",
    Kind.DATE: "date",
    Kind.TIME: "time",
    Kind.TIMESTAMP: "timestamp",
    Kind.TIMESTAMPTZ: "timestamptz",
    Kind.UUID: "uuid",
    # DuckDB cannot read a table with a json that PostgreSQL accepts and its parser does not, such as "\\ud800".
    Kind.JSON: "varchar",
    Kind.ARRAY: LIST,
    Kind.RANGE: STRUCT,
    Kind.MAP: MAP,
}

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "boolean": pa.bool_(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "varchar": pa.string(),
    "blob": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "uuid": pa.uuid(),
}

_WIDER: Final = {
    ("int16", "int32"),
    ("int16", "int64"),
    ("int32", "int64"),
    ("float32", "float64"),
}

_INTEGERS: Final = frozenset({"int16", "int32", "int64"})
FLOATS: Final = frozenset({"float32", "float64"})
_MICROS: Final = {"time": None, "timestamp": "", "timestamptz": "+00"}
_DATE: Final = re.compile(r"(\d+)-(\d\d)-(\d\d)( \(BC\))?")
_CLOCK: Final = re.compile(r"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_DAY_US: Final = 86_400_000_000


def type_name(kind: ColumnType) -> str:
    """Return DuckLake's name of the type. The parts of a list, struct or map have rows of their own in the catalog."""
    if kind.kind is Kind.DECIMAL:
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES[kind.kind]


def parts_of(kind: ColumnType) -> Sequence[tuple[str, ColumnType]]:
    """Return the names and types of the columns within a list, a struct or a map. Any other type has none."""
    if kind.kind is Kind.MAP:
        return [("key", ColumnType(Kind.TEXT)), ("value", ColumnType(Kind.TEXT))]
    return [("element", kind.element)] if kind.depth and kind.element is not None else kind.parts


def arrow_type(name: str) -> pa.DataType | None:
    """Return the Arrow type in data files, or None for a type with parts and one that Levada does not write."""
    if found := _DECIMAL.fullmatch(name):
        return pa.decimal128(int(found[1]), int(found[2]))
    return _ARROW.get(name)


def widened(before: str, after: str) -> str | None:
    """Return ``after`` if DuckLake reads files of the type ``before`` as it without loss, else None."""
    old, new = _DECIMAL.fullmatch(before), _DECIMAL.fullmatch(after)
    if old and new:
        return after if old[2] == new[2] and int(new[1]) >= int(old[1]) else None
    return after if before == after or (before, after) in _WIDER else None


def bound(name: str, raw: Any) -> Any:
    """Return a value of Parquet's statistics as a comparable value. ``raw`` has Parquet's physical type."""
    if isinstance(raw, bytes) and _DECIMAL.fullmatch(name):
        return int.from_bytes(raw, "big", signed=True)
    if isinstance(raw, str):
        return raw.encode()
    return raw


def to_text(name: str, value: Any) -> str:
    """Return a bound as the catalog's text."""
    if name == "boolean":
        return "1" if value else "0"
    if name in _INTEGERS:
        return str(value)
    if name in FLOATS:
        return _float_text(value)
    if found := _DECIMAL.fullmatch(name):
        # A context of its own: scaleb() rounds to the context's precision, which is 28 by default.
        return format(Decimal((int(value < 0), tuple(map(int, str(abs(value)))), -int(found[2]))), "f")
    if name == "varchar":
        return bytes(value).decode()
    if name == "blob":
        return bytes(value).hex().upper()
    if name == "uuid":
        return str(uuid.UUID(bytes=value))
    if name == "date":
        return _date_text(value)
    if name == "time":
        return _clock_text(value)
    days, micros = divmod(value, _DAY_US)
    date, era, _ = _date_text(days).partition(" (BC)")
    return f"{date}{era} {_clock_text(micros)}{_MICROS[name]}"


def from_text(name: str, text: str) -> Any:
    """Return the bound of a text of the catalog. Raise ValueError if it has another form."""
    if name == "boolean":
        return text in ("1", "true")
    if name in _INTEGERS:
        return int(text)
    if name in FLOATS:
        return float(text)
    if found := _DECIMAL.fullmatch(name):
        sign, digits, exponent = Decimal(text).as_tuple()
        unscaled = int("".join(map(str, digits))) * 10 ** (int(found[2]) + int(exponent))
        return -unscaled if sign else unscaled
    if name == "varchar":
        return text.encode()
    if name == "blob":
        return bytes.fromhex(text)
    if name == "uuid":
        return uuid.UUID(text).bytes
    if name == "date":
        return _days(text)
    if name == "time":
        return _micros(text)
    if name in _MICROS:
        date, _, clock = text.removesuffix("+00").rpartition(" ")
        return _days(date) * _DAY_US + _micros(clock)
    raise ValueError(f"no bounds of {name}")


def _float_text(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(float(value))


def _date_text(days: int) -> str:
    date = np.datetime64(0, "D") + np.timedelta64(days, "D")
    year = int(date.astype("datetime64[Y]").astype(np.int64)) + 1970
    month = int(date.astype("datetime64[M]").astype(np.int64)) % 12 + 1
    day = int((date - date.astype("datetime64[M]").astype("datetime64[D]")).astype(np.int64)) + 1
    shown, era = (year, "") if year > 0 else (1 - year, " (BC)")
    return f"{shown:04}-{month:02}-{day:02}{era}"


def _days(text: str) -> int:
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError("not a date")
    year = int(found[1]) if found[4] is None else 1 - int(found[1])
    months = (year - 1970) * 12 + int(found[2]) - 1
    return int(np.datetime64(months, "M").astype("datetime64[D]").astype(np.int64)) + int(found[3]) - 1


def _clock_text(micros: int) -> str:
    seconds, rest = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    fraction = f".{rest:06}".rstrip("0") if rest else ""
    return f"{minutes // 60:02}:{minutes % 60:02}:{second:02}{fraction}"


def _micros(text: str) -> int:
    found = _CLOCK.fullmatch(text)
    if found is None:
        raise ValueError("not a time of day")
    whole = (int(found[1]) * 60 + int(found[2])) * 60 + int(found[3])
    return whole * 1_000_000 + int((found[4] or "").ljust(6, "0"))


def default_text(kind: ColumnType, missing: str) -> str | None:
    """Return PostgreSQL's text of a constant in the form of DuckLake's ``initial_default``, or None if there is none.

    DuckDB casts that text to the column's type.
    """
    value = parse_text(kind, missing)
    if not value.is_valid:
        return None
    if kind.kind in NESTED:
        # DuckDB reads the default of a list, struct or map as NULL.
        return None
    if kind.kind is Kind.BYTEA:
        return "".join(f"\\x{byte:02X}" for byte in value.as_py())
    if kind.kind in (Kind.TEXT, Kind.JSON, Kind.UUID):
        return str(value.as_py())
    if kind.kind is Kind.BOOL:
        return "true" if value.as_py() else "false"
    if kind.kind in (Kind.FLOAT4, Kind.FLOAT8):
        return "nan" if value.as_py() != value.as_py() else to_text(type_name(kind), value.as_py())
    if kind.kind is Kind.DECIMAL:
        return format(value.as_py(), "f")
    return to_text(type_name(kind), value.cast(pa.int32() if kind.kind is Kind.DATE else pa.int64()).as_py())
