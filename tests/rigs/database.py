"""A database of one test."""

from __future__ import annotations

import re
import select
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.connection import PostgresConnection

StartPostgres = Callable[..., AbstractContextManager[EmbeddedPostgres]]
"""Runs a server of a test's own, with the options of `levada.local.postgres.temporary_postgres`."""

_OF_NEW_SESSIONS: Final = re.compile(r"\b(ALTER\s+(DATABASE|ROLE|USER|SYSTEM)|pg_reload_conf)\b", re.IGNORECASE)
"""Statements that change the settings with which the next session begins."""


def log_of(server: EmbeddedPostgres) -> str:
    """Return the log of a server. Tests share it, and those of other encodings write bytes that are no UTF-8."""
    return server.log.read_text(errors="replace")


@dataclass(frozen=True)
class Database:
    """A database of one test, on the session's server.

    The session of `execute` and `query` is kept for the next call: a new one costs the server ten times as much as a
    usual statement. Nothing is left in it, see ``DISCARD ALL``.
    """

    server: EmbeddedPostgres
    name: str
    _idle: list[psycopg.Connection[Any]] = field(default_factory=list, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def uri(self) -> str:
        return self.server.uri(self.name)

    @property
    def connection(self) -> PostgresConnection:
        return PostgresConnection("127.0.0.1", self.server.port, self.name, sslmode="disable", user="postgres")

    def connect(self, **kwargs: Any) -> psycopg.Connection[Any]:
        return psycopg.connect(self.uri, autocommit=True, **kwargs)

    def execute(self, *statements: LiteralString) -> None:
        """Run each statement in a transaction of its own."""
        with self._session(statements) as c:
            for s in statements:
                c.execute(s)

    def query(self, sql: LiteralString, *params: Any) -> list[tuple[Any, ...]]:
        with self._session([sql]) as c:
            return c.execute(sql, params).fetchall()

    def close(self) -> None:
        """Close the idle session."""
        with self._lock:
            idle, self._idle[:] = list(self._idle), []
        for connection in idle:
            connection.close()

    @contextmanager
    def _session(self, statements: Sequence[object]) -> Iterator[psycopg.Connection[Any]]:
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is not None and _has_ended(found):
            found.close()
            found = None
        # A prepared statement would fail after a change of the columns that it returns.
        connection = self.connect(prepare_threshold=None) if found is None else found
        try:
            yield connection
            keeps = not any(_OF_NEW_SESSIONS.search(str(s)) for s in statements)
            # A statement may have begun a transaction.
            connection.commit()
            if keeps:
                connection.execute("DISCARD ALL")
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if keeps and not self._idle:
                self._idle.append(connection)
                return
        connection.close()

    def __reduce__(self) -> tuple[type[Database], tuple[EmbeddedPostgres, str]]:
        return Database, (self.server, self.name)


def _has_ended(connection: psycopg.Connection[Any]) -> bool:
    """Return True if the server has ended the idle session, or has sent a message about its end."""
    return connection.closed or bool(select.select([connection.fileno()], [], [], 0)[0])


def connection_to(server: EmbeddedPostgres, user: str = "postgres") -> PostgresConnection:
    """A connection to the server's own database."""
    return PostgresConnection("127.0.0.1", server.port, "postgres", sslmode="disable", user=user)
