"""A copy into a table that does not stream: its files, its commit's changes, and its key index."""

from __future__ import annotations

from dataclasses import dataclass

from levada.copy.rows import CopiedRows
from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.data_files.snapshot_rows import all_files, index_rows
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile
from levada.destinations.ducklake.columns import LakeColumns
from levada.destinations.ducklake.deletes import DeletedRows
from levada.destinations.ducklake.intact import IntactTable
from levada.destinations.ducklake.state import TableRow
from levada.destinations.ducklake.statistics import describe_files
from levada.destinations.ducklake.storage import LakeFolder
from levada.destinations.ducklake.writes import Changes
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import KeyIndex, index_errors
from levada.destinations.key_index.table_index import TableIndex
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class CopiedTable:
    """The table of a copy as it was claimed. ``storage`` is that of the copy's folder, and ``columns`` its columns."""

    lake: LakeFolder
    row: TableRow
    intact: IntactTable
    columns: LakeColumns
    storage: FileSystemStorage
    schema: ReplicatedTableSchema
    mode: TableMode

    def writer(self, lsn: Lsn) -> PartitionWriter:
        """Return what writes the rows of a snapshot to data files."""
        return PartitionWriter.of_copy(self.storage, self.columns.files(), self.schema, self.mode, lsn)

    @property
    def ranges(self) -> RangeFiles:
        """The descriptions of the finished ranges."""
        return RangeFiles(self.storage, self.columns.files().arrow)

    def changes(self, copied: CopiedRows[list[WrittenFile]], index: TableIndex) -> Changes:
        """Return what to commit. Rows that changed between snapshots are deleted, after the index has found them."""
        files, deletes = all_files(copied), DeletedRows(self.storage, self.lake)
        if copied.changed_keys is not None:
            with index_errors(index.folder):
                # An index of an earlier table must not survive a crash before the commit.
                index.forget()
                self._index(index.open(self.schema), copied, deletes)
            deletes.write({}, {f.path: f.rows for f in files})
        kept = [f for f in files if f.path not in deletes.obsolete]
        return Changes(self.columns, describe_files(self.storage, kept, self.columns.own), deletes, replacing=True)

    def committed(self, copied: CopiedRows[list[WrittenFile]], index: TableIndex, snapshot: int) -> None:
        """Make the index that of the commit, and remove what only an interrupted copy needs."""
        if copied.changed_keys is not None:
            index.commit(snapshot)
        elif self.mode is TableMode.UPSERT:
            unused = DeletedRows(self.storage, self.lake)
            index.build(self.schema, lambda opened: self._index(opened, copied, unused), snapshot)
        self.ranges.remove(copied.names)

    def _index(self, opened: KeyIndex, copied: CopiedRows[list[WrittenFile]], deletes: DeletedRows) -> None:
        reader = KeyReader.of(self.schema, self.columns.files(), opened.seed)
        index_rows(opened, reader, self.storage, self.schema, copied, deletes)
