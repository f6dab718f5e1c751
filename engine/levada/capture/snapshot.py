"""The current rows of tables as a finite stream of inserts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from levada.capture.streams import BatchedStream
from levada.errors import NeedsOperator
from levada.pgoutput.changes import ChangeBatch, TableChanges
from levada.pgoutput.copybinary import CopyDecoder, needs_text_cast
from levada.postgres.catalog import PublishedTable, published_tables, read_table_schema
from levada.postgres.connection import PostgresConnection
from levada.postgres.copying import copy_out
from levada.postgres.failures import source_errors
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.changes import ALWAYS, UNREPRESENTABLE, change_schema
from levada.values import Lsn, QualifiedTable

_NOW: Final = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)::text,
    (extract(epoch FROM now()) * 1000000)::bigint
"""


class SnapshotStream(BatchedStream):
    """Rows under one snapshot, in the order of the tables that were asked for.

    As a transaction of its own: ``commit_lsn`` is about where the WAL was, the ordinals count the rows.
    """

    def __init__(self, connection: PostgresConnection, publication: str, tables: Sequence[QualifiedTable]) -> None:
        self._publication = publication
        self._rows = 0
        self._connection = connection.connect(application="snapshot")
        try:
            with source_errors("taking a snapshot"):
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                [(lsn, now)] = self._connection.execute(_NOW).fetchall()
            self._lsn, self._now_us = Lsn.parse(lsn), int(now)
            published = {t.name: t for t in published_tables(self._connection, publication)}
            if missing := [t for t in tables if t not in published]:
                raise _not_published(publication, missing)
            self._tables = [published[t] for t in tables]
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """End the snapshot's transaction."""
        self._connection.close()

    def _decoded(self) -> Iterator[ChangeBatch]:
        for table in self._tables:
            schema = read_table_schema(self._connection, table.id, columns=table.column_attnums)
            decoder = CopyDecoder(schema)
            for data, sizes in self._copied(table, schema):
                rows = decoder.decode(data, sizes)
                if rows.num_rows:
                    changes = TableChanges(schema, self._inserts(schema, rows))
                    yield ChangeBatch((changes,), rows.num_rows, 0, None, True, None)

    def _copied(self, table: PublishedTable, schema: ReplicatedTableSchema) -> Iterator[tuple[bytearray, list[int]]]:
        columns = sql.SQL(", ").join(map(_expression, schema.columns))
        where = sql.SQL("" if table.row_filter is None else f" WHERE {table.row_filter}")
        for leaf in table.leaves:
            name = sql.Identifier(leaf.name.schema, leaf.name.name)
            query = sql.SQL("SELECT {} FROM ONLY {}").format(columns, name) + where
            statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query).as_bytes(self._connection)
            yield from copy_out(self._connection.pgconn, statement, f"reading {leaf.name}")

    def _inserts(self, schema: ReplicatedTableSchema, rows: pa.RecordBatch) -> pa.RecordBatch:
        count = rows.num_rows
        ordinals = pa.array(np.arange(self._rows, self._rows + count))
        self._rows += count
        always = [
            pa.repeat("I", count),
            pa.repeat(int(self._lsn), count),
            ordinals,
            pa.repeat(pa.scalar(self._now_us, ALWAYS.field(3).type), count),
            pa.repeat(0, count),
        ]
        own = [rows.column(c.name) for c in schema.columns]
        odd = [rows.column(UNREPRESENTABLE)] if UNREPRESENTABLE in rows.schema.names else []
        layout = change_schema(schema, old=False, unchanged=False, unrepresentable=bool(odd))
        return pa.RecordBatch.from_arrays([*own, *always, *odd], schema=layout)


def _expression(column: Column) -> sql.Composable:
    name = sql.Identifier(column.name)
    if not needs_text_cast(column.type):
        return name
    # concat calls the type's own output function, as the stream does. A composite of NULLs "is null", but is a value.
    return sql.SQL("CASE WHEN {0} IS DISTINCT FROM NULL THEN concat({0}) END").format(name)


def _not_published(publication: str, missing: Sequence[QualifiedTable]) -> NeedsOperator:
    names = ", ".join(map(str, missing))
    return NeedsOperator(
        "table_not_published",
        f"publication {publication} has no table {names}",
        hint=f"ALTER PUBLICATION {publication} ADD TABLE {names}",
    )
