"""The types of columns in BigQuery, and of the staged Arrow columns that become them. Pure.

A staged column has a type that the Storage Write API takes as Arrow. JSON and BIGNUMERIC are staged as STRING, and the
transaction parses them, so that BigQuery refuses a document or number that it cannot hold exactly.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from levada.destinations.bigquery.json_text import json_values
from levada.destinations.bigquery.names import literal
from levada.destinations.bigquery.settings import JsonbType
from levada.errors import Unrepresentable
from levada.pgoutput.text import parse_text
from levada.schema import Column, Kind
from levada.values import QualifiedTable, resync_command, unrepresentable_hint

_JSONB_OID: Final = 3802
_NUMERIC_DIGITS: Final = 29
"""The digits before the point of NUMERIC. BIGNUMERIC has 38 before and 38 after it."""
_NUMERIC_SCALE: Final = 9

_NAMES: Final[Mapping[Kind, str]] = {
    Kind.BOOL: "BOOL",
    Kind.INT2: "INT64",
    Kind.INT4: "INT64",
    Kind.INT8: "INT64",
    Kind.OID: "INT64",
    Kind.FLOAT4: "FLOAT64",
    Kind.FLOAT8: "FLOAT64",
    Kind.TEXT: "STRING",
    Kind.BYTEA: "BYTES",
    Kind.DATE: "DATE",
    Kind.TIME: "TIME",
    Kind.TIMESTAMP: "DATETIME",
    Kind.TIMESTAMPTZ: "TIMESTAMP",
    Kind.UUID: "STRING",
    Kind.JSON: "STRING",
    Kind.ARRAY: "JSON",
    Kind.RANGE: "JSON",
    Kind.MAP: "JSON",
}

_ARROW: Final[Mapping[str, pa.DataType]] = {
    "BOOL": pa.bool_(),
    "INT64": pa.int64(),
    "FLOAT64": pa.float64(),
    "NUMERIC": pa.decimal128(38, 9),
    "BIGNUMERIC": pa.string(),
    "STRING": pa.string(),
    "BYTES": pa.binary(),
    "DATE": pa.date32(),
    "TIME": pa.time64("us"),
    "DATETIME": pa.timestamp("us"),
    "TIMESTAMP": pa.timestamp("us", "UTC"),
    "JSON": pa.string(),
}

CLUSTERABLE: Final = frozenset({"BOOL", "INT64", "NUMERIC", "BIGNUMERIC", "STRING", "DATE", "DATETIME", "TIMESTAMP"})
"""Types of columns by which BigQuery clusters a table."""
PARTITIONABLE: Final = frozenset({"DATE", "DATETIME", "TIMESTAMP"})

_DAY_US: Final = 86_400_000_000
_FIRST_DAY: Final = int(np.datetime64("0001-01-01", "D").astype(np.int64))
_LAST_DAY: Final = int(np.datetime64("9999-12-31", "D").astype(np.int64))


def bigquery_type(column: Column, jsonb: JsonbType) -> str:
    """Return the type of a source column in BigQuery."""
    kind = column.type.kind
    if kind is Kind.DECIMAL:
        fits = column.type.precision - column.type.scale <= _NUMERIC_DIGITS and column.type.scale <= _NUMERIC_SCALE
        return "NUMERIC" if fits else "BIGNUMERIC"
    if kind is Kind.JSON and column.type_oid == _JSONB_OID and jsonb is JsonbType.JSON:
        return "JSON"
    return _NAMES[kind]


def widens(before: str, after: str) -> bool:
    """Return True if BigQuery can change the type of a column in place, without another text of its values."""
    return before == after or (before, after) == ("NUMERIC", "BIGNUMERIC")


def staged_type(name: str) -> str:
    """Return the type of a staged column, in BigQuery."""
    return "STRING" if name in ("JSON", "BIGNUMERIC") else name


def staged_arrow(name: str) -> pa.DataType:
    """Return the Arrow type of a staged column."""
    return _ARROW[name]


def from_staged(name: str, staged: str) -> str:
    """Return the SQL expression for a value of type ``name``. ``staged`` is that of the staged column."""
    if name == "JSON":
        return f"PARSE_JSON({staged})"
    return f"CAST({staged} AS BIGNUMERIC)" if name == "BIGNUMERIC" else staged


def to_staged(
    values: pa.Array | pa.ChunkedArray, column: Column, name: str, table: QualifiedTable
) -> pa.Array | pa.ChunkedArray:
    """Return the values of a source column for a staged column of type ``name``.

    Raise Unrepresentable for a date or a time that is not in the years 1 to 9999.
    """
    if column.type.element is not None or column.type.kind is Kind.MAP:
        return json_values(values, column.type)
    if name in PARTITIONABLE:
        _check_years(values, column, name, table)
    wanted = _ARROW[name]
    return values if values.type == wanted else pc.cast(values, wanted)


def constant(column: Column, name: str, table: QualifiedTable) -> str | None:
    """Return the SQL expression of a column's ``missing_value``, or None if it is NULL."""
    if column.missing_value is None:
        return None
    parsed = parse_text(column.type, column.missing_value)
    if not parsed.is_valid:
        raise _unrepresentable(column, name, table)
    value = to_staged(pa.repeat(parsed, 1), column, name, table)
    if name == "BYTES":
        return f"FROM_HEX({literal(value[0].as_py().hex())})"
    if name == "TIMESTAMP":
        return f"CAST({literal(pc.cast(value.cast(pa.timestamp('us')), pa.string())[0].as_py() + '+00')} AS TIMESTAMP)"
    text = literal(pc.cast(value, pa.string())[0].as_py())
    return f"PARSE_JSON({text})" if name == "JSON" else f"CAST({text} AS {name})"


def _check_years(values: pa.Array | pa.ChunkedArray, column: Column, name: str, table: QualifiedTable) -> None:
    numbers = values.cast(pa.int32() if name == "DATE" else pa.int64())
    span = pc.min_max(numbers)
    low, high = span["min"].as_py(), span["max"].as_py()
    unit = 1 if name == "DATE" else _DAY_US
    if low is not None and (low < _FIRST_DAY * unit or high >= (_LAST_DAY + 1) * unit):
        raise _unrepresentable(column, name, table)


def _unrepresentable(column: Column, name: str, table: QualifiedTable) -> Unrepresentable:
    return Unrepresentable(
        "unrepresentable_value",
        f"{table}: column {column.name} ({column.type_name}) has a value that {name} of BigQuery cannot represent",
        hint=f"{unrepresentable_hint(key=True)}."
        f" Or change the value, then copy the table again: {resync_command(table)}",
    )
