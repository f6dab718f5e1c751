"""A mark in the WAL at which the columns of a table are known.

PostgreSQL streams a change of columns only with the next row. A mark is a message in a transaction that holds a lock on
the table, so every row that commits after it has the columns of the catalog at that moment, or later ones.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator, Transient
from levada.postgres.catalog import describe_without_waiting
from levada.postgres.description import TableDescription
from levada.postgres.failures import source_errors
from levada.values import TableId

MARK_PREFIX: Final = "levada_columns"

_LOCK_MS: Final = 200
"""The longest wait for the lock. Later statements on the table queue behind it."""


_NAME: Final = """
SELECT n.nspname, c.relname, pg_is_in_recovery()
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""


def write_mark(
    conn: psycopg.Connection[Any], table: TableId, content: Callable[[TableDescription], str]
) -> TableDescription | None:
    """Write a mark for the table, and return the definition of the table there, None if there is no such table.

    ``content`` returns the text of the mark, before it is in the WAL. Raise Transient ``lock_timeout`` while another
    session has locked the table, ``table_changed`` if it was renamed meanwhile, and NeedsOperator ``source_standby``
    for a standby, which cannot write WAL.
    """
    with source_errors("marking the columns of a table"), conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '{_LOCK_MS}ms'")
        found = conn.execute(_NAME, [int(table)]).fetchone()
        if found is None:
            return None
        schema, name, standby = found
        if standby:
            raise NeedsOperator("source_standby", "a standby cannot write a message into the WAL")
        # The same lock as LOCK TABLE takes, but privileges on one column are enough. ALTER TABLE waits for it.
        conn.execute(sql.SQL("SELECT FROM ONLY {} WHERE false").format(sql.Identifier(schema, name)))
        if conn.execute(_NAME, [int(table)]).fetchone() != found:
            raise Transient("table_changed", f"table {schema}.{name} was renamed")
        description = describe_without_waiting(conn, table)
        conn.execute("SELECT pg_logical_emit_message(true, %s, %s)", [MARK_PREFIX, content(description)])
    return description
