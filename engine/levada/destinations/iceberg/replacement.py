"""A shadow copy of a table: files that no commit refers to, until one commit replaces the table's files by them.

In the meantime the table is read, written, compacted and expired as usual.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from levada import codes
from levada.copy.rows import CopiedRows
from levada.destinations.data_files.deletion_vectors import DeletionVector, files_of
from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.live_files import without_deletes
from levada.destinations.data_files.shadow_files import NO_SNAPSHOT, ShadowFiles
from levada.destinations.data_files.snapshot_rows import all_files, index_snapshots
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.destinations.data_files.upsert import Upsert
from levada.destinations.iceberg.arranging import arrange_as, name_taken
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.delete_files import NewDeletes
from levada.destinations.iceberg.java import CommitConflict, JavaObject
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.ownership import key_property
from levada.destinations.iceberg.partitioning import resolve
from levada.destinations.iceberg.schema import IcebergSchema, replacement_layout
from levada.destinations.iceberg.settings import TableSettings
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.table_properties import without_bounds
from levada.destinations.iceberg.vectors import deletes_of_copy, finish, new_deletes
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import KeyIndex
from levada.errors import DestinationChanged, Transient
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3


@contextmanager
def vanishing() -> Iterator[None]:
    """Raise Transient ``file_vanished`` if a file was removed before its commit."""
    try:
        yield
    except DestinationChanged as error:
        raise Transient(
            "file_vanished",
            f"a file was removed before its commit: {error.message}",
            hint="if this persists, let no job remove orphan files that are younger than a day",
        ) from error


@dataclass(slots=True, kw_only=True)
class Replacement(ShadowFiles):
    """The files of a shadow copy, and the version and LSN of their content. Not thread-safe."""

    lease: CopyLease
    before: IcebergSchema
    """The table's columns at the start of the copy."""
    layout: IcebergSchema
    new_files: FileLayout
    """The layout of new files, in the partitions that the table had at the start of the copy."""
    format_version: int
    """The table's format version at the start of the copy."""
    has_vectors: bool
    """True if rows are deleted by deletion vectors."""
    deletes: list[WrittenFile] = field(default_factory=list)
    vectors: dict[str, DeletionVector] = field(default_factory=dict)
    """The deletion vectors of the files, by data file."""

    @classmethod
    def begin(
        cls,
        table: IcebergTable,
        target: TableTarget,
        mode: TableMode,
        mark: Watermark,
        index_folder: Path,
        kept_folder: str | None = None,
    ) -> Replacement | None:
        """Take the copy lease on the table, and choose the columns and the partitions of the shadow copy.

        Return None if the partitions need a column that the table gets only with the shadow copy, or if a column has
        the name of a partition. The table must then be made again. ``kept_folder`` is that of `CopyLease.take`.
        """
        before = table.metadata.layout
        layout = replacement_layout(before, table.metadata.last_field_id, target.schema, mode)
        settings = target.settings if isinstance(target.settings, TableSettings) else None
        wanted = resolve(settings, layout, target.schema, table.metadata.arrangement)
        used = {*(source for source, _ in wanted.terms), *(f.source_id for f in wanted.order)}
        if name_taken(table.metadata, layout) is not None:
            return None
        if any(number not in before.by_id or before.by_id[number].type != layout.by_id[number].type for number in used):
            return None
        return cls(
            lease=CopyLease.take(table, mark, kept_folder),
            schema=target.schema,
            mode=mode,
            lsn=mark.lsn,
            before=before,
            layout=layout,
            index_folder=index_folder,
            new_files=arrange_as(table, target, layout, keeps_rows=False),
            format_version=table.metadata.format_version,
            has_vectors=table.has_vectors,
        )

    def copied(self, copied: CopiedRows[list[WrittenFile]], storage: Storage) -> None:
        """Register the copied files, and index their rows. Rows that changed between snapshots are deleted."""
        self.files, self.range_names = all_files(copied), copied.names
        if self.mode is not TableMode.UPSERT:
            return
        index = self.new_index()
        reader = KeyReader.of(self.schema, self.layout.files, index.seed)
        if copied.changed_keys is None:
            add_files(index, reader, storage, (without_deletes(f.path) for f in self.files))
        else:
            deletes = deletes_of_copy(storage, self.files, vectors=self.has_vectors)
            index_snapshots(index, reader, storage, self.schema, copied, deletes)
            finished = finish(deletes, {})
            self.deletes = list(finished.files)
            self.vectors = {v.data_file: v for v in finished.vectors}
        index.commit(NO_SNAPSHOT)

    def layout_of_files(self) -> FileLayout:
        """Return the layout of new files."""
        return self.new_files

    def _has_columns_of(self, schema: ReplicatedTableSchema) -> bool:
        known = max((f.id for f in self.layout.fields), default=0)
        return replacement_layout(self.layout, known, schema, self.mode) == self.layout

    def _upsert(self, index: KeyIndex, events: TableEvents, after: Lsn, storage: Storage) -> None:
        deletes = new_deletes(storage, vectors=self.has_vectors)
        batch = Upsert(storage, self.new_files, events.schema, index, deletes)
        partitions = {f.path: f.partition for f in self.files}
        deletes.partitions_of = lambda paths: _partitions(paths, partitions, batch.files)
        batch.run(events, after)
        try:
            finished = finish(deletes, {} if batch.truncated else self.vectors)
            index.commit(NO_SNAPSHOT)
        except BaseException:
            batch.discard()
            raise
        before = files_of(self.vectors.values())
        if batch.truncated:
            remove_files(storage, [*self.files, *self.deletes])
            self.files, self.deletes, self.vectors = [], [], {}
        self.files += batch.files
        self.deletes += finished.files
        self.vectors.update({v.data_file: v for v in finished.vectors})
        used = {v.path for v in self.vectors.values()}
        remove_files(storage, [f for f in before if f.path not in used])

    def commit(self, table: IcebergTable, mark: Watermark) -> int | None:
        """Replace all files of the table by those of the shadow copy in one commit. Return the snapshot's ID.

        Return None, without a commit, if the shadow copy is no longer valid: the table has other columns than at the
        start, another copy has the lease, or a file is missing. Raise StaleEpoch if a newer driver has the lease.
        """
        for attempt in range(1, _ATTEMPTS + 1):
            table.check_epoch(mark)
            if not self._fits(table, mark):
                return None
            try:
                return table.write(
                    self.files,
                    NewDeletes(self.deletes, tuple(self.vectors.values())),
                    mark=mark,
                    replacing=True,
                    layout=self.layout,
                    properties={
                        Property.MODE.value: self.mode.value,
                        Property.KEY.value: key_property(self.schema),
                        **without_bounds(self.layout.uuids, table.metadata.layout.uuids),
                        Property.COLUMNS.value: self.layout.columns_json(),
                        Property.FILL.value: None,
                        Property.COPY_LEASE.value: None,
                    },
                )
            except CommitConflict as conflict:
                if conflict.code == codes.FILE_VANISHED:
                    return None
                if attempt == _ATTEMPTS:
                    raise
                table.refresh()
        raise AssertionError

    def uncommitted(self, table: IcebergTable) -> JavaObject:
        """Return the metadata of the table as `commit` would write it, see `IcebergTable.uncommitted`."""
        return table.uncommitted(self.files, NewDeletes(self.deletes, tuple(self.vectors.values())), self.layout)

    def _fits(self, table: IcebergTable, mark: Watermark) -> bool:
        # The stream may have changed the table to the columns that the shadow copy already has.
        same_version = table.metadata.format_version == self.format_version
        return self.lease.holds(table, mark) and same_version and table.metadata.layout in (self.before, self.layout)


def _partitions(
    paths: Sequence[str], partitions: Mapping[str, Hashable], written: Sequence[WrittenFile]
) -> Sequence[Hashable]:
    new = {f.path: f.partition for f in written}
    return [new[path] if path in new else partitions[path] for path in paths]
