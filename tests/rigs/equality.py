"""A comparison of source and lake, each read by a tool that is not Levada: PostgreSQL prints, PyIceberg reads.

PostgreSQL prints every column in a form that Arrow casts without loss. Both sides are sorted by the same columns and
compared as Arrow tables. It shares no code with `levada.verify`, and so keeps `levada verify` honest: the scenarios
that compare with both show a difference that one of them overlooks.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from psycopg import sql
from pyiceberg.table import StaticTable

_NULL = "\\N"


def lake_table(warehouse: Path, namespace: str, name: str) -> pa.Table:
    """Read the newest snapshot of a table of a Hadoop catalog."""
    return open_lake_table(warehouse / namespace / name).scan().to_arrow()


def left_by_copies(warehouse: Path, namespace: str, name: str) -> set[str]:
    """Return the files that copies wrote to a table's folder and no snapshot of the table names."""
    folder = warehouse / namespace / name
    named = {urlsplit(path).path for path in open_lake_table(folder).inspect.all_files()["file_path"].to_pylist()}
    return {str(file) for file in (folder / "data").glob("*/*/*.parquet")} - named


def open_lake_table(folder: Path) -> StaticTable:
    """Open the newest snapshot of the table in a folder."""
    version = (folder / "metadata" / "version-hint.text").read_text().strip()
    return StaticTable.from_metadata(str(folder / "metadata" / f"v{version}.metadata.json"))


def source_table(connection: psycopg.Connection[Any], schema: str, name: str, like: pa.Schema) -> pa.Table:
    """Read a table of the source as Arrow of the lake's types, from what PostgreSQL prints."""
    columns = connection.execute(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = %s::regclass"
        " AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        [f'"{schema}"."{name}"'],
    ).fetchall()
    expressions = [_printed(column, kind) for column, kind in columns]
    query = sql.SQL("COPY (SELECT {} FROM {} {}) TO STDOUT (FORMAT csv, NULL '\\N', FORCE_QUOTE *)").format(
        sql.SQL(", ").join(expressions), only(connection, schema, name), sql.Identifier(schema, name)
    )
    out = io.BytesIO()
    with connection.cursor().copy(query) as copy:
        for part in copy:
            out.write(part)
    names = [column for column, _ in columns]
    if not out.tell():
        return pa.table({n: pa.array([], like.field(n).type) for n in names})
    text = pcsv.read_csv(
        pa.BufferReader(out.getvalue()),
        pcsv.ReadOptions(column_names=names, block_size=64 << 20),
        pcsv.ParseOptions(newlines_in_values=True),
        pcsv.ConvertOptions(
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[_NULL],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    )
    return pa.table({n: _parse(text[n], like.field(n).type) for n in names})


def only(connection: psycopg.Connection[Any], schema: str, name: str) -> sql.SQL:
    """Return ONLY for a table that may have heirs, whose rows are not its own, and nothing for one with partitions."""
    [(partitioned,)] = connection.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [f'"{schema}"."{name}"']
    ).fetchall()
    return sql.SQL("" if partitioned else "ONLY")


def differences(connection: psycopg.Connection[Any], warehouse: Path, namespace: str, schema: str, name: str) -> str:
    """Return what differs between a table of the source and of a Hadoop catalog, empty if nothing does."""
    return table_differences(connection, lake_table(warehouse, namespace, name), schema, name)


def table_differences(connection: psycopg.Connection[Any], lake: pa.Table, schema: str, name: str) -> str:
    """Return what differs between a table of the source and what PyIceberg read, empty if nothing does."""
    lake = lake.cast(pa.schema([pa.field(f.name, _small(f.type)) for f in lake.schema]))
    try:
        source = source_table(connection, schema, name, lake.schema)
    except KeyError as error:
        return f"{schema}.{name}: the lake lacks column {error}"
    if set(lake.column_names) != set(source.column_names):
        return f"{schema}.{name}: columns {lake.column_names} instead of {source.column_names}"
    lake = lake.select(source.column_names)
    if lake.num_rows != source.num_rows:
        return f"{schema}.{name}: {lake.num_rows} rows in the lake, {source.num_rows} in the source"
    names = source.column_names
    # Arrow does not sort by names with dots.
    source, lake = (rows.rename_columns([f"c{i}" for i in range(len(names))]) for rows in (source, lake))
    source, lake = _sorted(source), _sorted(lake)
    wrong = [n for i, n in enumerate(names) if not _equal(source[f"c{i}"], lake[f"c{i}"])]
    return f"{schema}.{name}: columns {wrong} differ" if wrong else ""


def without_rows_of_other_keys(
    connection: psycopg.Connection[Any], lake: pa.Table, schema: str, name: str, key: Sequence[str]
) -> pa.Table:
    """Return the rows of a lake's table whose keys the source has, or all if the columns differ."""
    lake = lake.cast(pa.schema([pa.field(f.name, _small(f.type)) for f in lake.schema]))
    try:
        source = source_table(connection, schema, name, lake.schema).select(key)
        found = lake.select(key)
    except KeyError:
        return lake
    keys = set(map(repr, source.to_pylist()))
    return lake.filter(pa.array([repr(row) in keys for row in found.to_pylist()], pa.bool_()))


def _sorted(rows: pa.Table) -> pa.Table:
    """Sort by all columns. Arrow sorts by no lists, so these are sorted by their texts."""
    keys = {
        f.name: pa.array(map(str, rows[f.name].to_pylist()), pa.string())
        if pa.types.is_nested(f.type)
        else rows[f.name]
        for f in rows.schema
    }
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    return rows.take(order).combine_chunks()


def _equal(a: pa.ChunkedArray, b: pa.ChunkedArray) -> bool:
    if pa.types.is_floating(a.type):  # NaN equals NaN here
        a, b = pc.cast(a, pa.string()), pc.cast(b, pa.string())
    return bool(a.equals(b))


def _printed(column: str, kind: str) -> sql.Composable:
    name = sql.Identifier(column)
    if kind == "timestamp with time zone" or kind.startswith("timestamp("):
        return sql.SQL("to_char({} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.US')").format(name)
    if kind == "timestamp without time zone":
        return sql.SQL("to_char({}, 'YYYY-MM-DD\"T\"HH24:MI:SS.US')").format(name)
    if kind == "time without time zone":  # text in the lake: Spark reads no Iceberg time
        return sql.SQL("to_char({}, 'HH24:MI:SS.US')").format(name)
    if kind == "boolean":
        return sql.SQL("CASE {0} WHEN true THEN 'true' WHEN false THEN 'false' END").format(name)
    if kind == "bytea":
        return sql.SQL("encode({}, 'hex')").format(name)
    if kind.endswith("[]"):
        return sql.SQL("array_to_json({})::text").format(name)
    return name  # a cast to text would cut off spaces of char(n), and add a mask to inet


def _parse(text: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_binary(kind):
        return pa.chunked_array([pa.array([None if v is None else bytes.fromhex(v) for v in text.to_pylist()], kind)])
    if pa.types.is_list(kind):
        import json

        return pa.chunked_array([pa.array([None if v is None else json.loads(v) for v in text.to_pylist()], kind)])
    if pa.types.is_timestamp(kind):
        return (
            pc.cast(text, pa.timestamp("us")).cast(kind)
            if kind.tz is None
            else pc.cast(pc.assume_timezone(pc.cast(text, pa.timestamp("us")), "UTC"), kind)
        )
    return pc.cast(text, kind)


def _small(kind: pa.DataType) -> pa.DataType:
    """Return the column with small strings, as the source side has them. PyIceberg reads large ones."""
    if pa.types.is_large_string(kind):
        return pa.string()
    if pa.types.is_large_binary(kind):
        return pa.binary()
    if pa.types.is_large_list(kind) or pa.types.is_list(kind):
        return pa.list_(pa.field("element", _small(kind.value_type)))
    return kind
