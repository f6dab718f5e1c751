"""Reads of the catalog in a database with another encoding than UTF8, in which names may have what UTF-8 lacks.

The server refuses the whole result for one such name. A table with one is left out of a list, because no statement of
Levada can name it. One with a column of such a name is read alone, and the error names it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.errors import StatementRefused
from levada.postgres.conversion import UTF8
from levada.postgres.failures import source_errors
from levada.values import TableId

_log = logging.getLogger(__name__)

CANNOT: Final = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
_OCTETS: Final = sql.SQL("pg_catalog.convert_to({}::text, 'SQL_ASCII')")
"""A name in the encoding of the database, because SQL_ASCII takes any text as it is."""
_SCHEMA, _NAME = _OCTETS.format(sql.SQL("q.nspname")), _OCTETS.format(sql.SQL("q.relname"))
_CONVERT: Final = "SELECT pg_catalog.convert(%b, pg_catalog.getdatabaseencoding(), 'UTF8')"


_NAMES: Final = """
SELECT a.attnum, pg_catalog.convert_to(a.attname::text, 'SQL_ASCII'),
    pg_catalog.convert_to(n.nspname::text, 'SQL_ASCII'), pg_catalog.convert_to(c.relname::text, 'SQL_ASCII')
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.oid = %s ORDER BY a.attnum
"""


def is_utf8(conn: psycopg.Connection[Any]) -> bool:
    """Return True if the database has no text that UTF-8 lacks."""
    return (conn.info.parameter_status("server_encoding") or UTF8) == UTF8


@contextmanager
def naming(conn: psycopg.Connection[Any], table: TableId) -> Iterator[None]:
    """Run a query of one table's catalog entry. Raise StatementRefused ``text_unconvertible`` with its name."""
    if is_utf8(conn):
        yield
        return
    try:
        with conn.transaction():
            yield
    except CANNOT as error:
        raise _unconvertible(conn, table) from error


@source_errors("reading the names of a table")
def _unconvertible(conn: psycopg.Connection[Any], table: TableId) -> StatementRefused:
    rows = conn.execute(_NAMES, [int(table)]).fetchall()
    shown = ".".join(_shown(part) for part in rows[0][2:]) if rows else f"with OID {int(table)}"
    lacking = [(n, name) for n, name, *_ in rows if name is not None and not _is_convertible(conn, name)]
    if not lacking:
        return StatementRefused(
            "text_unconvertible",
            f"table {shown} has a type, a value of an enum or a default with characters that UTF-8 lacks",
            hint="rename it. The log of the server has the statement",
        )
    number, name = lacking[0]
    rename = sql.SQL(
        "DO $$ BEGIN EXECUTE (SELECT"
        " format('ALTER TABLE %I.%I RENAME %I TO column_{number}', nspname, relname, attname)"
        " FROM pg_attribute JOIN pg_class c ON c.oid = attrelid JOIN pg_namespace n ON n.oid = relnamespace"
        " WHERE attrelid = {table} AND attnum = {number}); END $$"
    ).format(number=sql.Literal(number), table=sql.Literal(int(table)))
    return StatementRefused(
        "text_unconvertible",
        f"table {shown} has a column whose name has characters that UTF-8 lacks, number {number}: {_shown(name)}",
        hint=f"rename the column, which this does from any client: {rename.as_string(None)}",
    )


def _shown(name: bytes) -> str:
    return name.decode("ascii", "backslashreplace")


def named_rows(
    conn: psycopg.Connection[Any], query: sql.Composed, params: Mapping[str, object] | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a query that has the columns ``nspname`` and ``relname``, but for names that UTF-8 lacks."""
    if is_utf8(conn):
        return conn.execute(query, params).fetchall()
    try:
        with conn.transaction():
            return conn.execute(query, params).fetchall()
    except CANNOT:
        pass
    pairs = sql.SQL("SELECT {}, {} FROM ({}) AS q").format(_SCHEMA, _NAME, query)
    named = conn.execute(pairs, params).fetchall()
    lacking = [pair for pair in named if not all(_is_convertible(conn, name) for name in pair)]
    shown = sorted({_shown(b".".join(pair)) for pair in lacking})
    _log.warning("%d tables have names with characters that UTF-8 lacks: %s", len(shown), ", ".join(shown[:10]))
    kept = sql.SQL("SELECT q.* FROM ({}) AS q WHERE {}").format(
        query,
        sql.SQL(" AND ").join(
            sql.SQL("NOT ({} = {} AND {} = {})").format(_SCHEMA, sql.Literal(schema), _NAME, sql.Literal(name))
            for schema, name in lacking
        ),
    )
    return conn.execute(kept, params).fetchall()


@source_errors("converting a name to UTF-8")
def _is_convertible(conn: psycopg.Connection[Any], name: bytes) -> bool:
    if name.isascii():
        return True
    try:
        with conn.transaction():
            conn.execute(_CONVERT, [name])
    except CANNOT:
        return False
    return True
