"""Lists of tables in a database with another encoding than UTF8, without those whose names UTF-8 lacks.

The server refuses the whole list for one such name. No statement of Levada can name that table, which is left out.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.conversion import UTF8

_log = logging.getLogger(__name__)

_CANNOT: Final = (psycopg.errors.UntranslatableCharacter, psycopg.errors.CharacterNotInRepertoire)
_OCTETS: Final = sql.SQL("pg_catalog.convert_to({}::text, 'SQL_ASCII')")
"""A name in the encoding of the database, because SQL_ASCII takes any text as it is."""
_SCHEMA, _NAME = _OCTETS.format(sql.SQL("q.nspname")), _OCTETS.format(sql.SQL("q.relname"))
_CONVERT: Final = "SELECT pg_catalog.convert(%b, pg_catalog.getdatabaseencoding(), 'UTF8')"


def named_rows(
    conn: psycopg.Connection[Any], query: sql.Composed, params: Mapping[str, object] | None = None
) -> list[tuple[Any, ...]]:
    """Return the rows of a query that has the columns ``nspname`` and ``relname``, but for names that UTF-8 lacks."""
    if (conn.info.parameter_status("server_encoding") or UTF8) == UTF8:
        return conn.execute(query, params).fetchall()
    try:
        with conn.transaction():
            return conn.execute(query, params).fetchall()
    except _CANNOT:
        pass
    pairs = sql.SQL("SELECT {}, {} FROM ({}) AS q").format(_SCHEMA, _NAME, query)
    named = conn.execute(pairs, params).fetchall()
    lacking = [pair for pair in named if not all(_is_convertible(conn, name) for name in pair)]
    shown = sorted({b".".join(pair).decode("ascii", "backslashreplace") for pair in lacking})
    _log.warning("%d tables have names with characters that UTF-8 lacks: %s", len(shown), ", ".join(shown[:10]))
    kept = sql.SQL("SELECT q.* FROM ({}) AS q WHERE {}").format(
        query,
        sql.SQL(" AND ").join(
            sql.SQL("NOT ({} = {} AND {} = {})").format(_SCHEMA, sql.Literal(schema), _NAME, sql.Literal(name))
            for schema, name in lacking
        ),
    )
    return conn.execute(kept, params).fetchall()


def _is_convertible(conn: psycopg.Connection[Any], name: bytes) -> bool:
    if name.isascii():
        return True
    try:
        with conn.transaction():
            conn.execute(_CONVERT, [name])
    except _CANNOT:
        return False
    return True
