"""The identity of the source: its server and database, and whether a table still exists in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, LiteralString

import psycopg

from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.values import QualifiedTable, TableId

_IDENTITY: Final[LiteralString] = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, oid::text
FROM pg_database WHERE datname = current_database()
"""
_NAME: Final[LiteralString] = """
SELECT n.nspname::text, c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s
"""
_FRESH_S: Final = 5.0
"""Seconds for which the identity of a server that is not verified is not read again."""
_CLOCK: Final[LiteralString] = "SELECT extract(epoch FROM clock_timestamp())::float8"


@dataclass(frozen=True, slots=True)
class SourceIdentity:
    """The source's identity. Thread-safe.

    ``verified`` returns the identity of the server whose history was verified, or an empty string before that.
    ``former`` returns the identities of the pipeline's earlier sources.
    """

    connection: PostgresConnection
    verified: Callable[[], str] = str
    former: Callable[[], Collection[str]] = tuple
    _last: list[tuple[float, str]] = field(default_factory=list, repr=False, compare=False)
    """When the identity was read last, and what was read."""

    def __str__(self) -> str:
        """Return the server's system identifier and the database's OID.

        Before the server is verified, the server is asked, at most once in a few seconds, and an error raised if that
        fails.
        """
        return self.verified() or self._read()

    def _read(self) -> str:
        # A start asks for each table.
        if self._last and time.monotonic() - self._last[0][0] < _FRESH_S:
            return self._last[0][1]
        with self.connection.connect(application="identity") as conn, source_errors("identifying the source"):
            identity = read_identity(conn)
        self._last[:] = [(time.monotonic(), identity)]
        return identity

    def is_former(self, identity: str) -> bool:
        """Return True if this is the identity of an earlier source of the pipeline."""
        return identity in self.former()

    def has_table(self, table: TableId) -> bool:
        """Return True if the database has a table with this OID, under any name."""
        return self.table_name(table) is not None

    def clock(self) -> float:
        """Return the time of the source's server, in seconds since 1970."""
        with self.connection.connect(application="identity") as conn, source_errors("reading the source's clock"):
            found = conn.execute(_CLOCK).fetchone()
        assert found is not None
        return float(found[0])

    def table_name(self, table: TableId) -> QualifiedTable | None:
        """Return the current name of the table with this OID, or None if there is none."""
        with self.connection.connect(application="identity") as conn, source_errors("looking for a table"):
            found = conn.execute(_NAME, [int(table)]).fetchone()
        return None if found is None else QualifiedTable(*found)


def read_identity(conn: psycopg.Connection[Any]) -> str:
    """Return the system identifier of the connection's server and the OID of its database."""
    found = conn.execute(_IDENTITY).fetchone()
    assert found is not None
    return "/".join(found)
