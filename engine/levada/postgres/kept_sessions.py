"""The sessions in which a running pipeline reads its source's catalog, kept for its next reader.

The readers are many and short: the checks of a start, discovery, samples of the lag. A new session of PostgreSQL is a
new process, which reads the catalog and plans each query again. That takes the server longer than the answers. Sessions
that a reader holds for long, such as that of a copy, are not kept here.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import psycopg
from psycopg import pq

from levada.postgres.connection import PostgresConnection, clamp_application_name
from levada.postgres.failures import source_errors
from levada.postgres.silence import WatchedConnection

_IDLE_S: Final = 15.0
"""Seconds after which a session without a reader is closed. The next reader closes it."""
_OLDEST_S: Final = 30.0
"""Seconds from its login for which a session is given to further readers. After a failover, one of an address may be
that of the former server.
"""


@dataclass(frozen=True, slots=True)
class _Session:
    connection: WatchedConnection
    opened_at: float
    """When it was opened, in seconds, monotonic."""
    idle_since: float


class KeptSessions:
    """The idle sessions of each server for which `keep` was called. Thread-safe.

    Each reader of another server gets a new session. ``idle_s`` and ``oldest_s`` are the seconds after its last reader
    and after its login for which a session is kept.
    """

    def __init__(self, idle_s: float = _IDLE_S, oldest_s: float = _OLDEST_S) -> None:
        self._idle_s, self._oldest_s = idle_s, oldest_s
        self._lock = threading.Lock()
        self._keepers: Counter[PostgresConnection] = Counter()
        self._idle: dict[PostgresConnection, list[_Session]] = {}

    def keep(self, server: PostgresConnection) -> None:
        """Keep sessions of the server until `forget` was called as often."""
        with self._lock:
            self._keepers[server] += 1

    def forget(self, server: PostgresConnection) -> None:
        """Undo one `keep`. Close the idle sessions. Those in use are closed by their readers, unless others keep."""
        with self._lock:
            self._keepers[server] -= 1
            if not self._keepers[server]:
                del self._keepers[server]
        self.close_idle(server)

    @contextmanager
    def keeping(self, server: PostgresConnection) -> Iterator[None]:
        """Keep sessions of the server during the block."""
        self.keep(server)
        try:
            yield
        finally:
            self.forget(server)

    @contextmanager
    def session(self, server: PostgresConnection, application: str) -> Iterator[WatchedConnection]:
        """Yield a session that works. It is closed afterwards if the block raises or leaves a transaction open.

        After an error the idle ones are closed too: a setting of the role may have caused it, which only new ones lack.

        The block leaves no setting of the session changed. ``application`` is that of `PostgresConnection.connect`, and
        so are the errors.
        """
        found = self._take(server, application)
        if found is None:
            now = time.monotonic()
            found = _Session(self._opened(server, application), now, now)
        try:
            yield found.connection
        except BaseException:
            found.connection.close()
            self.close_idle(server)
            raise
        self._put_back(server, found)

    def _opened(self, server: PostgresConnection, application: str) -> WatchedConnection:
        connection = server.connect(application=application)
        with self._lock:
            is_kept = bool(self._keepers[server])
        if is_kept and not server.pooled:
            # Its readers come again every few seconds. To plan their queries takes the server longer than to answer.
            connection.prepare_threshold = 0
            with source_errors("setting up a session"):
                connection.execute("SET plan_cache_mode = force_generic_plan")
        return connection

    def close_idle(self, server: PostgresConnection) -> None:
        """Close the idle sessions of the server, for example because it may be another one by now."""
        with self._lock:
            idle = self._idle.pop(server, [])
        for session in idle:
            session.connection.close()

    def _is_usable(self, session: _Session, now: float) -> bool:
        return now - session.opened_at < self._oldest_s and now - session.idle_since < self._idle_s

    def _take(self, server: PostgresConnection, application: str) -> _Session | None:
        name = clamp_application_name(server.application_name, application)
        while True:
            with self._lock:
                idle = self._idle.get(server)
                found = idle.pop() if idle else None
            if found is None:
                return None
            if self._is_usable(found, time.monotonic()):
                # The server may have been restarted, or have ended the session.
                with suppress(psycopg.Error):
                    found.connection.execute("SELECT set_config('application_name', %s, false)", [name])
                    found.connection.doing = f"{server.application_name}:{application} at {server.where}"
                    return found
            found.connection.close()

    def _put_back(self, server: PostgresConnection, used: _Session) -> None:
        now, unusable = time.monotonic(), []
        back = _Session(used.connection, used.opened_at, now)
        quiet = used.connection.info.transaction_status == pq.TransactionStatus.IDLE
        with self._lock:
            if quiet and self._keepers[server] and self._is_usable(back, now):
                idle = self._idle.setdefault(server, [])
                unusable = [session for session in idle if not self._is_usable(session, now)]
                idle[:] = [*(session for session in idle if self._is_usable(session, now)), back]
            else:
                unusable = [back]
        for session in unusable:
            session.connection.close()


SESSIONS: Final = KeptSessions()
"""Those of this process. Each running pipeline keeps its source's."""
