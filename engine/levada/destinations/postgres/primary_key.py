"""The primary key of a table at the destination, when the source's table gets another one."""

from __future__ import annotations

import logging
from typing import Final

import psycopg
from psycopg import sql

from levada.destinations.fenced import key_changed
from levada.destinations.postgres.connections import lock_exclusively
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.state import TableRow
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema

_log = logging.getLogger(__name__)

_FIND: Final = "SELECT conname::text FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"
_UNFIT: Final = (
    psycopg.errors.UniqueViolation,
    psycopg.errors.NotNullViolation,
    psycopg.errors.ProgramLimitExceeded,
    psycopg.errors.UndefinedObject,
)
"""Rows with the same key, a NULL, a value that is too long for an index, and a type without an order."""


def take_key(connection: WatchedConnection, row: TableRow, schema: ReplicatedTableSchema) -> None:
    """Make the key of ``schema`` the table's primary key, in place of that of ``row``.

    The table has every row of the source from before that key, with its columns. Readers wait for a scan of the table
    at most, because the index is built before they are locked out. Raise NeedsOperator ``key_changed`` if the rows do
    not allow the key, and Yielded if the table has readers.
    """
    names = {c.attnum: c.name for c in row.layout.columns}
    if not names.keys() >= set(schema.key):
        raise key_changed(row.place, schema, "it lacks a column of the new one")
    columns = sql.SQL(", ").join(sql.Identifier(names[a]) for a in schema.key)
    found = connection.execute(_FIND, [row.relation]).fetchone()
    # No name of a user begins like this. The constraint gives the index the usual one.
    index = sql.Identifier(f"_levada_key_{row.relation}")
    alter = sql.SQL("ALTER TABLE {} ").format(identifier(row.place))
    try:
        connection.execute(sql.SQL("CREATE UNIQUE INDEX {} ON {} ({})").format(index, identifier(row.place), columns))
        lock_exclusively(connection, row.place)
        if found is not None:
            connection.execute(alter + sql.SQL("DROP CONSTRAINT {}").format(sql.Identifier(found[0])))
        named = sql.Identifier(found[0] if found is not None else f"{row.place.name[:50]}_pkey")
        connection.execute(alter + sql.SQL("ADD CONSTRAINT {} PRIMARY KEY USING INDEX {}").format(named, index))
        for attnum in sorted(set(row.key) - set(schema.key)):
            # The former key has left it, up to PostgreSQL 17 and after it.
            connection.execute(alter + sql.SQL("ALTER COLUMN {} DROP NOT NULL").format(sql.Identifier(names[attnum])))
    except _UNFIT as error:
        raise key_changed(row.place, schema, f"its rows do not allow the new one ({error.sqlstate})") from None
    _log.info("%s: its primary key is another one now", row.place)
