"""One Iceberg table through Iceberg's Java API: what it holds, and commits that happen wholly or not at all.

A commit is a compare-and-set on the metadata that was read: it never lands on top of what somebody else committed in
between, so the epoch, the watermark and the positions that it was made from still hold when it does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from levada.destinations.iceberg.catalog import TableName
from levada.destinations.iceberg.files import Storage, WrittenFile
from levada.destinations.iceberg.java import CommitConflict, CommitUnknown, JavaObject, Jvm, each, java_errors
from levada.destinations.iceberg.layout import Layout
from levada.errors import NeedsOperator, StaleEpoch
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)

PIPELINE: Final = "levada.pipeline"
EPOCH: Final = "levada.epoch"
LSN: Final = "levada.lsn"
"""These three stamp a snapshot's summary."""

MARK_PIPELINE: Final = "levada.mark.pipeline"
MARK_EPOCH: Final = "levada.mark.epoch"
MARK_LSN: Final = "levada.mark.lsn"
"""These, as table properties, hold the mark once no stamped snapshot is left in the table's history."""


class Property(StrEnum):
    """What a table's properties tell of the source."""

    PIPELINE = PIPELINE
    TABLE_ID = "levada.table-id"
    SOURCE = "levada.source"
    """The source's schema and name when the table was made, in JSON."""
    MODE = "levada.mode"
    KEY = "levada.key"
    """The key's attnums, ascending."""
    COLUMNS = "levada.columns"
    """attnum -> field id, in JSON."""
    FILL = "levada.fill"
    """attnums of added columns whose constant the rows that were there have not got yet, in JSON."""


DEFAULTS: Final[Mapping[str, str]] = {
    "format-version": "2",
    # One commit a second must not leave a metadata file a second behind.
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.parquet.compression-codec": "zstd",
    "write.delete.mode": "merge-on-read",
    "write.update.mode": "merge-on-read",
    "write.merge.mode": "merge-on-read",
}


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What a table's metadata tells of its shape."""

    data_files: int
    delete_files: int
    rows: int
    deleted_rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot of the table; ``mark`` if it carries a stamp."""

    id: int
    parent: int | None
    operation: str
    timestamp_ms: int
    mark: Watermark | None


class IcebergTable:
    """A table as it was when last read; not for two threads at once."""

    def __init__(self, jvm: Jvm, name: TableName, java: JavaObject) -> None:
        self.name = name
        self._jvm = jvm
        self.java = java
        self._ops = java.operations()

    # -- what it holds

    def refresh(self) -> None:
        """Read the table's newest metadata."""
        with java_errors(f"read {self.name}"):
            self.java.refresh()

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        with java_errors(f"read {self.name}"):
            return dict(self.java.properties())

    def layout(self) -> Layout:
        """Return the table's columns."""
        with java_errors(f"read {self.name}"):
            schema = self._jvm.iceberg.SchemaParser.toJson(self.java.schema())
            return Layout.from_json(schema, self.java.properties().get(Property.COLUMNS.value) or "{}")

    @property
    def last_field_id(self) -> int:
        """The highest field id that the table ever had."""
        with java_errors(f"read {self.name}"):
            return int(self._ops.current().lastColumnId())

    @property
    def snapshot_id(self) -> int | None:
        """The current snapshot's id, None in a table without any."""
        with java_errors(f"read {self.name}"):
            current = self.java.currentSnapshot()
            return None if current is None else int(current.snapshotId())

    @property
    def is_empty(self) -> bool:
        """Whether there are no data files."""
        return not self.facts().data_files

    def facts(self) -> TableFacts:
        """Return the shape of the current snapshot."""
        with java_errors(f"read {self.name}"):
            current = self.java.currentSnapshot()
            summary = {} if current is None else dict(current.summary())
        totals = (
            int(summary.get(f"total-{name}", 0))
            for name in ("data-files", "delete-files", "records", "position-deletes", "files-size")
        )
        return TableFacts(*totals)

    def ancestors(self) -> Iterator[Snapshot]:
        """Yield the current snapshot and those before it, newest first, as far as they are kept."""
        with java_errors(f"read {self.name}"):
            java = self.java.currentSnapshot()
        while java is not None:
            with java_errors(f"read {self.name}"):
                snapshot = _snapshot(java)
            yield snapshot
            with java_errors(f"read {self.name}"):
                java = None if snapshot.parent is None else self.java.snapshot(snapshot.parent)

    def mark(self) -> Watermark | None:
        """Return what the table holds: the newest stamped ancestor's mark, else the one that maintenance kept."""
        for snapshot in self.ancestors():
            if snapshot.mark is not None:
                return snapshot.mark
        if self.snapshot_id is None:
            return None
        kept = self.properties
        if MARK_LSN not in kept:
            return None
        return Watermark(kept[MARK_PIPELINE], int(kept[MARK_EPOCH]), Lsn.parse(kept[MARK_LSN]))

    def changed_files(self, snapshot_id: int) -> tuple[list[str], list[str]]:
        """Return the paths of the data files that a snapshot added, and of those that it removed."""
        with java_errors(f"read snapshot {snapshot_id} of {self.name}"):
            snapshot, io = self.java.snapshot(snapshot_id), self.java.io()
            return _paths(snapshot.addedDataFiles(io)), _paths(snapshot.removedDataFiles(io))

    def plan(self) -> Mapping[str, frozenset[str]] | None:
        """Return the data files with the position-delete files that may concern each.

        None if there is a file that is not Parquet, or a delete that is not by position: somebody else wrote these.
        """
        planned: dict[str, frozenset[str]] = {}
        with java_errors(f"plan a scan of {self.name}"):
            for task in self._tasks():
                deletes = list(task.deletes())
                kinds = {str(f.format()) for f in (task.file(), *deletes)} | {str(d.content()) for d in deletes}
                if kinds - {"PARQUET", "POSITION_DELETES"}:
                    return None
                planned[task.file().location()] = frozenset(d.location() for d in deletes)
        return planned

    def rewrite_all(self) -> None:
        """Write every row anew as Spark does, without deletes."""
        with java_errors(f"rewrite {self.name}"):
            actions = self._jvm.iceberg.spark.actions.SparkActions.get(self._jvm.session)
            actions.rewriteDataFiles(self.java).option("rewrite-all", "true").execute()
            self.java.refresh()

    def storage(self) -> Storage:
        """Return where new files go, and how they are reached."""
        with java_errors(f"read {self.name}"):
            folder = self.java.locationProvider().newDataLocation("")
            return Storage(folder, {k: v for k, v in dict(self.java.io().properties()).items() if v is not None})

    # -- commits

    def write(
        self,
        files: Iterable[WrittenFile],
        deletes: Iterable[WrittenFile] = (),
        *,
        mark: Watermark | None,
        replacing: bool = False,
        properties: Mapping[str, str | None] | None = None,
    ) -> int:
        """Add rows, delete others by position, stamp ``mark``, all in one commit; return the new snapshot's id.

        With ``replacing`` every row that is there goes. ``properties`` are set or, with None, removed. Raise
        CommitConflict if the table is no longer as it was when last read.
        """
        with java_errors(f"write to {self.name}"):
            added = [self._data_file(f) for f in files]
            deleted = [self._delete_file(f) for f in deletes]
            if deleted or replacing:
                update = self.java.newRowDelta()
                for file in added:
                    update.addRows(file)
                for file in deleted:
                    update.addDeletes(file)
                if replacing:
                    self._remove_everything(update)
            else:
                update = self.java.newAppend()
                for file in added:
                    update.appendFile(file)
        return self._commit(update, mark, properties or {})

    def _remove_everything(self, update: JavaObject) -> None:
        for task in self._tasks():
            update.removeRows(task.file())
            for file in task.deletes():
                update.removeDeletes(file)

    def _tasks(self) -> Iterator[JavaObject]:
        tasks = self.java.newScan().planFiles()
        try:
            yield from each(tasks)
        finally:
            tasks.close()

    def evolve(self, layout: Layout, properties: Mapping[str, str | None]) -> None:
        """Change the columns and the properties in one commit."""
        with java_errors(f"change the columns of {self.name}"):
            base = self._ops.current()
            schema = self._jvm.iceberg.SchemaParser.fromJson(layout.to_json())
            changed = base.updateSchema(schema)
            self._commit_metadata(base, self._with_properties(self._builder(changed), properties).build())

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set properties, or with None remove them."""
        with java_errors(f"set properties of {self.name}"):
            base = self._ops.current()
            self._commit_metadata(base, self._with_properties(self._builder(base), properties).build())

    def keep_mark(self, mark: Watermark) -> None:
        """Note a mark for when its snapshot is gone."""
        self.set_properties({MARK_PIPELINE: mark.pipeline, MARK_EPOCH: str(mark.epoch), MARK_LSN: str(mark.lsn)})

    def check_epoch(self, mark: Watermark) -> None:
        """Raise StaleEpoch if a newer driver stamped the table, NeedsOperator if it belongs to another pipeline."""
        current = self.mark()
        if current is None:
            return
        if current.pipeline != mark.pipeline:
            raise NeedsOperator(
                "table_of_another_pipeline",
                f"{self.name} is written by pipeline {current.pipeline}",
                hint="give the table another name with destinationTable in its TableSync",
            )
        if current.epoch > mark.epoch:
            raise StaleEpoch(mark.epoch, current.epoch)

    # -- the way of a commit

    def _commit(self, update: JavaObject, mark: Watermark | None, properties: Mapping[str, str | None]) -> int:
        parent = self.snapshot_id
        with java_errors(f"commit to {self.name}"):
            if mark is not None:
                for key, value in ((PIPELINE, mark.pipeline), (EPOCH, str(mark.epoch)), (LSN, str(mark.lsn))):
                    update.set(key, value)
            # apply() writes the manifests on top of the newest metadata, commit() would do so again and again.
            snapshot = update.apply()
            base = self._ops.current()
            if snapshot.parentId() != parent:
                raise CommitConflict("commit_conflict", f"{self.name} was changed by somebody else")
            builder = self._builder(base).setBranchSnapshot(snapshot, "main")
            changed = self._with_properties(builder, properties).build()
            snapshot_id = int(snapshot.snapshotId())
        try:
            with java_errors(f"commit to {self.name}"):
                self._commit_metadata(base, changed)
        except CommitUnknown:
            self.refresh()
            if all(s.id != snapshot_id for s in self.ancestors()):
                raise
            _log.warning("%s: the commit of snapshot %s was not confirmed, but happened", self.name, snapshot_id)
        return snapshot_id

    def _builder(self, base: JavaObject) -> JavaObject:
        return self._jvm.iceberg.TableMetadata.buildFrom(base)

    def _with_properties(self, builder: JavaObject, properties: Mapping[str, str | None]) -> JavaObject:
        present = {k: v for k, v in properties.items() if v is not None}
        gone = [k for k, v in properties.items() if v is None]
        if present:
            builder = builder.setProperties(self._jvm.map(present))
        return builder.removeProperties(self._jvm.set(gone)) if gone else builder

    def _commit_metadata(self, base: JavaObject, changed: JavaObject) -> None:
        self._ops.commit(base, changed)
        self.java.refresh()

    def _data_file(self, written: WrittenFile) -> JavaObject:
        i = self._jvm.iceberg
        metrics = i.parquet.ParquetUtil.fileMetrics(
            self.java.io().newInputFile(written.path), i.MetricsConfig.forTable(self.java)
        )
        builder = i.DataFiles.builder(self.java.spec()).withPath(written.path).withFormat("parquet")
        return builder.withFileSizeInBytes(written.bytes).withMetrics(metrics).build()

    def _delete_file(self, written: WrittenFile) -> JavaObject:
        i = self._jvm.iceberg
        metrics = i.parquet.ParquetUtil.fileMetrics(
            self.java.io().newInputFile(written.path), i.MetricsConfig.forPositionDelete()
        )
        builder = i.FileMetadata.deleteFileBuilder(self.java.spec()).ofPositionDeletes().withPath(written.path)
        return builder.withFormat("parquet").withFileSizeInBytes(written.bytes).withMetrics(metrics).build()


def _snapshot(java: JavaObject) -> Snapshot:
    summary = java.summary()
    lsn = summary.get(LSN)
    mark = None if lsn is None else Watermark(summary.get(PIPELINE), int(summary.get(EPOCH)), Lsn.parse(lsn))
    parent = java.parentId()
    return Snapshot(
        int(java.snapshotId()),
        None if parent is None else int(parent),
        java.operation(),
        int(java.timestampMillis()),
        mark,
    )


def _paths(files: JavaObject) -> list[str]:
    return [f.location() for f in each(files)]
