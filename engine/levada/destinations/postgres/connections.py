"""Connections to the destination's server, which are kept open between calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import psycopg
from psycopg import sql

from levada.destinations.postgres.failures import connect_errors, destination_errors, grants_named
from levada.destinations.postgres.lock_holders import TableInUse, holder_named
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.settings import Settings
from levada.postgres.client_key import CERTIFICATE
from levada.postgres.connection import TRANSACTION_TIMEOUT_VERSION, PostgresConnection
from levada.postgres.idle_connections import IdleConnections, open_writer
from levada.postgres.silence import WatchedConnection
from levada.postgres.tls import SSL_MODES, trusted_certificates
from levada.values import QualifiedTable

_log = logging.getLogger(__name__)
T = TypeVar("T")

_AUTHORITY: Final = "ca.crt"
"""The key of the Secret that has the certificate authority of the server."""
_BEGIN: Final = """
SELECT pg_backend_pid(), set_config('levada.writer', 'on', true), set_config('lock_timeout', '15s', true),
    set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true),
    set_config('intervalstyle', 'postgres', true), set_config('array_nulls', 'on', true),
    set_config('quote_all_identifiers', 'off', true), set_config('transform_null_equals', 'off', true),
    set_config('standard_conforming_strings', 'on', true), set_config('search_path', 'pg_catalog', true),
    set_config('row_security', 'off', true),
    set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
    set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', '60000', true),
    set_config('synchronous_commit', CASE WHEN s = 'off' THEN 'on' ELSE s END, true)
FROM current_setting('synchronous_commit') s
"""
"""The settings of each transaction. A role's default must not make a commit that a crash of the server can undo.

The settings that give values their meaning are here too, because a pooler may ignore those of the connection.
The keepalives end the transaction of a machine that vanished after a minute, and with it its locks.

Sessions wait behind one that waits for a lock, so that wait is short. ``levada.writer`` lets the
session through the guard of a table, see `levada.destinations.postgres.state`.
"""


_LOCK_TIMEOUT: Final = "15s"
_MOMENT: Final = "200ms"
"""The time for which the readers of a table may wait behind a session that asks for an exclusive lock."""
_PAUSES_S: Final = (0.5, 1.0, 2.0, 4.0)
"""The pauses between the attempts of a transaction that needs such a lock. Afterwards the engine pauses."""

DEFER: Final = "SET CONSTRAINTS ALL DEFERRED"
"""Rows of one transaction may refer to each other, or exchange unique values, in any order."""

_BEGIN_LIMITED: Final = _BEGIN.replace("()", "(), set_config('transaction_timeout', '0', true)", 1)
"""The same for a server that has transaction_timeout, which must not end a long copy."""


def begin_transaction(connection: WatchedConnection) -> None:
    """Make the settings of a transaction, at its beginning."""
    limited = connection.info.server_version >= TRANSACTION_TIMEOUT_VERSION
    row = connection.execute(_BEGIN_LIMITED if limited else _BEGIN).fetchone()
    connection.server_pid = 0 if row is None else row[0]


def lock_exclusively(connection: WatchedConnection, place: QualifiedTable) -> None:
    """Lock a table against readers too, until the end of the transaction. Raise TableInUse if it has readers now.

    All other readers wait behind a session that waits for this lock. So it is asked for a moment only, and again later.
    """
    connection.execute("SELECT set_config('lock_timeout', %s, true)", [_MOMENT])
    try:
        connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE").format(identifier(place)))
    except psycopg.errors.LockNotAvailable as error:
        raise TableInUse(place) from error
    connection.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_TIMEOUT])


def open_connection(server: PostgresConnection, application: str) -> WatchedConnection:
    """Return a connection whose transactions are READ COMMITTED and READ WRITE, whatever the role's defaults are."""
    with connect_errors():
        return open_writer(server, application)


def patiently(transaction: Callable[[], T]) -> T:
    """Run a transaction that may need an exclusive lock. Repeat it after pauses, during which it holds no lock at all.

    Raise TableInUse if the table had readers each time. One that waited for another lock has waited long already.
    """
    for pause in _PAUSES_S:
        try:
            return transaction()
        except TableInUse as error:
            _log.info("again in %.1f s: %s", pause, error.message)
            time.sleep(pause)
    return transaction()


class Connections:
    """The open connections that no call uses at the moment. Thread-safe."""

    def __init__(self, server: PostgresConnection) -> None:
        self._server = server
        self._idle = IdleConnections(server, "destination")

    @contextmanager
    def transaction(self, doing: str) -> Iterator[WatchedConnection]:
        """Run the block in one transaction. After any error the connection is closed.

        Raise errors of the destination, in which ``doing`` describes the operation.
        """
        what = f"{doing} at {self._server.where}"
        with destination_errors(what):
            with connect_errors():
                connection = self._idle.take()
            named = grants_named(self._server.database, connection)
            try:
                with named, holder_named(connection), destination_errors(what), connection.transaction():
                    begin_transaction(connection)
                    yield connection
            except BaseException:
                with suppress(Exception):
                    connection.close()
                raise
            self._idle.put_back(connection)

    def close(self) -> None:
        """Close the idle connections."""
        self._idle.close()


def server_of(settings: Settings, credentials: Path | None) -> PostgresConnection:
    """Return the connection parameters of the destination's server."""
    authority = None if credentials is None else credentials / _AUTHORITY
    return PostgresConnection(
        settings.host,
        settings.port,
        settings.database,
        credentials=credentials,
        sslmode=SSL_MODES[settings.tls.mode],
        sslrootcert=authority
        if authority is not None and authority.is_file()
        else trusted_certificates(settings.tls.mode),
        pooled=True,
        certificate=credentials if credentials is not None and (credentials / CERTIFICATE).is_file() else None,
    )
