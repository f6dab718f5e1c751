"""The reason why a server refuses to write, for the error message."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import Transient
from levada.postgres.failures import source_errors

_CODES: Final = frozenset({codes.SOURCE_READ_ONLY, codes.SOURCE_STANDBY})
_STATE: Final = """
SELECT pg_is_in_recovery(), s.setting = 'on', s.source, session_user::text, current_database()::text
FROM pg_settings s WHERE s.name = 'default_transaction_read_only'
"""


def is_read_only(error: BaseException) -> bool:
    """Return True for the error of a write that a standby or a setting refuses."""
    return isinstance(error, Transient) and error.code in _CODES


@source_errors("asking whether the server is a standby")
def in_recovery(conn: psycopg.Connection[Any]) -> bool:
    """Return True if the server is a standby."""
    return conn.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)


@source_errors("reading why the server is read-only")
def read_only_reason(conn: psycopg.Connection[Any]) -> tuple[str, str]:
    """Return why a new session of this role is read-only, and how that ends. Both are empty if it may write by now."""
    row = conn.execute(_STATE).fetchone()
    assert row is not None
    standby, read_only, source, role, database = row
    if standby:
        hint = "nothing if a failover is under way. Otherwise set the host to the primary, or promote the standby"
        return "the server is a standby", hint
    if not read_only:
        return "", ""
    whose, reset = setting_owner("default_transaction_read_only", source, role, database)
    return f"default_transaction_read_only of {whose} is on", reset


def setting_owner(name: str, source: str, role: str, database: str) -> tuple[str, str]:
    """Return whose setting it is by the ``source`` of pg_settings, and the SQL that resets it.

    ``role`` is that of the login, whose settings a session has even if it continues as another one.
    """
    match source:
        case "database":
            return f"database {database}", _reset("ALTER DATABASE {} RESET", name, database)
        case "user":
            return f"role {role}", _reset("ALTER ROLE {} RESET", name, role)
        case "database user":
            reset = _reset("ALTER ROLE {} IN DATABASE {} RESET", name, role, database)
            return f"role {role} in database {database}", reset
    return f"the server ({source})", f"ALTER SYSTEM RESET {name}; SELECT pg_reload_conf()"


@contextmanager
def read_only_named(conn: psycopg.Connection[Any]) -> Iterator[None]:
    """Give the error of a write that a standby or a setting refuses the reason, and how that ends."""
    try:
        yield
    except Transient as error:
        reason, hint = read_only_reason(conn) if is_read_only(error) else ("", "")
        if not reason:
            raise
        raise Transient(error.code, f"{error.message}: {reason}", hint=hint) from error


def _reset(statement: LiteralString, setting: str, *names: str) -> str:
    return f"{sql.SQL(statement).format(*map(sql.Identifier, names)).as_string(None)} {setting}"
