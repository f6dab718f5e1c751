"""The session in which a process reads ranges at the source, kept for its next range.

A new session costs the source ten times what it takes to read a small table in a used one.
"""

from __future__ import annotations

import threading
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
        self._idle: tuple[_Place, WatchedConnection] | None = None
        self._timer: threading.Timer | None = None

    def keep(self, idle_s: float) -> None:
        """Keep the last session for so many seconds from now on."""
        self._idle_s = idle_s

    @contextmanager
    def session(self, server: PostgresConnection, application: str) -> Iterator[WatchedConnection]:
        """Yield a session. It is closed afterwards if the block raises or leaves a transaction open."""
        place = (server, application)
        connection = self._take(place) or server.connect(application=application)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        if self._idle_s and connection.info.transaction_status == pq.TransactionStatus.IDLE:
            self._put_back(place, connection)
        else:
            connection.close()

    def _take(self, wanted: _Place) -> WatchedConnection | None:
        idle = self._without_idle()
        if idle is None:
            return None
        place, connection = idle
        if place == wanted:
            # The server may have been restarted, or have ended the session.
            with suppress(psycopg.Error):
                connection.execute("SELECT")
                return connection
        connection.close()
        return None

    def _without_idle(self) -> tuple[_Place, WatchedConnection] | None:
        with self._lock:
            idle, self._idle = self._idle, None
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        return idle

    def _put_back(self, place: _Place, connection: WatchedConnection) -> None:
        self.close()
        with self._lock:
            self._idle = place, connection
            self._timer = threading.Timer(self._idle_s, self.close)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        """Close the idle session."""
        idle = self._without_idle()
        if idle is not None:
            idle[1].close()


SESSIONS: Final = ReaderSessions()
"""Those of this process. Only a process that does nothing but run tasks keeps one."""
