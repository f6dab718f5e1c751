"""The sizes of the source's tables, read a part at a time.

PostgreSQL looks at each file of a table for its size, which takes it longer than all else that a discovery reads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, Final

from levada.postgres.estimates import read_table_bytes

if TYPE_CHECKING:
    import psycopg

    from levada.values import TableId

_MOST: Final = 300


class TableSizes:
    """Reads the sizes of tables that it has not read, and of ``most`` others, which take turns. For one thread."""

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[TableId, None] = {}
        """The tables whose sizes were read, the one that was read last at the end."""

    def read(self, connection: psycopg.Connection[Any], tables: Collection[TableId]) -> Mapping[TableId, int]:
        """Return the bytes of those tables that are read now. There are none while one of them is locked."""
        wanted = set(tables)
        self._known = {t: None for t in self._known if t in wanted}
        due = [*(wanted - self._known.keys()), *list(self._known)[: self._most]]
        found = read_table_bytes(connection, due)
        for table in due:
            # Those that were not read for a lock take their turn again later, and new ones next time.
            if found is not None or table in self._known:
                self._known.pop(table, None)
                self._known[table] = None
        return found or {}
