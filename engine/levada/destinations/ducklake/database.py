"""Connections to the PostgreSQL database of a catalog, and the errors of that database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import Final

import psycopg
from psycopg import sql

from levada import codes
from levada.errors import AccessDenied, LevadaError, NeedsOperator, Transient
from levada.postgres.connection import TRANSACTION_TIMEOUT_VERSION, PostgresConnection
from levada.postgres.failures import source_error
from levada.postgres.idle_connections import IdleConnections
from levada.postgres.silence import WatchedConnection
from levada.postgres.vacuum import vacuum
from levada.values import QualifiedTable

_DENIED: Final = frozenset(
    {
        codes.INSUFFICIENT_PRIVILEGE,
        codes.ROW_SECURITY,
        codes.SOURCE_ACCESS_DENIED,
        codes.SOURCE_AUTH_FAILED,
        codes.SOURCE_DATABASE_MISSING,
        codes.SOURCE_TLS_FAILED,
    }
)
_HINTS: Final[Mapping[str, str]] = {
    codes.SOURCE_AUTH_FAILED: "check the keys username and password of the destination's Secret",
    codes.SOURCE_ACCESS_DENIED: "add a line to the catalog server's pg_hba.conf for this role, database and address",
    codes.INSUFFICIENT_PRIVILEGE: "let the role of the destination's Secret own the catalog's schema and its tables",
    codes.SOURCE_DATABASE_MISSING: "check catalog.database in the destination's settings",
    codes.SOURCE_TLS_FAILED: "check catalog.tls in the destination's settings",
    codes.SOURCE_UNREACHABLE: "check catalog.host and catalog.port in the destination's settings",
}

_FULL: Final = (
    "free disk space or memory at the catalog's server. If its shared memory is full: ALTER SYSTEM SET"
    " max_locks_per_transaction = 256; then restart it"
)

_BEGIN: Final = """
SELECT pg_backend_pid(), set_config('search_path', {schema}, true), set_config('lock_timeout', '15s', true),
    set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true), set_config('row_security', 'off', true),
    set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '60s', true),
    set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
    set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', '60000', true),
    set_config('synchronous_commit', CASE WHEN s = 'off' THEN 'on' ELSE s END, true)
FROM current_setting('synchronous_commit') s
"""
"""The settings of each transaction. A commit must survive a crash of the server, whatever a role's default is.

They are not those of the connection, because a pooler may ignore these. A transaction holds the next snapshot, for
which all writers of the catalog wait. So that of a machine that vanished, or of a stopped process, ends after a minute.
"""

_BEGIN_LIMITED: Final = _BEGIN.replace("()", "(), set_config('transaction_timeout', '0', true)", 1)
"""The same for a server that has transaction_timeout."""


class UnconfirmedCommit(Transient):
    """A transaction that may have been committed or not, because the answer was lost."""


class CatalogDatabase:
    """The database with the catalog's tables in one schema, and its idle connections. Thread-safe."""

    def __init__(self, server: PostgresConnection, schema: str) -> None:
        self._server = server
        self.schema = schema
        self._idle = IdleConnections(server, "ducklake")
        path = sql.Literal(sql.Identifier(schema).as_string(None))
        self._begin, self._begin_limited = (
            sql.SQL(text).format(schema=path).as_string(None).encode() for text in (_BEGIN, _BEGIN_LIMITED)
        )

    @property
    def where(self) -> str:
        """``host:port/database``, for messages."""
        return self._server.where

    @contextmanager
    def transaction(self, doing: str, *, pipelined: bool = False) -> Iterator[WatchedConnection]:
        """Run the block in one READ COMMITTED transaction, in which the schema's tables need no schema's name.

        After any error the connection is closed. ``doing`` describes the operation in errors. Raise UnconfirmedCommit
        for every failure of the commit itself.

        A ``pipelined`` block waits for an answer only where it reads one, so an error of a statement may be raised
        later, but not after the commit. It cannot use COPY or several statements in one text, and row counts are
        unknown until a row is read.
        """
        doing, complete = f"{doing} in the catalog at {self._server.where}", False
        with catalog_errors(doing):
            with _connect_errors():
                connection = self._idle.take()
            try:
                with connection.pipeline() if pipelined else nullcontext() as pipeline, connection.transaction():
                    limited = connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION
                    row = connection.execute(self._begin_limited if limited else self._begin).fetchone()
                    connection.server_pid = 0 if row is None else row[0]
                    yield connection
                    if pipeline is not None:
                        pipeline.sync()
                    complete = True
            except BaseException as error:
                with suppress(Exception):
                    connection.close()
                if complete and isinstance(error, psycopg.Error):
                    raise UnconfirmedCommit(
                        "destination_unavailable",
                        f"{doing}: the commit was not confirmed: {_message(error)}",
                        hint="if this persists, check the catalog's server",
                    ) from error
                raise
            self._idle.put_back(connection)

    def vacuum(self, tables: Sequence[str]) -> None:
        """Remove dead rows of the catalog's tables, and compute their statistics again, if the role may."""
        vacuum(self._server, [QualifiedTable(self.schema, table) for table in tables])

    def close(self) -> None:
        """Close the idle connections."""
        self._idle.close()


@contextmanager
def _connect_errors() -> Iterator[None]:
    """Raise the errors of `PostgresConnection.connect`, which name the source, as errors of the destination."""
    try:
        yield
    except LevadaError as error:
        raise _translated(error) from error


@contextmanager
def catalog_errors(doing: str) -> Iterator[None]:
    """Raise psycopg's errors as errors of the destination."""
    try:
        yield
    except psycopg.Error as error:
        message = _message(error)
        # DuckDB's writers and Levada's take the same next snapshot, and one of the two wins.
        if isinstance(error, psycopg.errors.UniqueViolation):
            raise Transient("commit_conflict", f"{doing}: another writer has committed the next snapshot") from error
        raise _translated(source_error(doing, error.sqlstate, message)) from error


def _message(error: psycopg.Error) -> str:
    return error.diag.message_primary or str(error).strip().partition("\n")[0] or "no message"


def _translated(error: LevadaError) -> LevadaError:
    """Return an error that names the source as one that names the destination."""
    hint = _HINTS.get(error.code, "")
    if error.code in _DENIED:
        return AccessDenied("destination_denied", error.message, hint=hint)
    if error.code == codes.SOURCE_OUT_OF_RESOURCES:
        return Transient("destination_full", error.message, hint=_FULL)
    if isinstance(error, Transient):
        return Transient("destination_unavailable", error.message, hint=hint)
    if error.code == codes.CREDENTIALS_UNREADABLE:
        return error
    return NeedsOperator("destination_rejected", error.message, hint=hint)
