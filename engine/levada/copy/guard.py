"""Locks on the table that is copied, so that the copy shows one state of it.

A statement that rewrites or truncates a table is not seen right under an older snapshot (PostgreSQL docs, "Caveats" of
"Concurrency Control"). An ACCESS SHARE lock on each relation that holds rows keeps such statements out. Statements that
need no conflicting lock, such as ATTACH PARTITION or ALTER TYPE, are found by comparing the catalog at the end.

The locks are taken after the snapshot. In the other order the copy could wait for itself: creating the snapshot's slot
waits for every transaction that has an ID, and an ALTER TABLE that waits for our lock has one. So what happened between
the snapshot and the locks is found by comparing the catalog as well.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import LevadaError, NeedsOperator, Transient
from levada.postgres.catalog import PublishedTable, read_table_description
from levada.postgres.connection import PostgresConnection
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable

LOCK_TIMEOUT_S: Final = 10.0
"""How long to wait for the locks. The snapshot is held meanwhile."""
PATIENCE_S: Final = 10.0
"""How long a statement may wait for an exclusive lock until the copy gives way.

Every later statement on the table, reading ones included, queues behind the one that waits (PostgreSQL docs, "Explicit
Locking"). A copy may take hours, so holding on would take the table away from the source's applications.
"""
_POLL_S: Final = 1.0

_GONE: Final = frozenset({"table_missing", "column_missing"})

_WAITED_FOR: Final = """
SELECT pid FROM pg_locks
WHERE NOT granted AND locktype = 'relation' AND mode = 'AccessExclusiveLock' AND relation = ANY(%s::oid[])
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND waitstart < clock_timestamp() - make_interval(secs => %s)
LIMIT 1
"""

_NAMES: Final = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[])
"""


class TableGuard:
    """Holds the locks of one copy, until its rows are read or it gives way. Safe to use from several threads."""

    def __init__(
        self, connection: psycopg.Connection[Any], published: PublishedTable, description: TableDescription
    ) -> None:
        self._connection = connection
        self._published = published
        self._description = description
        self._ended: LevadaError | None = None
        self._released = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="levada-copy-guard", daemon=True)

    def ended(self) -> LevadaError | None:
        """Return the error that the copy ends with, None while it may go on."""
        return self._ended

    def start(self) -> None:
        """Compare the table with the snapshot, then begin to watch the lock queue."""
        self._check()
        self._thread.start()

    def release(self) -> None:
        """Give the locks back after the last row was read. Later calls change nothing.

        Raise Transient unless the locks were held until now and the table is as the snapshot shows it.
        """
        if not self._released:
            self._check()
            self._released = True
            self.close()

    def close(self) -> None:
        """Stop watching and give the locks back."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._connection.close()

    def _check(self) -> None:
        if self._ended is None:
            self._ended = self._compare()
        if self._ended is not None:
            raise self._ended

    def _compare(self) -> LevadaError | None:
        name = self._published.name
        try:
            now = read_table_description(self._connection, self._description.id)
            with source_errors(f"comparing table {name} with its copy"):
                names = self._connection.execute(_NAMES, [[leaf.id for leaf in self._published.leaves]]).fetchall()
        except NeedsOperator as error:
            return table_changed(name) if error.code in _GONE else error
        except LevadaError as error:
            return error
        same = (
            _shape(now) == _shape(self._description)
            and now.storage.has_rows_of(self._description.storage)
            and {row[0] for row in names} == self._description.storage.leaves.keys()
            and {(leaf.id, leaf.name) for leaf in self._published.leaves}
            == {(oid, QualifiedTable(schema, relation)) for oid, schema, relation in names}
        )
        return None if same else table_changed(name)

    def _watch(self) -> None:  # in a thread of its own
        leaves = [int(leaf.id) for leaf in self._published.leaves]
        while not self._stop.wait(_POLL_S) and self._ended is None:
            try:
                with source_errors(f"watching the locks on table {self._published.name}"):
                    waited_for = self._connection.execute(_WAITED_FOR, [leaves, PATIENCE_S]).fetchone()
            except LevadaError as error:
                self._ended = self._ended or error
                return
            if waited_for is not None and not self._stop.is_set():
                self._ended = self._ended or Transient(
                    "copy_yielded",
                    f"the copy of {self._published.name} gave way to a statement of PID {waited_for[0]}, which waits"
                    " for an exclusive lock. It begins again by itself, as often as a statement waits",
                    hint="change the table before its copy or after it",
                )
                # The copy's readers end a little later.
                self._connection.close()


@contextmanager
def hold_table(
    connection: PostgresConnection,
    published: PublishedTable,
    schema: ReplicatedTableSchema,
    description: TableDescription,
) -> Iterator[TableGuard]:
    """Hold ACCESS SHARE locks on every relation that holds the table's rows.

    ``published``, ``schema`` and ``description`` are the table as the copy's snapshot shows it. Raise Transient
    ``lock_timeout`` if the locks cannot be had, ``table_changed`` if the table was changed after the snapshot.
    """
    conn = connection.connect(application="copy-guard")
    guard = TableGuard(conn, published, description)
    try:
        lock_leaves(conn, published, schema)
        guard.start()
        yield guard
    finally:
        guard.close()


def lock_leaves(conn: psycopg.Connection[Any], published: PublishedTable, schema: ReplicatedTableSchema) -> None:
    """Begin a transaction, unless one is open, and lock each leaf in it.

    A query takes the lock that LOCK TABLE would take, but needs no privilege on columns that are not copied.
    """
    columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in schema.columns)
    doing = f"locking table {published.name}"
    try:
        with source_errors(doing):
            if conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE:
                conn.execute("BEGIN READ ONLY")
            conn.execute(f"SET LOCAL lock_timeout = '{int(LOCK_TIMEOUT_S * 1000)}ms'")
            for leaf in published.leaves:
                name = sql.Identifier(leaf.name.schema, leaf.name.name)
                conn.execute(sql.SQL("SELECT {} FROM ONLY {} WHERE false").format(columns, name))
    except NeedsOperator as error:
        if error.code in _GONE:
            raise table_changed(published.name) from error
        raise


def table_changed(table: QualifiedTable) -> Transient:
    """Return the error of a copy whose table was changed after the snapshot."""
    return Transient("table_changed", f"table {table} was changed while it was copied")


def _shape(description: TableDescription) -> tuple[object, ...]:
    return description.name, [(c.attnum, c.name) for c in description.columns]
