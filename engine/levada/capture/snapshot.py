"""The current rows of tables as a finite stream of inserts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
from psycopg import sql

from levada.capture.requirements import table_not_published
from levada.capture.streams import BatchSource
from levada.pgoutput.changes import TRANSACTIONS, ChangeBatch, TableChanges
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.postgres.catalog import Leaf, PublishedTable, published_tables, read_table_schema, streamed_tables
from levada.postgres.connection import PostgresConnection
from levada.postgres.copy_out import copy_out
from levada.postgres.failures import source_errors
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import ALWAYS, UNREPRESENTABLE, change_schema
from levada.values import Lsn, QualifiedTable

_NONE_COMMITTED: Final = TRANSACTIONS.empty_table()

_NOW: Final = """
SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END)::text,
    (extract(epoch FROM now()) * 1000000)::bigint
"""


class SnapshotSource(BatchSource):
    """The tables' rows under one snapshot, in the order of ``tables``.

    The rows form one transaction. Its ``commit_lsn`` is the end of the WAL about when the snapshot was taken. The
    ordinals number the rows.
    """

    finite = True

    def __init__(self, connection: PostgresConnection, publication: str, tables: Sequence[QualifiedTable]) -> None:
        self._publication = publication
        self._rows = 0
        self._connection = connection.connect(application="snapshot")
        try:
            # Check before LOCK TABLE, whose error message for a missing table is less helpful.
            self._require(tables)
            with source_errors("taking a snapshot"):
                self._connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                self._lock(tables)
                [(lsn, now)] = self._connection.execute(_NOW).fetchall()
            self._lsn, self._now_us = Lsn.parse(lsn), int(now)
            self._tables = self._require(tables)
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """End the snapshot's transaction."""
        self._connection.close()

    def abandon(self) -> None:
        """End the snapshot's transaction."""
        self._connection.close()

    def decoded(self) -> Iterator[ChangeBatch]:
        """Yield the rows, one partition after another."""
        for table in self._tables:
            schema = read_table_schema(
                self._connection, table.id, publication=self._publication, columns=table.column_attnums
            )
            for leaf in table.leaves:
                # Each COPY begins with its own header.
                decoder = CopyDecoder(schema)
                for data, sizes in self._copied(leaf, table.row_filter, schema):
                    rows = decoder.decode(data, sizes)
                    if rows.num_rows:
                        changes = TableChanges(schema, self._inserts(schema, rows))
                        yield ChangeBatch((changes,), rows.num_rows, 0, None, True, None, _NONE_COMMITTED, None)

    def _require(self, tables: Sequence[QualifiedTable]) -> list[PublishedTable]:
        ids = [t.id for t in streamed_tables(self._connection, self._publication) if t.name in tables]
        published = {t.name: t for t in published_tables(self._connection, self._publication, ids)}
        if missing := [t for t in tables if t not in published]:
            raise table_not_published(self._connection, self._publication, missing)
        return [published[t] for t in tables]

    def _lock(self, tables: Sequence[QualifiedTable]) -> None:
        """Lock the tables against TRUNCATE and rewrites before the snapshot is taken.

        Neither is MVCC-safe: https://www.postgresql.org/docs/current/mvcc-caveats.html
        """
        if tables:
            names = sql.SQL(", ").join(sql.Identifier(t.schema, t.name) for t in tables)
            self._connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(names))

    def _copied(
        self, leaf: Leaf, row_filter: str | None, schema: ReplicatedTableSchema
    ) -> Iterator[tuple[bytearray, list[int]]]:
        columns = sql.SQL(select_list(schema))
        where = sql.SQL("" if row_filter is None else f" WHERE {row_filter}")
        name = sql.Identifier(leaf.name.schema, leaf.name.name)
        query = sql.SQL("SELECT {} FROM ONLY {}").format(columns, name) + where
        statement = sql.SQL("COPY ({}) TO STDOUT (FORMAT binary)").format(query).as_bytes(self._connection)
        return copy_out(self._connection, statement, f"reading {leaf.name}")

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
