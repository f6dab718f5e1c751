"""The identity of the source: its server and database, and whether a table still exists in it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from threading import Lock

from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.values import TableId

_IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system())::text, oid::text
FROM pg_database WHERE datname = current_database()
"""


@dataclass(slots=True)
class SourceIdentity:
    """The source's identity, read when it is first needed. Thread-safe."""

    connection: PostgresConnection
    _former: frozenset[str] = frozenset()
    _read: str = ""
    _reading: Lock = field(default_factory=Lock)

    def __str__(self) -> str:
        """Return the server's system identifier and the database's OID.

        The first call connects, and raises an error if that fails.
        """
        with self._reading:
            if not self._read:
                with self.connection.connect(application="identity") as conn, source_errors("identifying the source"):
                    found = conn.execute(_IDENTITY).fetchone()
                assert found is not None
                self._read = "/".join(found)
            return self._read

    def renew(self, former: Collection[str]) -> None:
        """Forget the identity, so that its next use reads it again.

        ``former`` are the identities of earlier sources.
        """
        with self._reading:
            self._read, self._former = "", frozenset(former)

    def is_former(self, identity: str) -> bool:
        """Return True if this is the identity of an earlier source of the pipeline."""
        return identity in self._former

    def has_table(self, table: TableId) -> bool:
        """Return True if the database has a table with this OID, under any name."""
        with self.connection.connect(application="identity") as conn, source_errors("looking for a table"):
            return conn.execute("SELECT FROM pg_class WHERE oid = %s", [int(table)]).fetchone() is not None
