"""The marks of a pipeline in the WAL, at which it knows the columns of a table. See `levada.postgres.column_mark`."""

from __future__ import annotations

import json
import secrets
from typing import TYPE_CHECKING, Any

from levada.postgres.column_mark import write_mark
from levada.values import TableId

if TYPE_CHECKING:
    import psycopg

    from levada.postgres.description import TableDescription


class ColumnMarks:
    """The marks that this process has written and has not read again. Thread-safe.

    Every role can write messages. So a mark has no content but a random token, which is valid once, and the definition
    of the table stays in memory.
    """

    def __init__(self) -> None:
        self._written: dict[str, TableDescription] = {}

    def write(self, conn: psycopg.Connection[Any], table: TableId) -> TableDescription | None:
        """Write a mark for a table, and return the definition of the table there. See `write_mark`."""
        token = secrets.token_hex(16)

        def content(description: TableDescription) -> str:
            # Before the mark is in the WAL, because capture may read it before this call returns.
            self._written[token] = description
            return json.dumps({"table": int(table), "token": token})

        try:
            return write_mark(conn, table, content)
        except BaseException:
            self._written.pop(token, None)
            raise

    def take(self, content: bytes) -> tuple[TableId, TableDescription | None] | None:
        """Return the table of a mark, and its definition there if this process wrote it. Return None for other text.

        A mark without a definition may be one of an earlier process, or forged.
        """
        try:
            data = json.loads(content)
            return TableId(int(data["table"])), self._written.pop(str(data["token"]), None)
        except (ValueError, KeyError, TypeError, RecursionError):
            return None
