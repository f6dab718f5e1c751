"""One version of a table at the destination, whose checksums its server computes in one transaction.

The transaction is REPEATABLE READ, so that later writes do not change what it reads. It keeps the server from removing
old versions of rows, as a long query does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final, Self, TypeAlias

import psycopg
import pyarrow as pa
from psycopg import sql

from levada.copy.plan import BlockRange
from levada.destinations.checksum_sql import ChecksumSql, at_places, joined_places, read_result
from levada.destinations.postgres.columns import HeldColumn, Layout
from levada.destinations.postgres.connections import begin_transaction, open_connection
from levada.destinations.postgres.failures import destination_errors
from levada.destinations.postgres.left_out import read_rows
from levada.destinations.postgres.lock_holders import holder_named
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.state import find_relation
from levada.destinations.postgres.types import column_type, held_shape
from levada.destinations.verification import CHUNKS, PLACE, PLACES, Comparison, FixedTable
from levada.errors import LevadaError, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.kept_rows import DELETED_AT_ATTNUM
from levada.schema.masking import plain_column
from levada.values import Lsn, OnUnrepresentable, QualifiedTable, quote_identifier

_SETTINGS: Final = "SELECT set_config('extra_float_digits', '3', true), set_config('bytea_output', 'hex', true)"
_TEXT: Final = 25
_PLACES_AT_ONCE: Final = 20_000
_TEXT_ARRAY: Final = 1009

Shown: TypeAlias = tuple[QualifiedTable, Layout, Lsn]
"""The relation whose rows a version shows, its columns, and its watermark."""
ReadState: TypeAlias = Callable[[WatchedConnection], Shown | None]
"""Reads in the transaction of a version what it shows. None if there is no table."""


class PostgresVersion(FixedTable):
    """The rows of a table as of its watermark ``applied``. Thread-safe."""

    def __init__(self, server: PostgresConnection, schema: ReplicatedTableSchema, *, keeps_columns: bool) -> None:
        self.schema = schema
        self.keeps_columns = keeps_columns
        self.columns: Mapping[int, str] = {}
        self.applied = Lsn(0)
        self._server = server
        self._place = schema.name
        self._held: Mapping[int, HeldColumn] = {}
        self._utf8 = True
        self._ended = False
        self._connection = open_connection(server, "verify")

    @classmethod
    def open(
        cls, server: PostgresConnection, schema: ReplicatedTableSchema, state_of: ReadState, *, keeps_columns: bool
    ) -> Self | None:
        """Return the version that ``state_of`` finds, or None if it finds none."""
        version = cls(server, schema, keeps_columns=keeps_columns)
        try:
            connection = version.begin()
            with version._errors("reading the state"):
                found = state_of(connection)
            if found is None:
                version.close()
                return None
            version.show(*found)
        except BaseException:
            version.close()
            raise
        return version

    def begin(self) -> WatchedConnection:
        """Begin the transaction, and return its connection to read the table's state. Call `show` next."""
        connection = self._connection
        with self._errors("beginning"):
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            begin_transaction(connection)
            self.set_formats(connection)
            row = connection.execute("SELECT current_setting('server_encoding') = 'UTF8'").fetchone()
        self._utf8 = bool(row and row[0])
        return connection

    def show(self, place: QualifiedTable, layout: Layout, applied: Lsn) -> None:
        """Set the table that is compared, with its columns and its watermark."""
        self._place, self.applied = place, applied
        self._held = {c.attnum: c for c in layout.columns}
        self.columns = {c.attnum: c.name for c in layout.columns}
        with self._errors("reading the size"):
            row = self._connection.execute(
                "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = %s",
                [find_relation(self._connection, place)],
            ).fetchone()
        self.estimated_rows = row[0] if row else 0

    def chunks(self, comparison: Comparison) -> pa.Table:
        """Return the checksums of all rows by chunk, in the schema `CHUNKS`."""
        return self._read(comparison, lambda statements, part: statements.chunks(part), CHUNKS)

    def rows(self, comparison: Comparison, chunks: Sequence[int]) -> pa.Table:
        """Return the checksums of the rows of some chunks by key, in the schema `Comparison.rows_schema`."""
        return self._read(comparison, lambda statements, part: statements.rows(part, chunks), comparison.rows_schema)

    def values(self, comparison: Comparison, hashes: pa.Array) -> pa.Table:
        """Return the values of the rows whose keys have these hashes, as text for people, in `values_schema`."""
        numbers = hashes.to_pylist()
        return self._read(
            comparison, lambda statements, part: statements.values(part, numbers), comparison.values_schema
        )

    def digests(self, comparison: Comparison, chunks: Sequence[int] | None) -> pa.Table:
        """Return the hashes of each row of some chunks, None for all, in the schema `PLACES`."""
        return self._read(comparison, lambda statements, part: statements.digests(part, chunks), PLACES)

    def rows_at(self, comparison: Comparison, places: pa.Table) -> pa.Table:
        """Return the checksums of some rows of `digests` by key, in the schema `Comparison.rows_schema`."""
        if not places.num_rows:
            return comparison.rows_schema.empty_table()
        wanted = joined_places(places[PLACE])
        return self._read(comparison, lambda statements, part: statements.rows_at(part, wanted), comparison.rows_schema)

    def set_formats(self, connection: WatchedConnection) -> None:
        """Set the formats of values for the transaction, on which the hashes depend."""
        connection.execute(_SETTINGS)

    def statements(self, comparison: Comparison) -> ChecksumSql:
        """Return the builder of statements with the columns as the destination has them."""
        held = {c.attnum: _at_destination(c, self._held[c.attnum]) for c in comparison.columns}
        here = replace(
            comparison,
            columns=tuple(held[c.attnum] for c in comparison.columns),
            key=tuple(held[c.attnum] for c in comparison.key),
        )
        # What the destination cannot have must not be taken for the NULL that it should have.
        return ChecksumSql(here, self._shown(comparison), OnUnrepresentable.ERROR, self._utf8)

    def _shown(self, comparison: Comparison) -> str | None:
        """Return the condition of the rows that are compared, None for all."""
        if comparison.marked is None:
            return None
        return f"{self._mark} IS {'NOT ' if comparison.marked else ''}NULL"

    @property
    def _mark(self) -> str:
        return quote_identifier(self._held[DELETED_AT_ATTNUM].name)

    def marked_rows(self) -> int:
        """Return the number of rows with the mark of deleted ones."""
        count = sql.SQL("SELECT count({}) FROM {}").format(sql.SQL(self._mark), identifier(self._place))
        with self._errors("counting the rows"):
            row = self._connection.execute(count).fetchone()
        return int(row[0]) if row else 0

    def whole_rows(self, schema: ReplicatedTableSchema, places: pa.Table) -> Iterator[pa.RecordBatch]:
        """Yield these rows of `digests` in the columns of ``schema``."""
        for first in range(0, places.num_rows, _PLACES_AT_ONCE):
            some = joined_places(places[PLACE].slice(first, _PLACES_AT_ONCE))
            condition = sql.SQL(f"WHERE {at_places(some)}")
            with self._errors("reading rows"):
                yield from read_rows(self._connection, self._place, tuple(self._held.values()), schema, condition)

    def _read(
        self, comparison: Comparison, statement: Callable[[ChecksumSql, BlockRange], str], layout: pa.Schema
    ) -> pa.Table:
        text, query = bytearray(), statement(self.statements(comparison), BlockRange(self._place, 0, None, 0))
        command = sql.SQL("COPY ({}) TO STDOUT (FORMAT csv)").format(sql.SQL(query))
        with self._errors("computing checksums"), self._connection.cursor() as cursor, cursor.copy(command) as copy:
            for data in copy:
                text += data
        return read_result(text, layout)

    def end(self) -> None:
        """Let the table be changed in a way that waits for its readers. A comparison that runs begins again."""
        self._ended = True
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=5)
        self.close()

    def close(self) -> None:
        """End the transaction."""
        with suppress(Exception):
            self._connection.close()

    @contextmanager
    def _errors(self, doing: str) -> Iterator[None]:
        try:
            what = f"{doing} of {self._place} at {self._server.where}"
            with holder_named(self._connection), destination_errors(what):
                yield
        except LevadaError as error:
            if self._ended:
                raise Transient("table_changed", f"{self._place} was changed during its verification") from error
            raise


def _at_destination(column: Column, held: HeldColumn) -> Column:
    """Return the source's column as the destination has it: its name, and text in place of a type that it lacks."""
    column = plain_column(column)
    oid = column.type_oid
    if column_type(column) != column.type_name:
        oid = _TEXT_ARRAY if column.type.depth else _TEXT
    return replace(column, name=held.name, type_oid=oid, type=held_shape(column.type))
