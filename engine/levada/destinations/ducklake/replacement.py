"""A shadow copy of a table: files that no snapshot refers to, until one commit replaces the table's files by them."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np

from levada import codes
from levada.copy.rows import CopiedRows
from levada.destinations.data_files.changelog import write_changelog
from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.live_files import LiveFile
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.data_files.snapshot_rows import all_files, index_rows
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile, remove_files
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
from levada.destinations.keys import key_kind
from levada.errors import LevadaError, Transient
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.segments.checksums import DamageError
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)

_NO_SNAPSHOT: Final = 0
"""The snapshot of the index of a shadow copy. No commit of Levada has it."""


@dataclass(slots=True)
class Replacement:
    """The files of a shadow copy, and the version and LSN of their content. Not thread-safe."""

    storage: FileSystemStorage
    deletes: DeletedRows
    schema: ReplicatedTableSchema
    """The version that was written last."""
    mode: TableMode
    lsn: Lsn
    """The LSN below which all changes are in the files."""
    before: LakeColumns
    """The table's columns at the start of the copy."""
    columns: LakeColumns
    index_folder: Path
    files: list[WrittenFile] = field(default_factory=list)
    index: KeyIndex | None = None
    """The key index of the files, or None for a changelog."""
    range_names: tuple[str, ...] = ()
    """The names of the descriptions of ranges that are in the folder."""

    @classmethod
    def begin(
        cls,
        catalog: Catalog,
        storage: FileSystemStorage,
        intact: IntactTable,
        last_id: int,
        schema: ReplicatedTableSchema,
        mode: TableMode,
        lsn: Lsn,
        index_folder: Path,
    ) -> Replacement:
        """Choose the columns of the shadow copy. ``last_id`` is the highest column ID of the table.

        ``storage`` is that of the copy's folder.
        """
        columns = replacement_columns(intact.columns, last_id, schema, mode)
        deletes = DeletedRows(storage, catalog.lake)
        return cls(storage, deletes, schema, mode, lsn, intact.columns, columns, index_folder)

    @property
    def ranges(self) -> RangeFiles:
        """The descriptions of the copy's finished ranges."""
        return RangeFiles(self.storage, self.columns.files().arrow)

    def copied(self, copied: CopiedRows[list[WrittenFile]]) -> None:
        """Register the copied files, and index their rows. Rows that changed between snapshots are deleted."""
        self.files, self.range_names = all_files(copied), copied.names
        if self.mode is TableMode.UPSERT:
            shutil.rmtree(self.index_folder, ignore_errors=True)
            self.index = KeyIndex.open(self.index_folder, key_kind(self.schema))
            reader = KeyReader.of(self.schema, self.columns.files(), self.index.seed)
            index_rows(self.index, reader, self.storage, self.schema, copied, self.deletes)
            self.index.commit(_NO_SNAPSHOT)

    @property
    def live(self) -> list[SizedFile]:
        """The files without their deleted rows."""
        deleted = {p: np.unique(np.concatenate(parts)) for p, parts in self.deletes.positions.items()}
        live = [LiveFile(f.path, deleted.get(f.path, np.empty(0, np.int64))) for f in self.files]
        return [SizedFile(file, of.rows - len(file.deleted)) for file, of in zip(live, self.files, strict=True)]

    def apply(self, events: TableEvents, mark: Watermark) -> bool:
        """Write the files of a batch. Return False, without writing, if the batch changes the columns.

        A batch that was applied before is ignored.
        """
        if mark.lsn <= self.lsn:
            return True
        if replacement_columns(self.columns, 0, events.schema, self.mode) != self.columns:
            return False
        after = max(events.after, self.lsn)
        if self.index is None:
            self.files += write_changelog(self.storage, self.columns.files(), events.schema, events, after)
        else:
            self._upsert(self.index, events, after)
        self.schema, self.lsn = events.schema, mark.lsn
        return True

    def _upsert(self, index: KeyIndex, events: TableEvents, after: Lsn) -> None:
        deletes = DeletedRows(self.storage, self.deletes.lake)
        batch = Upsert(self.storage, self.columns.files(), events.schema, index, deletes)
        batch.run(events, after)
        try:
            index.commit(_NO_SNAPSHOT)
        except BaseException:
            batch.discard()
            raise
        if batch.truncated:
            remove_files(self.storage, self.files)
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
            return commit(catalog, row, intact, changes, new_row(row, self.schema, self.mode, mark))
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

    def remove_index(self) -> None:
        """Remove the index and its folder."""
        self.index = None
        shutil.rmtree(self.index_folder, ignore_errors=True)

    def hand_over_index(self, snapshot: int, folder: Path) -> None:
        """Move the index to ``folder``, the place of the table's index. After an error it is rebuilt."""
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if self.index is not None:
                self.index.commit(snapshot)
                self.index_folder.rename(folder)
        except (OSError, DamageError) as error:
            _log.warning("the key index of the shadow copy cannot be moved, and is rebuilt: %s", error)
        self.remove_index()
