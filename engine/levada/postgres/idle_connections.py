"""Connections that are kept open between the transactions of a process that writes to a database, or reads it."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Final, Self

import psycopg
from psycopg import pq

from levada.errors import LevadaError
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.replication import execute_replication
from levada.postgres.silence import WatchedConnection

# A generic plan does not know how few tables a query asks for, and would read whole catalogs for one of them.
_SETTINGS: Final = (
    "SET plan_cache_mode = force_generic_plan;"
    " SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off"
)

_FRESH_S: Final = 20.0
"""Seconds for which an idle connection is used again without a check."""
_KEPT_S: Final = 60.0
"""Seconds for which a connection of a destination is kept without a use. A burst of changes opens one for each table,
and the server has as many as others need too.
"""


def _has_input(descriptor: int) -> bool:
    """Return True if the server has sent something to an idle session, such as the reason why it has ended."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(0))


def open_writer(server: PostgresConnection, application: str) -> WatchedConnection:
    """Return a connection whose transactions are READ COMMITTED and READ WRITE, whatever the role's defaults are."""
    connection = server.connect(application=application)
    connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
    connection.read_only = False
    # A pooler may give each transaction another session of the server.
    connection.prepare_threshold = None
    return connection


class IdleConnections:
    """The open connections to one server that no call uses at the moment. Thread-safe.

    One is closed after ``kept_s`` seconds without a use, as soon as another one is put back.
    """

    def __init__(self, server: PostgresConnection, application: str, kept_s: float = _KEPT_S) -> None:
        self._server = server
        self._application = application
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._idle: list[tuple[float, WatchedConnection]] = []

    def take(self) -> WatchedConnection:
        """Return a connection that works. Raise the errors of `PostgresConnection.connect` if none can be opened.

        The caller returns it by `put_back` after a transaction, and closes it after an error.
        """
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
        return open_writer(self._server, self._application)

    def put_back(self, connection: WatchedConnection) -> None:
        """Keep the connection for the next call. Close those that no call has used for a minute."""
        with self._lock:
            now = time.monotonic()
            self._idle.append((now, connection))
            # The last one is taken first, so the first ones have been idle for longest.
            kept = [(since, other) for since, other in self._idle if now - since < self._kept_s]
            spare = self._idle[: len(self._idle) - len(kept)]
            self._idle = kept
        _close(spare)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        _close(idle)


def _close(connections: Iterable[tuple[float, WatchedConnection]]) -> None:
    for _, connection in connections:
        with suppress(psycopg.Error):
            connection.close()


class IdleWalsenders:
    """The connections to walsenders that export no snapshot at the moment. Thread-safe."""

    def __init__(self, server: PostgresConnection) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._idle: list[pq.abc.PGconn] = []

    def take(self, application: str) -> pq.abc.PGconn:
        """Return a connection that works. Raise the errors of `PostgresConnection.connect_replication`."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._server.connect_replication(application=application)
            # The server may have been restarted, or have ended the session.
            with suppress(LevadaError):
                execute_replication(connection, "SELECT", "checking a walsender", self._server.silence())
                return connection
            connection.finish()

    def put_back(self, connection: pq.abc.PGconn) -> None:
        """Keep the connection, whose last command has ended, for the next call."""
        with self._lock:
            self._idle.append(connection)

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.finish()


class IdleReaders:
    """The open sessions of readers of a server's catalog that no call uses at the moment. Thread-safe.

    A new session of PostgreSQL reads the catalog and plans each query, which takes the server longer than to
    answer. ``application`` is that of `PostgresConnection.connect`.
    """

    def __init__(self, server: PostgresConnection, application: str) -> None:
        self.server = server
        self.application = application
        self._lock = threading.Lock()
        self._idle: list[tuple[float, WatchedConnection]] = []

    @contextmanager
    def session(self) -> Iterator[WatchedConnection]:
        """Take a session as `held` does, for a block that only reads the source. Raise its errors as Levada's."""
        # Any of the block's queries may be the one during which the server stops.
        with source_errors("reading the catalog"), self.held() as connection:
            yield connection

    @contextmanager
    def held(self) -> Iterator[WatchedConnection]:
        """Take a session that works, and keep it afterwards, unless the block raises or leaves a transaction open.

        Raise the errors of `PostgresConnection.connect`.
        """
        connection = self._take()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if connection.info.transaction_status == pq.TransactionStatus.IDLE:
            with self._lock:
                self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def _take(self) -> WatchedConnection:
        while True:
            with self._lock:
                since, connection = self._idle.pop() if self._idle else (0.0, None)
            if connection is None:
                connection = self.server.connect(application=self.application)
                # Each query is planned once, and not for each table.
                connection.prepare_threshold = 0
                with source_errors("setting up a session"):
                    connection.execute(_SETTINGS, prepare=False)
                return connection
            # The server may have been restarted, or have ended the session.
            with suppress(psycopg.Error):
                if time.monotonic() - since > _FRESH_S or _has_input(connection.fileno()):
                    connection.execute("SELECT")
                return connection
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle sessions. Those in use are kept afterwards."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()
