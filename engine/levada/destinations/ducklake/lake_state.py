"""The state of one table that the destination keeps between calls, and the life of its shadow copy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from levada.destinations.data_files.file_destination import FileTableState
from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.ducklake.copy_folder import take_folder
from levada.destinations.ducklake.intact import read_intact
from levada.destinations.ducklake.replacement import Replacement
from levada.destinations.ducklake.tables import FullName
from levada.destinations.ducklake.writes import Catalog, SyncedFiles, is_uncommitted, retried
from levada.destinations.fenced import require_epoch
from levada.destinations.key_index.table_index import TableIndex
from levada.errors import DestinationChanged, LevadaError

if TYPE_CHECKING:
    from levada.copy.rows import TableRows
    from levada.destinations.ducklake.state import TableRow
    from levada.destinations.interface import TableMode
    from levada.schema import ReplicatedTableSchema
    from levada.values import TableId, Watermark


@dataclass(slots=True, eq=False)
class LakeState(FileTableState):
    """The state of one table. The lock guards each write to the table too."""

    index: TableIndex
    synced: SyncedFiles = field(default_factory=SyncedFiles)
    replacement: Replacement | None = None
    """The shadow copy, if there is one."""

    def forget(self) -> None:
        """Discard the state of a dropped table, with its index and shadow copy."""
        FileTableState.forget(self)
        self.index.forget()
        self.synced.known = None
        self.forget_replacement()

    def forget_replacement(self) -> None:
        """Discard the shadow copy, with its files and its index."""
        if self.replacement is not None:
            self.replacement.discard()
            self.replacement = None


def copy_shadow(
    catalog: Catalog,
    state: LakeState,
    schema: ReplicatedTableSchema,
    place: FullName,
    mode: TableMode,
    rows: TableRows,
    mark: Watermark,
) -> bool:
    """Write the rows to data files that no snapshot refers to.

    Return False if there is no complete copy at ``place``.
    """
    with state.lock:
        state.forget_replacement()
        try:
            with catalog.database.transaction(f"beginning a copy of {schema.name}") as connection:
                found = catalog.state.find_copied(connection, schema.id, lock=True)
                if found is None or found[0].name != place:
                    return False
                row, _ = found
                require_epoch(row.epoch, mark.epoch)
                intact = read_intact(connection, catalog.lake.uri, row)
                _, storage = take_folder(catalog, connection, row, intact.table, mark, rows.kept_place)
        except DestinationChanged:
            return False
        folder = state.index.folder.with_name(f"{state.index.folder.name}-replacement")
        made = Replacement.begin(catalog, storage, intact, schema, mode, mark.lsn, folder)
        state.replacement = made
    writer = PartitionWriter.of_copy(made.storage, made.columns.files(), schema, mode, mark.lsn)
    made.copied(rows.map_ranges(writer, made.ranges))
    return True


def swap_shadow(catalog: Catalog, state: LakeState, table: TableId, mark: Watermark) -> bool:
    """Replace all files and columns of the table by those of the shadow copy, in one commit.

    Return False if there is no shadow copy, or no table that it could replace.
    """
    with state.lock:
        made = state.replacement
        if made is None:
            return False
        try:
            stored = retried(lambda: _swap(catalog, table, made, mark))
        except BaseException as error:
            if not isinstance(error, LevadaError) or not is_uncommitted(error):
                # The commit may have succeeded all the same. So keep the files, and never commit them again.
                state.replacement = None
                made.remove_index()
            raise
        if stored is None:
            return False
        state.replacement, state.seen = None, mark.lsn
        state.synced.known = None
        made.hand_over_index(stored.snapshot, state.index)
        made.ranges.remove(made.range_names)
        return True


def _swap(catalog: Catalog, table: TableId, made: Replacement, mark: Watermark) -> TableRow | None:
    with catalog.database.transaction("reading a table to replace") as connection:
        found = catalog.state.find_copied(connection, table, lock=True)
        if found is None:
            return None
        row, _ = found
        require_epoch(row.epoch, mark.epoch)
        intact = read_intact(connection, catalog.lake.uri, row)
    return made.commit(catalog, row, intact, mark)
