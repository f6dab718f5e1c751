"""The session that holds the lock for which a transaction at the destination waited in vain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

import psycopg

from levada import codes
from levada.errors import Yielded
from levada.values import QualifiedTable

# PostgreSQL does not report which lock it was. A session with an exclusive lock comes first, then the others than
# Levada's own, the oldest transaction first. A query of a table matters to those alone that need it for themselves.
_HOLDER: Final = """
SELECT l.pid, a.usename, a.application_name, a.state,
    to_char(a.xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'), n.nspname, c.relname, l.mode
FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relkind IN ('r', 'p')
JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname <> 'pg_catalog'
LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.granted AND l.locktype = 'relation' AND l.pid IS DISTINCT FROM pg_backend_pid()
  AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
  AND CASE WHEN %(name)s::text IS NULL THEN l.mode <> 'AccessShareLock'
      ELSE n.nspname = %(schema)s AND c.relname = %(name)s END
ORDER BY l.mode <> 'AccessExclusiveLock', starts_with(coalesce(a.application_name, ''), 'levada'), a.xact_start
LIMIT 1
"""


class TableInUse(Yielded):
    """Other sessions use a table that a transaction needs for itself."""

    def __init__(self, place: QualifiedTable) -> None:
        super().__init__(
            codes.DESTINATION_BUSY,
            f"another session uses {place}, and no other may while it is altered or emptied",
            hint="end its transaction, if this does not pass: SELECT pid, xact_start, query FROM pg_stat_activity"
            " ORDER BY xact_start",
        )
        self.place = place


@contextmanager
def holder_named(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Name the session that holds the lock in an error of a lock. The block has ended its transaction."""
    try:
        yield
    except Yielded as error:
        if error.code == codes.DESTINATION_BUSY:
            with suppress(psycopg.Error):
                _name_holder(error, connection)
        raise


def _name_holder(error: Yielded, connection: psycopg.Connection[Any]) -> None:
    place = error.place if isinstance(error, TableInUse) else None
    named = {"schema": place and place.schema, "name": place and place.name}
    found = connection.execute(_HOLDER, named).fetchone()
    if found is None:
        return
    pid, role, application, state, since, schema, name, mode = found
    table = QualifiedTable(schema, name)
    if pid is None:
        holder, end = "a prepared transaction", "SELECT gid, owner FROM pg_prepared_xacts"
    else:
        known = (f"role {role}", application and f"application {application}", state, since and f"since {since}")
        holder = f"PID {pid} ({', '.join(filter(None, known))})"
        end = f"SELECT query FROM pg_stat_activity WHERE pid = {pid}; SELECT pg_terminate_backend({pid})"
    error.message = f"{error.message}. {holder} has table {table} in mode {mode}"
    error.hint = f"end that session, if it does not end by itself, at the destination: {end}"
