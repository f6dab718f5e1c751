"""Shadow copies of tables: copied and kept current next to their tables, then swapped in or dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING

from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.iceberg.partitioning import PartitionLists
from levada.destinations.iceberg.replacement import Replacement, vanishing
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import index_errors

if TYPE_CHECKING:
    from levada.copy.rows import TableRows
    from levada.destinations.iceberg.catalog import IcebergCatalog
    from levada.destinations.iceberg.known_tables import KnownTables
    from levada.destinations.iceberg.state import IcebergState
    from levada.destinations.iceberg.table import IcebergTable
    from levada.destinations.verification import FixedTable
    from levada.schema import TableTarget
    from levada.segments.batch import EventBatch
    from levada.values import TableId, Watermark


class ShadowCopies:
    """The shadow copies of a destination's tables. Several threads may use it, each for tables of its own."""

    def __init__(self, catalog: IcebergCatalog, known: KnownTables) -> None:
        self._catalog = catalog
        self._known = known

    def copy(self, target: TableTarget, mode: TableMode, rows: TableRows, mark: Watermark) -> bool:
        """Write the rows to data files that no commit refers to. Return False if there is no readable table of ours."""
        state, schema = self._known.of(target), target.schema
        with state.lock:
            table = self._known.open_replaceable(state, schema)
            if table is None or not self._serves(state, table, target):
                return False
            table.check_epoch(mark)
            table.upgrade()
            state.forget_replacement()
            folder = state.index.folder.with_name(f"{state.index.folder.name}-replacement")
            made = Replacement.begin(table, target, mode, mark, folder, rows.kept_place)
            if made is None:
                return False
            state.replacement, storage = made, made.lease.storage(table)
        writer = PartitionWriter.of_copy(storage, made.new_files, schema, made.mode, mark.lsn)
        written = rows.map_ranges(writer, RangeFiles(storage, made.new_files.arrow, PartitionLists()))
        with vanishing(), index_errors(made.index_folder):
            made.copied(written, storage)
        return True

    def apply(self, events: EventBatch, mark: Watermark) -> bool:
        """Write the batch to more files that no commit refers to. Return False if the batch changes the columns."""
        (table_id,) = events.tables
        changes = events.changes(table_id)
        state = self._known.of(changes.target)
        with state.lock:
            table = self._known.open(state)
            if table is None or state.replacement is None:
                return False
            with vanishing(), index_errors(state.replacement.index_folder):
                return state.replacement.apply(changes, mark, state.replacement.lease.storage(table))

    def fixed(self, target: TableTarget) -> FixedTable | None:
        """Return the shadow copy's rows. No commit refers to its files, so only this process can read them."""
        state = self._known.of(target)
        with state.lock:
            table = self._known.open(state)
            if table is None or state.replacement is None:
                return None
            with vanishing():
                return self._catalog.fixed_shadow(table, state.replacement, state.lock)

    def swap(self, table: TableId, mark: Watermark) -> bool:
        """Replace all files and columns of the table by those of the shadow copy, in one commit."""
        state = self._known.find(table)
        if state is None:
            return False
        with state.lock:
            opened, made = self._known.open(state), state.replacement
            if opened is None or made is None:
                return False
            snapshot = made.commit(opened, mark)
            if snapshot is None:
                return False
            made.hand_over_index(snapshot, state.index)
            RangeFiles(made.lease.storage(opened), made.new_files.arrow, PartitionLists()).remove(made.range_names)
            state.replacement, state.schema, state.seen = None, made.schema, mark.lsn
            return True

    def drop(self, table: TableId) -> None:
        """Remove the shadow copy's files and index, and release its lease on the table."""
        state = self._known.find(table)
        if state is None:
            return
        with state.lock:
            opened, made = self._known.open(state), state.replacement
            if made is not None and opened is not None:
                made.lease.release(opened)
            state.forget_replacement()

    def _serves(self, state: IcebergState, table: IcebergTable, target: TableTarget) -> bool:
        """Return True if the table is a finished copy under the target's name, and one commit can replace it."""
        named = state.name == self._catalog.table_name(target)
        return named and table.metadata.mark is not None and table.is_replaceable()
