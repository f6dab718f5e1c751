"""A shadow copy of a table: files that no snapshot refers to, until one commit replaces the table's files by them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from levada import codes
from levada.copy.rows import CopiedRows
from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.live_files import LiveFile
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.data_files.shadow_files import NO_SNAPSHOT, ShadowFiles
from levada.destinations.data_files.snapshot_rows import all_files, index_rows
from levada.destinations.data_files.storage import FileSystemStorage, Storage, WrittenFile, remove_files
from levada.destinations.data_files.upsert import Upsert
from levada.destinations.ducklake.columns import LakeColumns, replacement_columns
from levada.destinations.ducklake.copy_folder import remove_folder
from levada.destinations.ducklake.deletes import DeletedRows
from levada.destinations.ducklake.fixed_table import SizedFile
from levada.destinations.ducklake.intact import IntactTable
from levada.destinations.ducklake.state import TableRow
from levada.destinations.ducklake.statistics import describe_files
from levada.destinations.ducklake.writes import Catalog, Changes, commit, conflict, is_uncommitted, new_row
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import KeyIndex
from levada.errors import LevadaError, Transient
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)


@dataclass(slots=True, kw_only=True)
class Replacement(ShadowFiles):
    """The files of a shadow copy, and the version and LSN of their content. Not thread-safe."""

    storage: FileSystemStorage
    deletes: DeletedRows
    before: LakeColumns
    """The table's columns at the start of the copy."""
    columns: LakeColumns

    @classmethod
    def begin(
        cls,
        catalog: Catalog,
        storage: FileSystemStorage,
        intact: IntactTable,
        schema: ReplicatedTableSchema,
        mode: TableMode,
        lsn: Lsn,
        index_folder: Path,
    ) -> Replacement:
        """Choose the columns of the shadow copy. ``storage`` is that of the copy's folder."""
        return cls(
            storage=storage,
            deletes=DeletedRows(storage, catalog.lake),
            schema=schema,
            mode=mode,
            lsn=lsn,
            before=intact.columns,
            columns=replacement_columns(intact.columns, intact.last_column_id, schema, mode),
            index_folder=index_folder,
        )

    @property
    def ranges(self) -> RangeFiles:
        """The descriptions of the copy's finished ranges."""
        return RangeFiles(self.storage, self.columns.files().arrow)

    def copied(self, copied: CopiedRows[list[WrittenFile]]) -> None:
        """Register the copied files, and index their rows. Rows that changed between snapshots are deleted."""
        self.files, self.range_names = all_files(copied), copied.names
        if self.mode is TableMode.UPSERT:
            index = self.new_index()
            reader = KeyReader.of(self.schema, self.columns.files(), index.seed)
            index_rows(index, reader, self.storage, self.schema, copied, self.deletes)
            index.commit(NO_SNAPSHOT)

    @property
    def live(self) -> list[SizedFile]:
        """The files without their deleted rows."""
        deleted = {p: np.unique(np.concatenate(parts)) for p, parts in self.deletes.positions.items()}
        live = [LiveFile(f.path, deleted.get(f.path, np.empty(0, np.int64))) for f in self.files]
        return [SizedFile(file, of.rows - len(file.deleted)) for file, of in zip(live, self.files, strict=True)]

    def layout_of_files(self) -> FileLayout:
        """Return the layout of new files."""
        return self.columns.files()

    def _has_columns_of(self, schema: ReplicatedTableSchema) -> bool:
        return replacement_columns(self.columns, 0, schema, self.mode) == self.columns

    def _upsert(self, index: KeyIndex, events: TableEvents, after: Lsn, storage: Storage) -> None:
        deletes = DeletedRows(self.storage, self.deletes.lake)
        batch = Upsert(storage, self.columns.files(), events.schema, index, deletes)
        batch.run(events, after)
        try:
            index.commit(NO_SNAPSHOT)
        except BaseException:
            batch.discard()
            raise
        if batch.truncated:
            remove_files(storage, self.files)
            self.files = []
            self.deletes.positions.clear()
        self.files += batch.files
        for path, positions in deletes.positions.items():
            self.deletes.positions.setdefault(path, []).extend(positions)

    def commit(self, catalog: Catalog, row: TableRow, intact: IntactTable, mark: Watermark) -> TableRow | None:
        """Replace all files and columns of the table in one commit. Return the new state.

        Return None, without a commit, if the table has other columns than at the start, another copy has begun, or a
        file is missing.
        """
        named = row.copy_folder is not None and f"{intact.table.folder}{row.copy_folder}"
        if not named or catalog.lake.path(named) != self.storage.folder:
            return None
        if intact.columns.columns not in (self.before.columns, self.columns.columns):
            return None
        deletes = DeletedRows(self.storage, catalog.lake, dict(self.deletes.positions))
        try:
            deletes.write({}, {f.path: f.rows for f in self.files})
            kept = [f for f in self.files if f.path not in deletes.obsolete]
            described = describe_files(self.storage, kept, self.columns.own)
        except Transient as error:
            deletes.discard()
            if error.code != codes.FILE_VANISHED:
                raise
            _log.warning("the shadow copy of %s is not valid any more: %s", intact.table.name, error.message)
            return None
        if {f.path: f.rows for f in described} != {f.path: f.rows for f in kept}:
            raise conflict("a file of the shadow copy has changed")
        changes = Changes(self.columns, described, deletes, replacing=True)
        try:
            return commit(catalog, row, intact, changes, new_row(row, self.schema, self.mode, mark)).row
        except LevadaError as error:
            if is_uncommitted(error):
                deletes.discard()
            raise

    def discard(self) -> None:
        """Remove the files and the index."""
        remove_files(self.storage, self.files)
        self.files = []
        self.remove_index()

    def remove(self) -> None:
        """Remove the folder and the index."""
        self.discard()
        remove_folder(self.storage)
