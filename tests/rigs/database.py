"""A database of one test."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, LiteralString

import psycopg

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.connection import PostgresConnection

StartPostgres = Callable[..., AbstractContextManager[EmbeddedPostgres]]
"""Runs a server of a test's own, with the options of `levada.local.postgres.temporary_postgres`."""


@dataclass(frozen=True)
class Database:
    """A database of one test, on the session's server."""

    server: EmbeddedPostgres
    name: str

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
        with self.connect() as c:
            for s in statements:
                c.execute(s)

    def query(self, sql: LiteralString, *params: Any) -> list[tuple[Any, ...]]:
        with self.connect() as c:
            return c.execute(sql, params).fetchall()


def connection_to(server: EmbeddedPostgres, user: str = "postgres") -> PostgresConnection:
    """A connection to the server's own database."""
    return PostgresConnection("127.0.0.1", server.port, "postgres", sslmode="disable", user=user)
