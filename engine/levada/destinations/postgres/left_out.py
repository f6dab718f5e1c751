"""Reads whole rows of a table, those that its shadow copy does not have among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from psycopg import sql

from levada.destinations.data_files.source_types import as_source
from levada.destinations.kept_values import NoConversionError
from levada.destinations.postgres.columns import HeldColumn
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.region import read_copy
from levada.destinations.postgres.shadow_copy import ShadowCopy
from levada.destinations.postgres.state import TableRow, find_relation
from levada.destinations.postgres.types import held_shape
from levada.destinations.schema_changes import unconvertible
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.schema.masking import plain_column
from levada.values import QualifiedTable


def rows_left_out(
    connection: WatchedConnection, row: TableRow, copy: ShadowCopy, schema: ReplicatedTableSchema
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the table that the shadow copy lacks, in the columns of ``schema``.

    A table that was dropped or renamed has none. Raise NeedsOperator ``kept_rows_unmovable`` if a value does not fit
    into its new type, or if a row has no value of the key.
    """
    if find_relation(connection, row.place) != row.relation:
        return
    held = {c.attnum: c.name for c in row.layout.columns}
    copied = {c.attnum: c.name for c in copy.layout.columns}
    if not held.keys() >= set(schema.key):
        # Rows without the key of the new copy cannot be compared with its rows.
        raise unconvertible(schema)
    same = sql.SQL(" AND ").join(
        sql.SQL("s.{} = t.{}").format(sql.Identifier(copied[n]), sql.Identifier(held[n])) for n in schema.key
    )
    condition = sql.SQL("WHERE NOT EXISTS (SELECT FROM {} s WHERE {})").format(identifier(copy.place), same)
    for rows in read_rows(connection, row.place, row.layout.columns, schema, condition):
        if any(rows.column(column.name).null_count for column in schema.key_columns):
            raise unconvertible(schema)
        yield rows


def read_rows(
    connection: WatchedConnection,
    place: QualifiedTable,
    columns: Sequence[HeldColumn],
    schema: ReplicatedTableSchema,
    condition: sql.Composable,
) -> Iterator[pa.RecordBatch]:
    """Yield rows of the table ``t`` that has ``columns``, in the columns of ``schema``. What it lacks is NULL.

    Raise NeedsOperator ``kept_rows_unmovable`` if a value does not fit into its new type.
    """
    held = {c.attnum: c for c in columns}
    own = tuple(
        # Their values are masked already.
        replace(plain_column(c), name=held[c.attnum].name, type=held_shape(held[c.attnum].shape))
        for c in schema.columns
        if c.attnum in held
    )
    stored = replace(schema, columns=own)
    command = sql.SQL("COPY (SELECT {} FROM {} t {}) TO STDOUT (FORMAT binary)").format(
        sql.SQL(select_list(stored)), identifier(place), condition
    )
    for rows in read_copy(connection, command, CopyDecoder(stored)):
        yield _converted(rows, stored, schema)


def _converted(rows: pa.RecordBatch, stored: ReplicatedTableSchema, schema: ReplicatedTableSchema) -> pa.RecordBatch:
    places = {c.attnum: i for i, c in enumerate(stored.columns)}
    arrays = []
    for column in schema.columns:
        if column.attnum not in places:
            arrays.append(pa.nulls(rows.num_rows, column.type.arrow))
            continue
        try:
            arrays.append(as_source(rows.column(places[column.attnum]), column.type.arrow))
        except NoConversionError:
            raise unconvertible(schema) from None
    return pa.RecordBatch.from_arrays(arrays, schema=schema.arrow)
