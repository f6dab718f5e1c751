"""The tables of a pipeline that its process knows: found in the catalog, opened, and loaded again."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Final

from levada import codes
from levada.destinations.iceberg.catalog import IcebergCatalog
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.warehouse_check import MountedWarehouse
from levada.destinations.key_index.table_index import TableIndex
from levada.destinations.ownership import ANOTHERS
from levada.errors import DestinationChanged, LevadaError
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.values import TableId, TableMode, Watermark

_RELOAD_S: Final = 600
"""The interval, in seconds, after which a table is loaded again.

A catalog may vend temporary credentials with a table.
"""


class KnownTables:
    """The state of each table by its OID. Several threads may use it, each for tables of its own.

    ``indexes`` is the folder of the key indexes.
    """

    def __init__(self, catalog: IcebergCatalog, warehouse: MountedWarehouse, indexes: Path) -> None:
        self._catalog, self._warehouse = catalog, warehouse
        self._indexes = indexes
        self._lock = threading.Lock()
        self._searched_at: float | None = None
        self.read_again_s = 30.0
        """Seconds between two reads of tables that a search could not read. Each takes Iceberg more than a minute."""
        self.states: dict[TableId, IcebergState] = {}
        self.unread: dict[TableName, LevadaError] = {}
        """Errors of the tables that the search could not read."""

    def of(self, target: TableTarget) -> IcebergState:
        """Return the state of the table. A table that is in the catalog already keeps its name there."""
        state = self.find(target.id)
        if state is None:
            place = self._catalog.table_name(target)
            with self._lock:
                state = self.states.setdefault(target.id, self._new_state(target.id, place))
        return state

    def find(self, table: TableId, *, again: bool = False) -> IcebergState | None:
        """Return the state of the table, or None. The catalog is searched once, as tables created later are known.

        ``again``: tables that the search could not read are read again, at most every `read_again_s` seconds.
        """
        with self._lock:
            if table not in self.states:
                if self._searched_at is None:
                    self._search(None)
                elif again and self.unread and time.monotonic() - self._searched_at >= self.read_again_s:
                    self._search(tuple(self.unread))
            return self.states.get(table)

    def create(
        self, state: IcebergState, schema: ReplicatedTableSchema, mode: TableMode, mark: Watermark
    ) -> tuple[IcebergTable, CopyLease]:
        """Create the table for a copy, with its lease, unless another has its name."""
        self._catalog.check_free(state.name, schema)
        return self.create_new(state, schema, mode, mark)

    def create_new(
        self, state: IcebergState, schema: ReplicatedTableSchema, mode: TableMode, mark: Watermark
    ) -> tuple[IcebergTable, CopyLease]:
        """Create a table whose name is free for a copy, with its lease."""
        table, lease = self._catalog.create(state.name, schema, mode, mark)
        self._warehouse.note()
        state.table, state.loaded_at = table, time.monotonic()
        return table, lease

    def open(self, state: IcebergState) -> IcebergTable | None:
        """Return the table with its current metadata, or None if there is no table."""
        now = time.monotonic()
        aged = now - state.loaded_at >= _RELOAD_S
        if state.table is None or aged or (self._catalog.repeats_versions and not state.table.has_same_file()):
            return self._load(state, now)
        try:
            state.table.refresh()
            self._catalog.owner.require(state.name, state.table.metadata.properties, state.id)
        except LevadaError:
            # The table may have been dropped, or created again by another owner. Load it from the catalog.
            return self._load(state, now)
        self._warehouse.note()
        return state.table

    def _load(self, state: IcebergState, now: float) -> IcebergTable | None:
        try:
            table = self._catalog.load(state.name, state.id)
        except DestinationChanged:
            self._warehouse.check(f"load {state.name}")
            raise
        if table is None:
            self._warehouse.check(f"load {state.name}")
        else:
            self._warehouse.note()
        state.table, state.loaded_at = table, now
        return table

    def open_replaceable(self, state: IcebergState, schema: ReplicatedTableSchema) -> IcebergTable | None:
        """Return the table as `open` does, but None if it must be dropped before a copy.

        That is so if its metadata cannot be read, if it belongs to a former source table, or if a clock that was ahead
        has written it.
        """
        try:
            table = self.open(state)
            return None if table is not None and table.is_ahead(self._catalog.clock.latest_ms()) else table
        except DestinationChanged as error:
            if error.code in ANOTHERS:
                self._catalog.check_free(state.name, schema)
            elif error.code != codes.TABLE_DAMAGED:
                raise
            return None

    def _search(self, among: tuple[TableName, ...] | None) -> None:
        unread: dict[TableName, LevadaError] = {}
        for found, name, opened in self._catalog.ours(unread, among):
            state = self.states.setdefault(found, self._new_state(found, name))
            if state.table is None or (opened is not None and _is_newer(opened, state.table)):
                state.name, state.table, state.loaded_at = name, opened, time.monotonic()
        self.unread, self._searched_at = unread, time.monotonic()

    def _new_state(self, table: TableId, name: TableName) -> IcebergState:
        return IcebergState(table, name, TableIndex(self._indexes / str(int(table))))


def _is_newer(table: IcebergTable, other: IcebergTable) -> bool:
    """Return True if ``table`` has the later watermark.

    There are two tables of one source table after an interrupted move.
    """
    ours, theirs = table.metadata.mark, other.metadata.mark
    return ours is not None and (theirs is None or (ours.epoch, ours.lsn) > (theirs.epoch, theirs.lsn))
