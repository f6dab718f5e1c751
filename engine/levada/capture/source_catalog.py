"""The catalog of the source for the thread of the stream. No table that another session has locked is waited for."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import psycopg

from levada import codes
from levada.errors import NeedsOperator
from levada.postgres.append_publication import PublicationNames, read_state
from levada.postgres.catalog import describe_without_waiting, read_newer_columns
from levada.postgres.connection import PostgresConnection
from levada.postgres.description import TableDescription
from levada.postgres.generated_columns import as_streamed
from levada.values import TableId


class SourceCatalog:
    """Reads the catalog by one connection, which is opened on demand. Not thread-safe. ``slot`` is the stream's."""

    def __init__(self, source: PostgresConnection, publications: PublicationNames, slot: str) -> None:
        self._slot = slot
        self._source = source
        self._publications = publications
        self._open = ExitStack()
        self._connection: psycopg.Connection[Any] | None = None

    def connected(self) -> psycopg.Connection[Any]:
        """Return the connection."""
        if self._connection is None:
            self._connection = self._open.enter_context(self._source.connect(application="schema"))
        return self._connection

    def close(self) -> None:
        """Close the connection. It is opened again on demand."""
        self._connection = None
        self._open.close()

    def describe(self, table: TableId) -> TableDescription | None:
        """Return the definition of a table, None if it does not exist."""
        try:
            return describe_without_waiting(self.connected(), table)
        except NeedsOperator as error:
            if error.code != codes.TABLE_MISSING:
                raise
            return None

    def newer(self, table: TableId, xid: int) -> Collection[int]:
        """Return the attnums of a table that may have been changed after a transaction, see `read_newer_columns`."""
        return read_newer_columns(self.connected(), table, xid, self._slot)

    def as_streamed(self, description: TableDescription) -> TableDescription:
        """Return a definition with the generated columns that the publication streams now."""
        if not description.generated:
            return description
        listed = self.column_list(description.id)
        return as_streamed(self.connected(), self._publications.main, description, listed)

    def column_list(self, table: TableId) -> tuple[int, ...] | None:
        """Return the attnums of a table that are published, None for all or for a table that is no member."""
        membership = read_state(self.connected(), self._publications, [table]).members.get(table)
        return None if membership is None else membership.columns
