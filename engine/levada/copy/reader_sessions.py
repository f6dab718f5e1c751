"""The sessions in which a process reads ranges at the source, kept for its next ranges.

A new session costs the source ten times what it takes to read a small table in a used one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final

import psycopg
from psycopg import pq

from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection

_Place = tuple[PostgresConnection, str]


class ReaderSessions:
    """Sessions of a process. None is kept before `keep`. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle_s = 0.0
        self._idle: list[tuple[_Place, WatchedConnection]] = []
        self._used_at = 0.0
        self._timer: threading.Timer | None = None

    def keep(self, idle_s: float) -> None:
        """Keep sessions until so many seconds after the last use of one, from now on."""
        self._idle_s = idle_s

    @contextmanager
    def session(self, server: PostgresConnection, application: str) -> Iterator[WatchedConnection]:
        """Yield a session. It is closed afterwards if the block raises or leaves a transaction open."""
        connection = self.take(server, application)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        self.put_back(server, application, connection)

    def take(self, server: PostgresConnection, application: str) -> WatchedConnection:
        """Return a session. The caller returns it by `put_back`, or closes it after an error."""
        return self._take((server, application)) or server.connect(application=application)

    def put_back(self, server: PostgresConnection, application: str, connection: WatchedConnection) -> None:
        """Keep the session for the next call. Close one that has a transaction open."""
        if self._idle_s and connection.info.transaction_status == pq.TransactionStatus.IDLE:
            self._put_back((server, application), connection)
        else:
            connection.close()

    def _take(self, wanted: _Place) -> WatchedConnection | None:
        while True:
            with self._lock:
                if not self._idle:
                    return None
                place, connection = self._idle.pop()
            if place == wanted:
                # The server may have been restarted, or have ended the session.
                with suppress(psycopg.Error):
                    connection.execute("SELECT")
                    return connection
            connection.close()

    def _put_back(self, place: _Place, connection: WatchedConnection) -> None:
        with self._lock:
            self._idle.append((place, connection))
            self._used_at = time.monotonic()
            if self._timer is None:
                self._start_timer(self._idle_s)

    def _start_timer(self, delay_s: float) -> None:
        self._timer = threading.Timer(delay_s, self._close_unused)
        self._timer.daemon = True
        self._timer.start()

    def _close_unused(self) -> None:
        with self._lock:
            left_s = self._used_at + self._idle_s - time.monotonic()
            if left_s > 0:
                self._start_timer(left_s)
                return
            self._timer = None
        self.close()

    def close(self) -> None:
        """Close the idle sessions."""
        with self._lock:
            idle, self._idle = self._idle, []
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        for _, connection in idle:
            connection.close()


SESSIONS: Final = ReaderSessions()
"""Those of this process. A process keeps them once it has run tasks of its own, and while it is a worker."""
