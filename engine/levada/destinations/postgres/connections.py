"""Connections to the destination's server, which are kept open between calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg

from levada.destinations.postgres.failures import connect_errors, destination_errors
from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection

_FRESH_S: Final = 20.0
"""Seconds for which an idle connection is used again without a check."""

BEGIN: Final = """
SELECT set_config('levada.writer', 'on', true), set_config('lock_timeout', '15s', true),
    set_config('timezone', 'UTC', true), set_config('datestyle', 'ISO', true),
    set_config('intervalstyle', 'postgres', true), set_config('array_nulls', 'on', true),
    set_config('search_path', 'pg_catalog', true), set_config('row_security', 'off', true),
    set_config('statement_timeout', '0', true), set_config('idle_in_transaction_session_timeout', '0', true),
    set_config('tcp_keepalives_idle', '30', true), set_config('tcp_keepalives_interval', '10', true),
    set_config('tcp_keepalives_count', '3', true), set_config('tcp_user_timeout', '60000', true),
    set_config('synchronous_commit', CASE WHEN s = 'off' THEN 'on' ELSE s END, true)
FROM current_setting('synchronous_commit') s
"""
"""The settings of each transaction. A role's default must not make a commit that a crash of the server can undo.

The settings that give values their meaning are here too, because a pooler may ignore those of the connection.
The keepalives end the transaction of a machine that vanished after a minute, and with it its locks.

Readers wait behind a session that waits for an exclusive lock, so that wait is short. ``levada.writer`` lets the
session through the guard of a table, see `levada.destinations.postgres.state`.
"""


def open_connection(server: PostgresConnection, application: str) -> WatchedConnection:
    """Return a connection whose transactions are READ COMMITTED and READ WRITE, whatever the role's defaults are."""
    with connect_errors():
        connection = server.connect(application=application)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    # A pooler may give each transaction another session of the server.
    connection.prepare_threshold = None
    return connection


class Connections:
    """The open connections that no call uses at the moment. Thread-safe."""

    def __init__(self, server: PostgresConnection) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._idle: list[tuple[float, WatchedConnection]] = []

    @contextmanager
    def transaction(self, doing: str) -> Iterator[WatchedConnection]:
        """Run the block in one transaction. After any error the connection is closed.

        Raise errors of the destination, in which ``doing`` describes the operation.
        """
        with destination_errors(f"{doing} at {self._server.where}"):
            connection = self._take()
            try:
                with connection.transaction():
                    connection.execute(BEGIN)
                    yield connection
            except BaseException:
                with suppress(Exception):
                    connection.close()
                raise
            with self._lock:
                self._idle.append((time.monotonic(), connection))

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            with suppress(psycopg.Error):
                connection.close()

    def _take(self) -> WatchedConnection:
        while True:
            with self._lock:
                if not self._idle:
                    break
                since, connection = self._idle.pop()
            if time.monotonic() - since < _FRESH_S and not connection.closed:
                return connection
            try:
                connection.execute("SELECT")
                return connection
            except psycopg.Error:
                with suppress(psycopg.Error):
                    connection.close()
        return open_connection(self._server, "destination")
