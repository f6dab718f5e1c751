"""The first copies of several small tables, whose commits run side by side.

A catalog has no transaction over several tables. What a group spares are the questions whether a table is there.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol

from levada.destinations.groups import NewTable
from levada.destinations.iceberg.catalog import IcebergCatalog
from levada.destinations.iceberg.copying import write_copy
from levada.destinations.iceberg.known_tables import KnownTables
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.errors import LevadaError, Permanent
from levada.schema import TableTarget
from levada.values import TableId, Watermark

_log = logging.getLogger(__name__)

_SIDE_BY_SIDE: Final = 4
"""The tables of a group that are written at a time. Their files and commits are mostly waits for an object store."""


class TableModes(Protocol):
    """The modes of tables."""

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return the mode of the table."""
        ...


@dataclass(frozen=True, slots=True)
class IcebergGroup:
    """The `levada.destinations.groups.GroupWriter` of a catalog."""

    catalog: IcebergCatalog
    known: KnownTables
    modes: TableModes
    policy: OnSchemaChange

    def free(self, targets: Sequence[TableTarget]) -> Collection[TableId]:
        """Return the tables that this process does not know, and of whose names the catalog has nothing."""
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            found = pool.map(self._is_free, self._distinct(targets))
            return frozenset(table for table in found if table is not None)

    def write(self, tables: Sequence[NewTable], mark: Watermark) -> Collection[TableId]:
        """Create the tables and commit their rows, several at a time."""

        def write(new: NewTable) -> TableId | None:
            return self._write(new, mark)

        free = self.free([new.target for new in tables])
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            done = list(pool.map(write, [new for new in tables if new.id in free]))
        return [table for table in done if table is not None]

    def _distinct(self, targets: Sequence[TableTarget]) -> Iterator[TableTarget]:
        """Yield the targets without those that have the name of another one, in any case of letters."""
        taken: set[str] = set()
        for target in targets:
            try:
                name = str(self.catalog.table_name(target)).lower()
            except LevadaError:
                continue
            if name not in taken:
                taken.add(name)
                yield target

    def _is_free(self, target: TableTarget) -> TableId | None:
        try:
            unknown = self.known.find(target.id) is None
            return target.id if unknown and self.catalog.is_free(self.catalog.table_name(target)) else None
        except LevadaError as error:
            _log.info("%s is copied by itself: %s", target.schema.name, error.message)
            return None

    def _write(self, new: NewTable, mark: Watermark) -> TableId | None:
        mode, state = self.modes.effective_mode(new.target), self.known.of(new.target)
        try:
            with state.lock:
                # It fails if another writer has created the table meanwhile.
                table, lease = self.known.create_new(state, new.target.schema, mode, mark)
                write_copy(state, table, new.target, mode, new.rows, mark, self.policy, lease=lease, indexed=False)
        except LevadaError as error:
            if isinstance(error, Permanent):
                raise
            _log.info("%s is copied by itself: %s", new.target.schema.name, error.message)
            return None
        return new.id
