"""A table whose columns are stored in types that a TableSync chooses, and what a lake has to have of them.

The lake's own types decide how a column is compared: both sides become text, the source's by SQL.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import Any, Final
from uuid import UUID

import psycopg
import pyarrow as pa
from psycopg import sql
from tests.histories.expected import Watched

TABLE: Final = "typed"
CHOICES: Final = {
    "n": "Decimal(38, 9)", "u": "Uuid", "a": "List(2)", "r": "Range", "nr": "Range", "m": "Multirange",
    "tm": "Multirange", "h": "Map", "x": "Text", "e": "Text",
}  # fmt: skip
CREATE: Final = (
    "CREATE TABLE {s}.typed (k1 int PRIMARY KEY, n numeric(30,9), u uuid, a bigint[], r daterange, nr numrange,"
    " m int4multirange, tm tstzmultirange, h hstore, x timestamptz, e {s}.mood)"
)
_RANGE: Final = """jsonb_build_object('lower', {lower}, 'upper', {upper}, 'lower_inc', lower_inc({range}),
    'upper_inc', upper_inc({range}), 'isempty', isempty({range}))"""
_BOUNDS: Final = ("lower", "upper", "isempty", "lower_inc", "upper_inc")
"""The fields of a range in the order of jsonb."""
_numbers = itertools.count(1)


def plain(source: psycopg.Connection[Any], found: pa.Table, table: Watched, *, nulls: bool) -> tuple[pa.Table, Watched]:
    """Return what was read with nested values as text, and a view at the source that has the same.

    Without ``nulls``, the reader takes NULL for an empty list.
    """
    kinds = dict(
        source.execute(
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
            " AND NOT attisdropped AND attgenerated = ''", [table.compared],
        ).fetchall()
    )  # fmt: skip
    chosen: dict[str, sql.Composable] = {}
    for name in found.column_names:
        if printed := _printed(name, kinds.get(name, ""), found.schema.field(name).type, nulls):
            chosen[name] = printed
            texts = [None if v is None else _text(v, kinds[name]) for v in found[name].to_pylist()]
            found = found.set_column(found.column_names.index(name), name, pa.array(texts, pa.string()))
    if not chosen:
        return found, table
    view = f"plain_{next(_numbers)}"
    columns = [sql.SQL("{} AS {}").format(chosen.get(n, sql.Identifier(n)), sql.Identifier(n)) for n in kinds]
    source.execute(
        sql.SQL("CREATE TEMP VIEW {} AS SELECT {} FROM {}").format(
            sql.Identifier(view), sql.SQL(", ").join(columns), sql.Identifier(table.schema, table.name)
        )
    )
    [(oid,)] = source.execute("SELECT %s::regclass::oid::int", [f"pg_temp.{view}"]).fetchall()
    return found, replace(table, schema="pg_temp", name=view, compared=oid)


def _printed(name: str, kind: str, stored: pa.DataType, nulls: bool) -> sql.Composable | None:
    """Return the SQL of a column as text, or None if the lake has it in the type that it has without a choice."""
    column = sql.Identifier(name)
    if pa.types.is_struct(stored):
        return sql.SQL("CASE WHEN {} IS NOT NULL THEN {}::text END").format(column, _range(column, kind))
    if kind.endswith("multirange") and _is_list(stored):
        each = _range(sql.SQL("r"), kind)
        listed = sql.SQL("(SELECT coalesce(jsonb_agg({}), '[]') FROM unnest({}) r)::text").format(each, column)
        return sql.SQL("CASE WHEN {} IS NOT NULL THEN {} END").format(column, listed) if nulls else listed
    if pa.types.is_map(stored) or kind == "hstore" or (kind == "uuid" and not _is_text(stored)):
        return sql.SQL("{}::text").format(column)
    if kind == "timestamp with time zone" and _is_text(stored):
        return sql.SQL("({} AT TIME ZONE 'UTC')::text || '+00'").format(column)
    if kind == "bigint[]" and _is_list(stored):
        return sql.SQL("array_to_json({})::text").format(column)
    return None


def _text(value: Any, kind: str) -> str:
    """Return a value as the SQL of its column prints it."""
    if kind.endswith("multirange"):
        return f"[{', '.join(_text(each, kind.removesuffix('multirange') + 'range') for each in value)}]"
    if kind.endswith("range"):
        return json.dumps({name: _bound(value[name]) for name in _BOUNDS})
    if isinstance(value, list) and kind == "bigint[]":
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, list):
        return ", ".join(f'"{key}"=>' + ("NULL" if v is None else f'"{v}"') for key, v in value)
    return str(UUID(bytes=value) if isinstance(value, bytes) else value)


def _bound(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")
    return value.isoformat() if isinstance(value, date) else value


def _range(column: sql.Composable, kind: str) -> sql.Composed:
    bounds = {}
    for end in ("lower", "upper"):
        bound = sql.SQL(f"{end}({{}})").format(column)
        if kind.startswith("ts"):
            bound = sql.SQL("to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')").format(bound)
        bounds[end] = sql.SQL("{}::text").format(bound) if kind.startswith("num") else bound
    return sql.SQL(_RANGE).format(range=column, **bounds)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
