"""The session that holds a lock for which a statement waited in vain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada import codes
from levada.errors import Transient
from levada.values import QualifiedTable

# PostgreSQL does not report which lock it was. A session with an exclusive lock comes first, then the others than
# Levada's own, the oldest transaction first. A query of a table matters to those alone that need it for themselves,
# so that it is no answer if the table and its schema are unknown.
_HOLDER: Final = """
SELECT n.nspname, c.relname, l.mode, l.pid, coalesce(a.usename, ''), coalesce(a.application_name, ''),
    coalesce(a.state, ''), coalesce(to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), '')
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname <> 'pg_catalog'
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND (%(schema)s::text IS NULL OR n.nspname = %(schema)s) AND (%(name)s::text IS NULL OR c.relname = %(name)s)
  AND (%(schema)s::text IS NOT NULL OR l.mode <> 'AccessShareLock')
ORDER BY l.mode <> 'AccessExclusiveLock', starts_with(coalesce(a.application_name, ''), 'levada'),
    l.mode = 'AccessShareLock', a.xact_start
LIMIT 1
"""


@dataclass(frozen=True, slots=True)
class LockHolder:
    """A session with a lock on a table. ``pid`` is None for a prepared transaction.

    The other facts of the session are empty if this role may not see them.
    """

    table: QualifiedTable
    mode: str
    pid: int | None
    role: str = ""
    application: str = ""
    state: str = ""
    since: str = ""

    def __str__(self) -> str:
        return f"{self._session} has table {self.table} in mode {self.mode}"

    @property
    def end(self) -> str:
        """The SQL that shows the session's statement and ends the session, or that finds a prepared transaction."""
        if self.pid is None:
            return "SELECT gid, owner FROM pg_prepared_xacts"
        return f"SELECT query FROM pg_stat_activity WHERE pid = {self.pid}; SELECT pg_terminate_backend({self.pid})"

    @property
    def _session(self) -> str:
        if self.pid is None:
            return "a prepared transaction"
        known = (
            self.role and f"role {self.role}",
            self.application and f"application {self.application}",
            " ".join(filter(None, (self.state, self.since and f"since {self.since}"))),
        )
        return f"PID {self.pid} ({', '.join(filter(None, known))})"


def lock_holder(
    conn: psycopg.Connection[Any], *, schema: str | None = None, name: str | None = None
) -> LockHolder | None:
    """Return the session that most likely holds the lock, on this table, in this schema or in the database.

    None if no session has one any more. Raise psycopg's errors.
    """
    row = conn.execute(_HOLDER, {"schema": schema, "name": name}).fetchone()
    return None if row is None else LockHolder(QualifiedTable(row[0], row[1]), *row[2:])


def name_holder(error: Transient, holder: LockHolder | None, server: str) -> None:
    """Add the session to the error of a lock, and the SQL that ends it at the server to its hint."""
    if holder is not None:
        error.message = f"{error.message}. {holder}"
        error.hint = f"end that session, if it does not end by itself, at the {server}: {holder.end}"


@contextmanager
def store_holder_named(conn: psycopg.Connection[Any], schema: str) -> Iterator[None]:
    """Raise Transient ``store_locked``, which names the session, for ``lock_timeout``. No transaction is open."""
    try:
        yield
    except Transient as error:
        if error.code != codes.LOCK_TIMEOUT:
            raise
        locked = Transient(
            codes.STORE_LOCKED, error.message, hint=f"another session has a table of schema {schema} locked"
        )
        with suppress(psycopg.Error):
            name_holder(locked, lock_holder(conn, schema=schema), "store")
        raise locked from error
