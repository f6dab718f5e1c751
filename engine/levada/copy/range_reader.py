"""Reads one range of a table as Arrow batches, by binary COPY under the exported snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from psycopg import pq, sql

from levada import codes
from levada.copy.guard import READERS
from levada.copy.keyed_rows import KeyedRows
from levada.copy.plan import BlockRange
from levada.copy.reader_sessions import SESSIONS
from levada.errors import NeedsOperator, Transient, Unrepresentable
from levada.mask_keys import NO_KEY_FILES, MaskKeyFiles
from levada.pgoutput.copybinary import CopyDecoder, select_list
from levada.pgoutput.encoding import UnconvertibleTexts
from levada.postgres.connection import PostgresConnection
from levada.postgres.conversion import unconvertible_texts
from levada.postgres.copy_out import copy_out
from levada.postgres.failures import source_errors
from levada.postgres.row_filters import copy_error
from levada.postgres.silence import WatchedConnection
from levada.postgres.slots import ExportedSnapshot
from levada.schema import ReplicatedTableSchema
from levada.schema.changes import UNREPRESENTABLE
from levada.values import OnUnrepresentable, QualifiedTable, quote_identifier, unconvertible_hint, unrepresentable_hint

_GONE: Final = frozenset({codes.TABLE_MISSING, codes.COLUMN_MISSING})
"""Error codes of a statement that refers to a table or column that no longer exists."""


@contextmanager
def snapshot_session(
    connection: PostgresConnection, snapshot: ExportedSnapshot, application: str
) -> Iterator[WatchedConnection]:
    """Open a read-only transaction under the exported snapshot.

    Raise Transient ``snapshot_gone`` if the connection that exported it has closed it.
    """
    with SESSIONS.session(connection, application) as conn:
        begin_snapshot(conn, snapshot)
        yield conn
        # An error, or a COPY that was not read to its end, closes the session instead.
        if conn.info.transaction_status == pq.TransactionStatus.INTRANS:
            with source_errors("ending the copy's snapshot"):
                conn.commit()


def begin_snapshot(conn: WatchedConnection, snapshot: ExportedSnapshot, wait_s: float | None = None) -> None:
    """Begin a read-only transaction under the exported snapshot, which waits at most ``wait_s`` seconds for a lock.

    Raise Transient ``snapshot_gone`` if the connection that exported it has closed it.
    """
    begin = sql.SQL("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET TRANSACTION SNAPSHOT {}")
    statement = begin.format(snapshot.name)
    if wait_s is not None:
        statement += sql.SQL("; SET LOCAL lock_timeout = {}").format(f"{int(wait_s * 1000)}ms")
    with source_errors("setting the copy's snapshot"):
        conn.execute(statement, prepare=False)


@dataclass(slots=True)
class RangeReader:
    """Reads ranges of one table. It is pickled into tasks.

    ``row_filter`` is the publication's row filter as SQL, or None for all rows. ``mask_keys`` are those of masked
    columns. ``rows`` and ``unrepresentable`` count the rows that `batches` yielded and the values that became NULL.
    """

    connection: PostgresConnection
    snapshot: ExportedSnapshot
    schema: ReplicatedTableSchema
    row_filter: str | None
    policy: OnUnrepresentable
    mask_keys: MaskKeyFiles = NO_KEY_FILES
    rows: int = field(default=0, init=False)
    unrepresentable: int = field(default=0, init=False)

    def batches(self, part: BlockRange | KeyedRows) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the range in batches, one for each slice of `copy_out`.

        Raise Unrepresentable, unless the policy is NULL, for a value that the column's type cannot represent. Raise
        Transient ``table_changed`` if a column or the table was dropped or renamed since the snapshot.
        """
        with snapshot_session(self.connection, self.snapshot, READERS) as conn:
            yield from self.batches_in(conn, part)

    def batches_in(self, conn: WatchedConnection, part: BlockRange | KeyedRows) -> Iterator[pa.RecordBatch]:
        """Yield the rows as `batches` does, in a transaction under the snapshot that is open already."""
        try:
            yield from self._batches(conn, part)
        except NeedsOperator as error:
            if error.code in _GONE:
                raise Transient("table_changed", f"table {self.schema.name} changed during its copy") from error
            if error.code == codes.TEXT_UNCONVERTIBLE:
                raise self._unconvertible() from error
            if (named := copy_error(self.schema.name, self.row_filter, error)) is not None:
                raise named from error
            raise

    def _batches(self, conn: WatchedConnection, part: BlockRange | KeyedRows) -> Iterator[pa.RecordBatch]:
        decoder = CopyDecoder(self.schema, self.mask_keys)
        nulls = self.policy is OnUnrepresentable.NULL
        unconvertible = unconvertible_texts(self.connection, conn) if nulls else None
        statement = copy_statement(self.schema, part, self.row_filter, unconvertible)
        if isinstance(part, KeyedRows) and part.by_place:
            # The planner expects each of them in a page that has to be read by itself.
            with source_errors(f"copying {part.leaf}"):
                conn.execute("SET LOCAL enable_seqscan = off")
        for data, sizes in copy_out(conn, statement, f"copying {part.leaf}"):
            batch = self._apply_policy(decoder.decode(data, sizes))
            if batch.num_rows:
                self.rows += batch.num_rows
                yield batch

    def _apply_policy(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Apply the policy to unrepresentable values, which are NULL in ``batch``. No policy makes a key NULL."""
        if UNREPRESENTABLE not in batch.schema.names:
            return batch
        unrepresentable = batch.column(UNREPRESENTABLE)
        found = pc.unique(unrepresentable.keys).to_pylist()
        # Under the policy Text a column whose type was chosen may still have such a value.
        refused = [a for a in found if self.policy is not OnUnrepresentable.NULL or a in self.schema.key]
        if refused:
            raise self._refusal(refused)
        self.unrepresentable += len(unrepresentable.keys)
        return batch.drop_columns([UNREPRESENTABLE])

    def _unconvertible(self) -> Unrepresentable:
        # Under the policy Null, a text outside of the key is left out.
        hint = unconvertible_hint(key=self.policy is OnUnrepresentable.NULL)
        return Unrepresentable(
            "unrepresentable_value",
            f"{self.schema.name} has a text that the source cannot convert to UTF-8",
            hint=f"{hint}change the text, then: levada retry MANIFEST {self.schema.name.argument}",
        )

    def _refusal(self, attnums: list[int]) -> Unrepresentable:
        names = ", ".join(self.schema.by_attnum[a].name for a in sorted(attnums))
        in_key = [a for a in attnums if a in self.schema.key]
        types = dict(self.schema.stored_types)
        chosen = any(self.schema.by_attnum[a].name in types for a in in_key)
        return Unrepresentable(
            "unrepresentable_value",
            f"{self.schema.name} has values in {names} that the destination's type cannot represent",
            hint=f"{unrepresentable_hint(key=bool(in_key), chosen=chosen)}."
            f" Or change the values, then: levada retry MANIFEST {self.schema.name.argument}",
        )


def copy_statement(
    schema: ReplicatedTableSchema,
    part: BlockRange | KeyedRows,
    row_filter: str | None,
    unconvertible: UnconvertibleTexts | None = None,
) -> bytes:
    """Return the COPY statement for a range, or for rows by their keys, with the columns in the schema's order.

    ``unconvertible`` are the texts that become NULL.
    The column names are those of the root table, because every partition has the same ones.
    """
    conditions = [part.condition] if isinstance(part, KeyedRows) else in_blocks(part)
    if row_filter is not None:
        conditions.append(f"({row_filter})")
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    query = f"SELECT {select_list(schema, unconvertible)} FROM ONLY {quote_table(part.leaf)}{where}"
    return f"COPY ({query}) TO STDOUT (FORMAT binary)".encode()


def in_blocks(part: BlockRange) -> list[str]:
    """Return the conditions of the range's rows in SQL."""
    conditions = []
    if part.first:
        conditions.append(f"ctid >= '({part.first},0)'::tid")
    if part.end is not None:
        conditions.append(f"ctid < '({part.end},0)'::tid")
    return conditions


def quote_table(table: QualifiedTable) -> str:
    """Return the table's quoted name for SQL."""
    return f"{quote_identifier(table.schema)}.{quote_identifier(table.name)}"
