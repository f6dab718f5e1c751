"""Source and lake, row by row and column by column.

Deliberately without Levada's own code: psycopg reads one side, PyIceberg the other.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyiceberg.table import StaticTable

COLUMNS = "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped"
KEY = (
    "SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)"
    " WHERE i.indrelid = %s::regclass AND i.indisprimary"
)


def lake_table(warehouse: Path, namespace: str, table: str) -> pa.Table:
    """Read an Iceberg table of a Hadoop catalog as PyIceberg sees it."""
    metadata = warehouse / namespace / table / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    return StaticTable.from_metadata(f"file://{metadata}/v{version}.metadata.json").scan().to_arrow()


def source_table(connection: psycopg.Connection[Any], table: str, schema: pa.Schema) -> pa.Table:
    """Read a table of the source into the types that the lake's has."""
    text = [field.name for field in schema if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)]
    # A cast to text may print something else than the type itself does (inet); format() does not.
    as_text = sql.SQL("CASE WHEN {0} IS NOT NULL THEN format('%s', {0}) END")
    columns = [as_text.format(sql.Identifier(name)) if name in text else sql.Identifier(name) for name in schema.names]
    query = sql.SQL("SELECT {} FROM {}").format(sql.SQL(", ").join(columns), sql.Identifier(table))
    with connection.cursor(binary=True) as cursor:
        rows = cursor.execute(query).fetchall()
    values = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [
        pa.array(map(plain, column), type=storage(field.type)) for field, column in zip(schema, values, strict=True)
    ]
    return pa.table(arrays, names=schema.names)


def differences(connection: psycopg.Connection[Any], table: str, lake: pa.Table) -> list[str]:
    """Return what is different, nothing if the two are equal."""
    columns = names(connection, COLUMNS, table)
    if sorted(columns) != sorted(lake.column_names):
        return [f"columns: {sorted(columns)} at the source, {sorted(lake.column_names)} in the lake"]
    lake = plain_types(lake)
    source = source_table(connection, table, lake.schema)
    order = [(name, "ascending") for name in names(connection, KEY, table)]
    source, lake = source.sort_by(order), lake.sort_by(order)
    if source.num_rows != lake.num_rows:
        return [f"{source.num_rows} rows at the source, {lake.num_rows} in the lake"]
    return [
        f"column {name} differs"
        for name in columns
        if not source[name].combine_chunks().equals(lake[name].combine_chunks())
    ]


def names(connection: psycopg.Connection[Any], query: str, table: str) -> list[str]:
    """Return the first column of a query about a table."""
    return [name for (name,) in connection.execute(query, [table])]


def plain(value: Any) -> Any:
    """Return what Arrow takes of a value."""
    return value.bytes if isinstance(value, uuid.UUID) else value


def storage(kind: pa.DataType) -> pa.DataType:
    """Return the type beneath an extension type."""
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind


def plain_types(table: pa.Table) -> pa.Table:
    """Return the table with extension types replaced by what is beneath them, so that it can be sorted."""
    fields = [pa.field(f.name, storage(f.type)) for f in table.schema]
    return table.cast(pa.schema(fields))
