"""Locks on the table during its copy, so that the copy shows a single state of the table.

TRUNCATE and statements that rewrite a table are not MVCC-safe: an older snapshot does not show the earlier rows
(PostgreSQL docs, chapter "Concurrency Control", section "Caveats"). An ACCESS SHARE lock on each relation with rows
blocks such statements. Some statements take no conflicting lock, such as ATTACH PARTITION and ALTER TYPE. They are
detected at the end, by a comparison with the catalog.

The locks are taken after the snapshot, because the other order can deadlock. Creating the snapshot's slot waits for
every transaction with an ID, and an ALTER TABLE that waits for the lock has one. Changes between the snapshot and the
locks are detected by a comparison with the catalog too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Transient, Yielded
from levada.postgres.catalog import PublishedTable
from levada.postgres.connection import clamp_application_name
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.storage import read_stored_table
from levada.schema import ReplicatedTableSchema
from levada.schema.storage import TableStorage
from levada.threads import marked_thread
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

READERS: Final = "copy"
"""The suffix of the application name of sessions that read a table."""
GUARDS: Final = "copy-guard"
"""The suffix of the application name of sessions that read the catalog for a copy, and hold the table's locks."""
_POLL_S: Final = 0.25

_GONE: Final = frozenset({codes.TABLE_MISSING, codes.COLUMN_MISSING})

# CREATE INDEX CONCURRENTLY of any table waits for the end of each transaction with an older snapshot, and the like for
# each transaction that uses the table. A copy's sessions are the guards, the readers, and the one that exports the
# snapshot, which all copies of a group have. All give way, because the statement waits for one of them after another.
_WAITED_FOR: Final = """
SELECT pid, relation::bigint, false FROM pg_locks
WHERE NOT granted AND locktype = 'relation' AND mode = 'AccessExclusiveLock' AND relation = ANY(%(leaves)s::oid[])
  AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND waitstart < clock_timestamp() - make_interval(secs => %(blocked_s)s)
UNION ALL
SELECT w.pid, (%(leaves)s::bigint[])[1], true FROM pg_locks w
JOIN pg_locks h ON h.virtualxid = w.virtualxid AND h.locktype = 'virtualxid' AND h.granted
JOIN pg_stat_activity a ON a.pid = h.pid
WHERE NOT w.granted AND w.locktype = 'virtualxid'
  AND w.waitstart < clock_timestamp() - make_interval(secs => %(blocked_s)s)
  AND a.datname = current_database() AND a.usename = session_user AND (a.application_name = ANY(%(sessions)s)
    OR a.backend_type = 'walsender' AND a.state = 'idle in transaction')
LIMIT 1
"""

# A reader whose destination is slow holds its lock for as long as it writes the rows that it has read.
_END_READERS: Final = """
SELECT pg_terminate_backend(a.pid) FROM pg_stat_activity a
WHERE a.usename = session_user AND a.application_name = %s AND a.pid IN (
    SELECT l.pid FROM pg_locks l WHERE l.granted AND l.locktype = 'relation' AND l.relation = ANY(%s::oid[])
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()))
"""

_NAMES: Final = """
SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY(%s::oid[])
"""


@dataclass(frozen=True, slots=True)
class LockLimits:
    """The longest waits for locks, in seconds.

    ``wait_s`` is the wait for the locks of a copy, during which its snapshot stays open. ``blocked_s`` is the time for
    which a copy may block a statement that needs an exclusive lock, or that waits for older transactions. Then the copy
    stops, before a second is over. Every later statement on the table, even a SELECT, queues behind one that waits for
    a lock (PostgreSQL docs, section "Explicit Locking"). A copy may take hours, and the source's applications could not
    use the table for all that time.
    """

    wait_s: float = 10.0
    blocked_s: float = 0.5


LOCKS: Final = LockLimits()
"""The limits of the engine's copies and verifications."""


class TableGuard:
    """Holds the locks of one copy until its rows are read, or until it blocks another statement for too long.

    With ``part``, ``published`` has some of the table's partitions, and the others may change.
    Sessions with the application name ``readers`` end then as well. Thread-safe.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        published: PublishedTable,
        description: TableDescription,
        limits: LockLimits = LOCKS,
        readers: str = "",
        *,
        part: bool = False,
    ) -> None:
        self._part = part
        self._blocked_s = limits.blocked_s
        self._readers = readers
        self._connection = connection
        self._published = published
        self._description = description
        self._ended: LevadaError | None = None
        self._released = False
        self._stop = threading.Event()
        self._thread = marked_thread(self._watch, "levada-copy-guard")

    def ended(self) -> LevadaError | None:
        """Return the error with which the copy must stop, or None while it may continue."""
        return self._ended

    def start(self) -> None:
        """Compare the table with the snapshot, then start to watch the lock queue."""
        self._check()
        self._thread.start()

    def release(self) -> None:
        """Release the locks after the last row was read. Later calls have no effect.

        Raise Transient if the locks were lost, or if the table differs from the snapshot's state of it.
        """
        if not self._released:
            self._check()
            self._released = True
            self.close()

    def close(self) -> None:
        """Stop watching the lock queue, and release the locks."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        try:
            # ROLLBACK would make psycopg forget the prepared statements.
            self._connection.commit()
        except psycopg.Error:
            self._connection.close()

    def _check(self) -> None:
        if self._ended is None:
            self._ended = self._compare()
        if self._ended is not None:
            raise self._ended

    def _compare(self) -> LevadaError | None:
        name = self._published.name
        if self._stop.is_set():
            return Transient("copy_cancelled", f"the copy of {name} has ended")
        try:
            found = read_stored_table(self._connection, self._description.id)
            names = self._names_of_leaves(found)
        except LevadaError as error:
            return error
        if found is None:
            return table_changed(name)
        (named, after), before = found, self._description.storage
        if self._part:
            leaves = {leaf.id for leaf in self._published.leaves}
            before, after = _storage_of(leaves, before), _storage_of(leaves, after)
        same = is_same(self._published, self._description, (named, after), before, names)
        return None if same else table_changed(name)

    def _names_of_leaves(
        self, found: tuple[QualifiedTable, TableStorage] | None
    ) -> Collection[tuple[TableId, str, str]]:
        table, leaves = self._description.id, [int(leaf.id) for leaf in self._published.leaves]
        if found is not None and leaves == [table]:
            return [(table, found[0].schema, found[0].name)]
        with source_errors(f"comparing table {self._published.name} with its copy"):
            return read_leaf_names(self._connection, leaves)

    def _watch(self) -> None:  # runs in the watcher thread
        leaves = [int(leaf.id) for leaf in self._published.leaves]
        while not self._stop.wait(_POLL_S) and self._ended is None:
            try:
                with source_errors(f"watching the locks on table {self._published.name}"):
                    waiting = find_waiting(self._connection, leaves, self._blocked_s, self._readers)
            except LevadaError as error:
                self._ended = self._ended or error
                return
            if waiting is not None and not self._stop.is_set():
                self._ended = self._ended or yielded(self._published.name, waiting)
                # The threads that read the rows stop later.
                end_readers(self._connection, self._readers, leaves, f"table {self._published.name} is copied")


@contextmanager
def hold_table(
    guards: IdleReaders,
    published: PublishedTable,
    schema: ReplicatedTableSchema,
    description: TableDescription,
    limits: LockLimits = LOCKS,
    *,
    part: bool = False,
) -> Iterator[TableGuard]:
    """Hold ACCESS SHARE locks on every relation with rows of the table.

    ``guards`` are sessions for such locks. ``published``, ``schema`` and ``description`` are the table's state in the
    copy's snapshot. ``part`` is that of `TableGuard`. Raise Transient
    ``lock_timeout`` if the locks are not granted in time, and ``table_changed`` if the table changed after the
    snapshot.
    """
    readers = clamp_application_name(guards.server.application_name, READERS)
    # The caller's block is not only about the source, and `lock_leaves` raises its errors as Levada's.
    with guards.held() as conn:
        guard = TableGuard(conn, published, description, limits, readers, part=part)
        try:
            lock_leaves(conn, published, schema, limits.wait_s)
            guard.start()
            yield guard
        finally:
            guard.close()


def lock_leaves(
    conn: psycopg.Connection[Any], published: PublishedTable, schema: ReplicatedTableSchema, wait_s: float
) -> None:
    """Begin a transaction, unless one is open, and lock each partition in it."""
    doing = f"locking table {published.name}"
    try:
        with source_errors(doing):
            idle = conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            limit = f"SET LOCAL lock_timeout = '{int(wait_s * 1000)}ms'"
            conn.execute(f"BEGIN READ ONLY; {limit}" if idle else limit, prepare=False)
            for leaf in published.leaves:
                conn.execute(locking_statement(leaf.name, schema), prepare=False)
    except NeedsOperator as error:
        if error.code in _GONE:
            raise table_changed(published.name) from error
        raise


def is_same(
    published: PublishedTable,
    description: TableDescription,
    found: tuple[QualifiedTable, TableStorage],
    before: TableStorage,
    names: Collection[tuple[TableId, str, str]],
) -> bool:
    """Return True if a table has the rows, names and key of its copy's snapshot, which has the storage ``before``.

    ``found`` is its present name and storage, and ``names`` are those of its partitions. Another primary key may have
    been announced before there was a version that it changes.
    """
    named, after = found
    return (
        named == description.name
        and _column_names(after) == _column_names(before)
        and after.has_rows_of(before)
        and after.has_key_of(before)
        and {row[0] for row in names} == before.leaves.keys()
        and {(leaf.id, leaf.name) for leaf in published.leaves}
        == {(oid, QualifiedTable(schema, relation)) for oid, schema, relation in names}
    )


def read_leaf_names(conn: psycopg.Connection[Any], leaves: Collection[int]) -> Collection[tuple[TableId, str, str]]:
    """Return the OID, the schema and the name of each of the relations that exists."""
    return conn.execute(_NAMES, [list(leaves)]).fetchall()


def locking_statement(leaf: QualifiedTable, schema: ReplicatedTableSchema) -> sql.Composed:
    """Return the statement that locks a partition. It must not be prepared, since a column may get another type.

    A SELECT takes the same lock as LOCK TABLE, but needs privileges only on the copied columns.
    """
    columns = sql.SQL(", ").join(sql.Identifier(c.name) for c in schema.columns)
    return sql.SQL("SELECT {} FROM ONLY {} WHERE false").format(columns, sql.Identifier(leaf.schema, leaf.name))


@dataclass(frozen=True, slots=True)
class Waiting:
    """A session that has waited too long for a copy: for a lock of ``relation``, or for the end of its transactions."""

    pid: int
    relation: TableId
    for_transactions: bool


def find_waiting(
    conn: psycopg.Connection[Any], leaves: Collection[int], blocked_s: float, readers: str
) -> Waiting | None:
    """Return a session that has waited so long for an exclusive lock of a relation, or for older transactions.

    These are the transactions of guards, of ``readers`` and of exported snapshots of this session's login.
    """
    sessions = [conn.info.parameter_status("application_name") or "", readers]
    values = {"leaves": list(leaves), "blocked_s": blocked_s, "sessions": sessions}
    found = conn.execute(_WAITED_FOR, values).fetchone()
    return None if found is None else Waiting(found[0], TableId(found[1]), found[2])


def end_readers(conn: psycopg.Connection[Any], readers: str, leaves: Collection[int], doing: str) -> None:
    """End the sessions with the application name ``readers`` that hold locks of the relations, and this one."""
    try:
        # The role of the login may end its own sessions, and the one that a setting continues as may not.
        conn.execute("SET ROLE NONE")
        conn.execute(_END_READERS, [readers, list(leaves)])
    except psycopg.Error as error:
        _log.info("the readers end by themselves while %s: %s", doing, error)
    conn.close()


def yielded(table: QualifiedTable, waiting: Waiting) -> Yielded:
    """Return the error of a copy that stopped because it blocked a statement."""
    what, hint = "an exclusive lock", "alter the table before or after its copy"
    if waiting.for_transactions:
        what, hint = "older transactions to end", "create and drop indexes CONCURRENTLY before or after copies"
    return Yielded(
        "copy_yielded",
        f"the copy of {table} stopped because it blocked a statement of PID {waiting.pid}, which waits for {what}."
        " The copy restarts automatically",
        hint=hint,
    )


def _storage_of(leaves: Collection[TableId], storage: TableStorage) -> TableStorage:
    return replace(storage, leaves={oid: leaf for oid, leaf in storage.leaves.items() if oid in leaves})


def table_changed(table: QualifiedTable) -> Transient:
    """Return the error of a copy whose table changed after the snapshot."""
    return Transient("table_changed", f"table {table} changed during its copy")


def _column_names(storage: TableStorage) -> dict[int, str]:
    return {attnum: column.name for attnum, column in storage.columns.items() if not column.generated}
