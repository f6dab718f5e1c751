"""One range of a table as Arrow batches: binary COPY under the exported snapshot, decoded column by column."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from levada.copy.plan import BlockRange
from levada.errors import NeedsOperator, Transient, Unrepresentable
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.postgres.connection import PostgresConnection
from levada.postgres.copy_out import copy_out
from levada.postgres.failures import source_errors
from levada.postgres.silence import WatchedConnection
from levada.postgres.slots import ExportedSnapshot
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import UNREPRESENTABLE
from levada.values import OnUnrepresentable, QualifiedTable, quote_identifier

_GONE: Final = frozenset({"table_missing", "column_missing"})
"""Codes of a statement that names what is no longer there."""


@contextmanager
def snapshot_session(
    connection: PostgresConnection, snapshot: ExportedSnapshot, application: str
) -> Iterator[WatchedConnection]:
    """Open a read-only transaction that sees what the snapshot holds.

    Raise Transient ``snapshot_gone`` if whoever exported it holds it no more.
    """
    conn = connection.connect(application=application)
    try:
        with source_errors("taking on the copy's snapshot"):
            conn.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            conn.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot.name))
        yield conn
    finally:
        # Not by psycopg's own context manager: it would try to end the transaction in the middle of a COPY.
        conn.close()


@dataclass(slots=True)
class RangeReader:
    """Reads ranges of one table; pickled into tasks. ``rows`` and ``unrepresentable`` count what `batches` yielded.

    ``row_filter`` is the publication's, as SQL; None: all rows.
    """

    connection: PostgresConnection
    snapshot: ExportedSnapshot
    schema: ReplicatedTableSchema
    row_filter: str | None
    policy: OnUnrepresentable
    rows: int = field(default=0, init=False)
    unrepresentable: int = field(default=0, init=False)

    def batches(self, part: BlockRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range, as many at a time as `copy_out` has in a slice.

        Raise Unrepresentable under the policy ERROR for a value that its column's type has no place for, and Transient
        ``table_changed`` if the table no longer has the columns or the name that the snapshot shows.
        """
        try:
            yield from self._batches(part)
        except NeedsOperator as error:
            if error.code in _GONE:
                raise Transient("table_changed", f"table {self.schema.name} was changed while it was copied") from error
            raise

    def _batches(self, part: BlockRange) -> Iterator[pa.RecordBatch]:
        decoder = CopyDecoder(self.schema)
        statement = copy_statement(self.schema, part, self.row_filter)
        with snapshot_session(self.connection, self.snapshot, "copy") as conn:
            for data, sizes in copy_out(conn, statement, f"copying {part.leaf}"):
                batch = self._settle(decoder.decode(data, sizes))
                if batch.num_rows:
                    self.rows += batch.num_rows
                    yield batch

    def _settle(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Decide what becomes of values without a place in their column, which holds NULL for them."""
        if UNREPRESENTABLE not in batch.schema.names:
            return batch
        told = batch.column(UNREPRESENTABLE)
        if self.policy is OnUnrepresentable.ERROR:
            raise self._refusal(pc.unique(told.keys).to_pylist())
        self.unrepresentable += len(told.keys)
        return batch.drop_columns([UNREPRESENTABLE])

    def _refusal(self, attnums: list[int]) -> Unrepresentable:
        names = ", ".join(self.schema.by_attnum[a].name for a in sorted(attnums))
        return Unrepresentable(
            "unrepresentable_value",
            f"{self.schema.name} has values in {names} that the destination's type has no place for",
            hint="set spec.onUnrepresentable to Null or Text, or change the values; then retry the table",
        )


def copy_statement(schema: ReplicatedTableSchema, part: BlockRange, row_filter: str | None) -> bytes:
    """Return the COPY of a range, in the order of the schema's columns. Names are the root's in every leaf."""
    conditions = []
    if part.first:
        conditions.append(f"ctid >= '({part.first},0)'::tid")
    if part.end is not None:
        conditions.append(f"ctid < '({part.end},0)'::tid")
    if row_filter is not None:
        conditions.append(f"({row_filter})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT {select_list(schema)} FROM ONLY {quote_table(part.leaf)}{where}"
    return f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()


def quote_table(table: QualifiedTable) -> str:
    """Return the name for SQL."""
    return f"{quote_identifier(table.schema)}.{quote_identifier(table.name)}"
