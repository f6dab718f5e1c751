"""The mapping of the destination server's errors to Levada's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from levada import codes
from levada.errors import AccessDenied, LevadaError, LoginFailed, NeedsOperator, Transient, Yielded
from levada.postgres.failures import Failure, source_error
from levada.values import quote_identifier

_SETTINGS: Final = "the destination's settings"
_RESYNC: Final = "copy the table again: levada resync MANIFEST TABLE"
_CONNECT_HINT: Final = f"check host and port in {_SETTINGS}, and that the server runs"


_UNREACHABLE: Final = Failure("destination_unreachable", Transient, hint=_CONNECT_HINT)
_BUSY: Final = Failure("destination_busy", Transient, hint="end the session that holds the lock, if this does not pass")
_LOCKED: Final = Failure("destination_busy", Yielded, hint="end the session that holds the lock, if this does not pass")
_FULL: Final = Failure("destination_full", Transient, hint="free disk space at the destination's server")
_TOO_LARGE: Final = Failure(
    "row_too_large", NeedsOperator, hint="exclude the column with columns.exclude in the table's TableSync"
)
_CONSTRAINT: Final = Failure(
    "destination_constraint",
    NeedsOperator,
    hint="drop the constraint at the destination, or make it DEFERRABLE, then retry: levada retry MANIFEST TABLE",
)
_DEPENDENTS: Final = Failure(
    "destination_dependents",
    NeedsOperator,
    hint="drop the view or constraint that depends on it at the destination, then retry: levada retry MANIFEST TABLE",
)
_TYPE: Final = Failure("schema_change_unsupported", NeedsOperator, hint=_RESYNC)

_BY_SQLSTATE: Final[Mapping[str, Failure]] = {
    "23503": Failure(
        "destination_foreign_key",
        Transient,
        hint="declare the foreign key DEFERRABLE, and set ordering: Pipeline in the destination's settings. While one"
        " of its tables is copied, drop the foreign key",
    ),
    "23502": _CONSTRAINT,
    "23505": _CONSTRAINT,
    "23514": _CONSTRAINT,
    "23P01": _CONSTRAINT,
    "2BP01": _DEPENDENTS,
    "0A000": _DEPENDENTS,
    "42804": _TYPE,
    "42846": _TYPE,
    "42701": Failure(
        "destination_constraint", NeedsOperator, hint="rename or drop the column that was added at the destination"
    ),
    "42P10": Failure("foreign_schema_change", NeedsOperator, hint=_RESYNC),
    # PgBouncer's own errors, such as query_wait_timeout.
    "08P01": _UNREACHABLE,
    "53200": Failure(
        "destination_out_of_memory",
        Transient,
        hint="if shared memory is full: ALTER SYSTEM SET max_locks_per_transaction = 256 at the destination, then"
        " restart it. Otherwise give its server more memory",
    ),
    "53400": Failure("destination_full", Transient, hint="raise temp_file_limit at the destination's server"),
    "54000": _TOO_LARGE,
    "54011": _TOO_LARGE,
    "55000": Failure(
        "destination_constraint",
        NeedsOperator,
        hint="undo what was changed at the destination's table, for example its REPLICA IDENTITY, then retry:"
        " levada retry MANIFEST TABLE",
    ),
    "55006": _BUSY,
    "57014": _BUSY,
    "57P04": Failure("destination_database_missing", LoginFailed, hint=f"check database in {_SETTINGS}"),
    "25006": Failure(
        "destination_read_only", Transient, hint="set host to the primary server, or end its read-only mode"
    ),
}

_BY_SOURCE_CODE: Final[Mapping[str, Failure]] = {
    codes.SOURCE_UNREACHABLE: _UNREACHABLE,
    codes.SOURCE_SILENT: _UNREACHABLE,
    codes.SOURCE_STARTING: _UNREACHABLE,
    codes.SOURCE_STOPPING: _UNREACHABLE,
    codes.SESSION_TIMEOUT: _UNREACHABLE,
    codes.CATALOG_CHANGED: _BUSY,
    codes.LOCK_TIMEOUT: _LOCKED,
    codes.STATEMENT_TIMEOUT: _BUSY,
    codes.SERIALIZATION_CONFLICT: _BUSY,
    codes.SOURCE_OUT_OF_RESOURCES: _FULL,
    codes.TOO_MANY_CONNECTIONS: Failure(
        "destination_busy",
        Transient,
        hint="raise max_connections at the destination, or set apply.maxConcurrentTables and"
        " copy.connectionsPerTable to fewer",
    ),
    codes.SOURCE_AUTH_FAILED: Failure(
        "destination_auth_failed", LoginFailed, hint="check the keys username and password of the destination's Secret"
    ),
    codes.SOURCE_ACCESS_DENIED: Failure(
        "destination_access_denied",
        AccessDenied,
        hint="add a line for this role and address to the destination's pg_hba.conf, then SELECT pg_reload_conf()",
    ),
    codes.SOURCE_DATABASE_MISSING: Failure(
        "destination_database_missing", LoginFailed, hint=f"check database in {_SETTINGS}"
    ),
    codes.VERSION_UNSUPPORTED: Failure(
        "destination_unsupported", NeedsOperator, hint="upgrade the destination's server to PostgreSQL 14 or newer"
    ),
    codes.SOURCE_TLS_FAILED: Failure(
        "destination_tls_failed",
        LoginFailed,
        hint=f"check tls in {_SETTINGS}, and the keys ca.crt, tls.crt and tls.key of its Secret",
    ),
    codes.INSUFFICIENT_PRIVILEGE: Failure(
        "destination_privilege_missing",
        AccessDenied,
        hint="let the role of the Secret own the schema and its tables",
    ),
    codes.ROW_SECURITY: Failure(
        "destination_privilege_missing", AccessDenied, hint="let the role of the Secret own the table"
    ),
}

_DENIED: Final = re.compile(
    r"(?:permission denied for|must be owner of) (?P<kind>database|schema|table|function) (?P<name>.+)"
)
"""The server's messages in English about a missing privilege. Other languages get the general hint."""
_MAY_QUOTE: Final = ("22", "P0")
"""The classes of SQLSTATE whose messages may quote a value: data exceptions, and those that a trigger raises."""


@contextmanager
def destination_errors(doing: str) -> Iterator[None]:
    """Raise psycopg's errors as errors of the destination."""
    try:
        yield
    except psycopg.Error as error:
        raise statement_error(doing, error) from (None if _quotes_values(error.sqlstate) else error)


@contextmanager
def grants_named(database: str, connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Give the error of a missing privilege a hint with the statement that grants it to the session's role.

    A setting can make the sessions of a login continue as another role. The block has ended its transaction.
    """
    try:
        yield
    except AccessDenied as error:
        denied = _DENIED.search(error.message)
        if error.code != codes.DESTINATION_PRIVILEGE_MISSING or denied is None:
            raise
        try:
            role = str(connection.execute("SELECT current_user").fetchall()[0][0])
        except psycopg.Error:
            role = connection.info.user
        raise AccessDenied(error.code, error.message, hint=_grant(denied, database, role)) from error


def _grant(found: re.Match[str], database: str, role: str) -> str:
    """Return the statement that grants what the server's message lacks."""
    kind, name = found["kind"], quote_identifier(found["name"])
    to = quote_identifier(role)
    if kind == "database":
        return f"GRANT CREATE, TEMPORARY ON DATABASE {name} TO {to}"
    if kind == "schema":
        return f"in database {database}: GRANT USAGE, CREATE ON SCHEMA {name} TO {to}"
    return f"in database {database}, in the schema of {kind} {found['name']}: ALTER {kind.upper()} {name} OWNER TO {to}"


@contextmanager
def connect_errors() -> Iterator[None]:
    """Raise the errors of `PostgresConnection.connect`, which name the source, as errors of the destination."""
    try:
        yield
    except LevadaError as error:
        meaning = _BY_SOURCE_CODE.get(error.code)
        if meaning is None:
            raise
        # A statement on the role or the database holds at each server.
        hint = error.hint if error.hint.startswith("ALTER ") else meaning.hint
        raise meaning.error(meaning.code, error.message, hint=hint) from error


def statement_error(doing: str, error: psycopg.Error) -> LevadaError:
    """Return the error for a failed statement. The server's message is left out if it may quote a value."""
    state = error.sqlstate
    if _quotes_values(state):
        return NeedsOperator(
            "destination_value_refused",
            f"{doing}: the destination's server refuses a value (SQLSTATE {state})",
            hint="see the server's log, and exclude the column with columns.exclude in the table's TableSync",
        )
    message = error.diag.message_primary or str(error).strip().partition("\n")[0] or "no message"
    if (meaning := _BY_SQLSTATE.get(state or "")) is not None:
        return meaning.error(meaning.code, f"{doing}: {message}", hint=meaning.hint)
    found = source_error(doing, state, message)
    other = _BY_SOURCE_CODE.get(
        found.code,
        Failure(
            "destination_statement_failed",
            NeedsOperator,
            hint="correct what the message names, then: levada retry MANIFEST TABLE",
        ),
    )
    return other.error(other.code, found.message, hint=other.hint)


def _quotes_values(state: str | None) -> bool:
    return state is not None and state.startswith(_MAY_QUOTE)
