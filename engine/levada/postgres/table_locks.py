"""Sessions that hold locks on the source's tables, for the error message of a lock timeout."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada import codes
from levada.errors import Transient
from levada.postgres.failures import source_errors
from levada.values import QualifiedTable

_NAMED: Final = 3
"""The largest number of locks in an error message."""
_VACUUM_LOCK_MS: Final = 1500
"""Above PostgreSQL's deadlock_timeout, a second, after which it cancels an autovacuum."""
_EXCLUSIVE: Final = "AccessExclusiveLock"
"""The mode that keeps a table from being read."""

# The modes that keep a table from being published or read: those that conflict with SHARE UPDATE EXCLUSIVE, which
# ALTER PUBLICATION takes. Every query takes weaker ones. A prepared transaction has no PID.
_HOLDERS: Final = """
SELECT n.nspname, c.relname, s.nspname, r.relname, l.mode, l.pid,
    coalesce(a.application_name, ''), coalesce(a.state, ''),
    to_char(CASE a.state WHEN 'active' THEN a.query_start ELSE a.state_change END AT TIME ZONE 'UTC',
        'YYYY-MM-DD"T"HH24:MI:SS"Z"'), c.relkind = 'p'
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_class r ON r.oid = coalesce(pg_partition_root(c.oid), c.oid) JOIN pg_namespace s ON s.oid = r.relnamespace
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.locktype = 'relation' AND c.relkind IN ('r', 'p') AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('ShareUpdateExclusiveLock', 'ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock',
    'AccessExclusiveLock')
ORDER BY a.xact_start NULLS LAST, 1, 2
"""

_VACUUMED: Final = """
SELECT DISTINCT format('%%I.%%I', n.nspname, c.relname)
FROM unnest(%s::text[], %s::text[]) AS t(schema, name) JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name AND c.relkind = 'r'
JOIN pg_locks l ON l.relation = c.oid AND l.locktype = 'relation' AND l.granted AND l.mode = 'ShareUpdateExclusiveLock'
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
WHERE has_table_privilege(c.oid, 'UPDATE, DELETE, TRUNCATE')
"""

# ALTER PUBLICATION keeps its lock until its transaction ends, and so does a statement whose table the DDL trigger takes
# out of the publication. A comment and another owner have a weaker one, behind which a new table waits as well.
_CHANGERS: Final = """
SELECT l.pid, coalesce(a.application_name, ''), coalesce(a.state, '') FROM pg_locks l
JOIN pg_publication p ON p.oid = l.objid AND l.classid = 'pg_publication'::regclass
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE p.pubname = %s AND l.granted AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND l.mode IN ('AccessExclusiveLock', 'ShareUpdateExclusiveLock')
"""


@dataclass(frozen=True, slots=True)
class TableLock:
    """A lock on a table. ``root`` is a partition's root, and otherwise the table itself.

    ``pid`` is None for a prepared transaction. ``state`` is empty and ``since`` None if this role may not see the
    session. ``since`` is the start of the running statement, or the end of the last one. It is a time and not an age,
    so that the message for the same lock does not change.
    """

    table: QualifiedTable
    root: QualifiedTable
    mode: str
    pid: int | None
    application: str
    state: str
    since: str | None
    partitioned: bool

    def __str__(self) -> str:
        if self.pid is None:
            return f"table {self.table} is locked by a prepared transaction ({self.mode})"
        session = [f"application {self.application}"] if self.application else []
        if self.state and self.since is not None:
            session.append(f"{self.state} since {self.since}")
        return f"table {self.table} is locked by PID {self.pid} ({', '.join([*session, self.mode])})"

    @property
    def exclusive(self) -> bool:
        """Return True if the table cannot be read."""
        return self.mode == _EXCLUSIVE

    def prevents(self, tables: Collection[QualifiedTable]) -> bool:
        """Return True if one of the tables cannot be published. All partitions of a root keep their identities then."""
        return self.table in tables or ((self.exclusive or self.partitioned) and self.root in tables)

    @property
    def release(self) -> str:
        """Return the SQL that ends the lock, or finds the transaction that holds it."""
        return _release(self.pid)


@source_errors("looking for the holders of locks")
def read_table_locks(conn: psycopg.Connection[Any]) -> tuple[TableLock, ...]:
    """Return other sessions' locks that keep tables from being published. The oldest transaction is first.

    An ``ACCESS EXCLUSIVE`` lock keeps a table from being read as well.
    """
    rows = conn.execute(_HOLDERS).fetchall()
    return tuple(TableLock(QualifiedTable(*row[:2]), QualifiedTable(*row[2:4]), *row[4:]) for row in rows)


@contextmanager
def locks_named(conn: psycopg.Connection[Any], selects: Callable[[QualifiedTable], bool]) -> Iterator[None]:
    """Raise Transient ``table_locked``, which names the table and the session, instead of ``lock_timeout``.

    ``lock_timeout`` is raised unchanged if no selected table or partition of one is locked any more.
    """
    try:
        yield
    except Transient as error:
        if error.code != codes.LOCK_TIMEOUT:
            raise
        locks = [lock for lock in read_table_locks(conn) if selects(lock.root)]
        if not locks:
            raise
        raise table_locked(error.message, locks) from error


def table_locked(what: str, locks: Sequence[TableLock]) -> Transient:
    """Return the error of ``what`` other sessions' locks prevent. The hint ends the first of them."""
    more = f", and {len(locks) - _NAMED} more locks" if len(locks) > _NAMED else ""
    message = f"{what}: {', '.join(map(str, locks[:_NAMED]))}{more}"
    return Transient("table_locked", message, hint=f"if the lock does not end by itself: {locks[0].release}")


@source_errors("looking for sessions that change the publication")
def publication_locked(
    conn: psycopg.Connection[Any], publication: str, what: str = "lacks tables for now"
) -> Transient | None:
    """Return the error of a change that another session's open transaction prevents, None if none does.

    From PostgreSQL 15 on, a transaction that has changed the publication keeps all others from that. ``what`` is the
    effect.
    """
    found = conn.execute(_CHANGERS, [publication]).fetchone()
    if found is None:
        return None
    pid, application, state = found
    session = ", ".join(part for part in (application and f"application {application}", state) if part)
    holder = "a prepared transaction" if pid is None else f"PID {pid}" + (f" ({session})" if session else "")
    message = f"publication {publication} {what}: it is being changed by {holder}"
    return Transient("table_locked", message, hint=f"if the transaction does not end by itself: {_release(pid)}")


@contextmanager
def publication_holder_named(conn: psycopg.Connection[Any], publication: str) -> Iterator[None]:
    """Raise Transient ``table_locked``, which names the session, instead of ``lock_timeout``."""
    try:
        yield
    except Transient as error:
        if error.code != codes.LOCK_TIMEOUT:
            raise
        if (named := publication_locked(conn, publication, "cannot be changed for now")) is None:
            raise
        raise named from error


@source_errors("looking for vacuums")
def end_autovacuums(conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]) -> None:
    """Let PostgreSQL cancel the autovacuums of these tables, which may take hours, as it does for each ALTER TABLE.

    It cancels one for a statement that has waited for a second. Nothing else is locked meanwhile, so that the wait is
    no part of a deadlock, and no INSERT, UPDATE or DELETE waits for it. One against wraparound goes on.
    """
    names = [[t.schema for t in tables], [t.name for t in tables]]
    for (relation,) in conn.execute(_VACUUMED, names).fetchall():
        with suppress(Transient), source_errors(f"waiting for a vacuum of {relation}"), conn.transaction():
            conn.execute(f"SET LOCAL lock_timeout = '{_VACUUM_LOCK_MS}ms'")
            conn.execute(f"LOCK TABLE ONLY {relation} IN SHARE UPDATE EXCLUSIVE MODE".encode())


def _release(pid: int | None) -> str:
    if pid is None:
        return "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    return f"SELECT pg_terminate_backend({pid})"


def require_unlocked(conn: psycopg.Connection[Any], table: QualifiedTable) -> None:
    """Raise Transient ``table_locked`` if another session keeps the table, or a partition of it, from being read."""
    locks = [lock for lock in read_table_locks(conn) if lock.root == table and lock.exclusive]
    if locks:
        raise table_locked(f"the copy of table {table} waits", locks)
