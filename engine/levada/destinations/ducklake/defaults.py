"""The default of an added column, for rows in files that lack the column. Pure."""

from __future__ import annotations

import pyarrow as pa

from levada.destinations.ducklake.types import to_text, type_name
from levada.pgoutput.text import parse_text
from levada.schema import ColumnType, Kind


def default_text(kind: ColumnType, missing: str) -> str | None:
    """Return PostgreSQL's text of a constant in the form of DuckLake's ``initial_default``, or None if there is none.

    DuckDB casts that text to the column's type.
    """
    value = parse_text(kind, missing)
    if not value.is_valid:
        return None
    if kind.kind is Kind.ARRAY:
        # DuckDB reads the default of a list as NULL.
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
