"""An Iceberg table read through Iceberg's Java API: its metadata, and the files of a snapshot. It commits nothing."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any, Final

from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.listed_file import ListedFile
from levada.destinations.fenced import require_epoch
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.delete_files import DeleteFiles, PlannedDeletes, planned_deletes, vector_of
from levada.destinations.iceberg.file_describer import KnownModes
from levada.destinations.iceberg.foreign_changes import check_columns, check_writable, refusal
from levada.destinations.iceberg.java import JavaObject, Jvm, each, java_errors
from levada.destinations.iceberg.lineage import Lineage, Verdict, judge
from levada.destinations.iceberg.listed_files import listed_file
from levada.destinations.iceberg.metadata import Snapshot, TableMetadata
from levada.destinations.iceberg.partitioning import FilePartition
from levada.destinations.iceberg.storage import IcebergStorage, LocalFile, local_file, parquet_settings
from levada.errors import DestinationChanged
from levada.values import Watermark

_log = logging.getLogger(__name__)

VECTORS_SINCE: Final = 3
"""The format version from which rows are deleted by deletion vectors instead of position-delete files."""
_TOLERATED_MS: Final = 60_000
"""Iceberg's TableMetadata rejects a commit that is older than the last one by more than this."""


class TableReader:
    """A table with the metadata that was read last. Not thread-safe.

    ``format_version`` is the configured one. ``opened`` is the ``OpenTable`` in the JVM, through which all is read and
    committed.
    """

    def __init__(self, jvm: Jvm, name: TableName, java: JavaObject, format_version: int) -> None:
        self.name = name
        self._format_version = format_version
        self._jvm = jvm
        self.java = java
        self._read_from: str | None = None
        self._read_file: LocalFile | None = None
        self._stored: tuple[tuple[str, str], ...] = ()
        self._storage: IcebergStorage | None = None
        self.metadata: TableMetadata
        with java_errors(f"read {name}"):
            self._ops = java.operations()
            self.opened = jvm.open_table(java, self._ops)
            self._modes = KnownModes(self.opened)
            self.adopt(self.opened.read(None))

    def refresh(self) -> None:
        """Read the table's newest metadata."""
        with java_errors(f"read {self.name}"):
            if (newer := self.opened.refresh(self._read_from)) is not None:
                self.adopt(newer)

    def adopt(self, text: str) -> Mapping[str, Any]:
        """Take over the metadata of a result of ``OpenTable``. Return the parsed result."""
        result: dict[str, Any] = json.loads(text)
        changes = result.get("changes")
        self.metadata = TableMetadata.parse(result["metadata"]) if changes is None else self.metadata.changed(changes)
        self._read_from = result["location"]
        self._read_file = None if self._read_from is None else local_file(self._read_from)
        return result

    def is_ahead(self, latest_ms: int) -> bool:
        """Return True if Iceberg rejects a commit at ``latest_ms``. The last one was by a clock that was ahead."""
        with java_errors(f"read {self.name}"):
            return int(self._ops.current().lastUpdatedMillis()) > latest_ms + _TOLERATED_MS

    def has_same_file(self) -> bool:
        """Return True if the metadata was read from a local file, and the file is still the same.

        Otherwise a table that was dropped and created again may have another file of the same name.
        """
        read = self._read_file
        return read is not None and self._read_from is not None and read == local_file(self._read_from)

    def check_intact(self) -> Lineage:
        """Return the snapshots since Levada's last commit, none of which changes a row.

        Raise DestinationChanged if another writer changed rows, columns or partitioning, or rolled the table back.
        A table without a recorded commit passes the check, because it has no watermark either.
        """
        recorded = self.metadata.last_commit
        if recorded is None:
            return Lineage(Verdict.INTACT)
        self._check_writable()
        check_columns(self.name, self.metadata)
        found = judge(recorded.snapshot_id, self.metadata.snapshot_id, self._versions())
        if found.verdict is not Verdict.INTACT:
            raise refusal(self.name, self.metadata, found)
        return found

    def _check_writable(self) -> None:
        check_writable(self.name, self.metadata, self._format_version)

    @property
    def has_vectors(self) -> bool:
        """True if rows are deleted by deletion vectors, and not by position-delete files."""
        return self.metadata.format_version >= VECTORS_SINCE

    def _versions(self) -> Iterator[Mapping[int, Snapshot]]:
        """Yield the snapshots in each retained version of the metadata, newest first."""
        yield self.metadata.snapshots
        for location in self.metadata.log:
            # Skip a version that was removed or damaged.
            with suppress(DestinationChanged), java_errors(f"read {location}"):
                parser = self._jvm.iceberg.TableMetadataParser
                text = parser.toJson(parser.read(self.java.io(), location))
                yield TableMetadata.parse(json.loads(text)).snapshots

    def current_schema_id(self) -> int | None:
        """Return the ID of the schema with which the current snapshot was written. None without a snapshot."""
        with java_errors(f"read {self.name}"):
            snapshot = self.java.currentSnapshot()
            return None if snapshot is None else int(snapshot.schemaId())

    def changed_files(self, snapshot_id: int) -> tuple[list[str], list[str]] | None:
        """Return the paths of the data files that a snapshot added, and of those that it removed.

        Return None if it added files of a kind that Levada does not write.
        """
        with java_errors(f"read snapshot {snapshot_id} of {self.name}"):
            snapshot, io = self.java.snapshot(snapshot_id), self.java.io()
            added = list(each(snapshot.addedDataFiles(io)))
            if any(_is_strange(file) for file in added):
                return None
            return [f.location() for f in added], [f.location() for f in each(snapshot.removedDataFiles(io))]

    def partitions(self) -> dict[str, FilePartition]:
        """Return the partition of each data file of the current snapshot, by path."""
        with java_errors(f"plan a scan of {self.name}"), self._scan() as tasks:
            return {task.file().location(): self._partition(task.file()) for task in tasks}

    def _partition(self, file: JavaObject) -> FilePartition:
        number = int(file.specId())
        if not self.metadata.specs[number]:
            return FilePartition(number)
        kind = self.java.specs().get(number).partitionType()
        return FilePartition(number, self._jvm.iceberg.SingleValueParser.toJson(kind, file.partition()))

    def is_replaceable(self) -> bool:
        """Return True if one commit can replace all rows of the table."""
        try:
            self._check_writable()
            with java_errors(f"plan a scan of {self.name}"), self._scan() as tasks:
                for _ in tasks:
                    pass
        except DestinationChanged as error:
            _log.warning("%s cannot be replaced in place: %s", self.name, error.message)
            return False
        return True

    def plan(self) -> Mapping[str, PlannedDeletes] | None:
        """Return the data files, each with its deletion vector, or with the position-delete files that may apply to it.

        Return None if another writer added a file that is not Parquet, or an equality delete.
        """
        with java_errors(f"plan a scan of {self.name}"):
            text = self.opened.plan()
        if text is None:
            return None
        found = json.loads(text)
        deletes = found["deletes"]
        return {path: planned_deletes([deletes[i] for i in used]) for path, used in found["data"].items()}

    def files_between(self, former: int, later: int) -> tuple[list[str], list[str], bool]:
        """Return the data files of each of two snapshots whose rows the other one may not have.

        The third value is True if they have fewer bytes than all files of the later one.
        """
        with java_errors(f"plan a scan of {self.name}"):
            found = json.loads(self.opened.difference(former, later))
        return found["former"], found["later"], found["bytes"] < found["all"]

    def data_paths(self, snapshot: int) -> list[str]:
        """Return the paths of a snapshot's data files."""
        with java_errors(f"plan a scan of {self.name}"):
            return list(json.loads(self.opened.paths(snapshot)))

    def manifest_lists(self) -> dict[int, str]:
        """Return the location of the list of manifests of each snapshot that is kept."""
        with java_errors(f"read the snapshots of {self.name}"):
            return {int(id_): path for id_, path in json.loads(self.opened.manifestLists()).items()}

    @contextmanager
    def staged(self, snapshot: int, paths: Sequence[str]) -> Iterator[str]:
        """Let Spark read some data files of a snapshot, and no others. Yield the name of this set for a rewrite."""
        name = f"levada-{uuid.uuid4()}"
        with java_errors(f"plan a scan of {self.name}"):
            self.opened.stage(name, snapshot, json.dumps(paths))
        try:
            yield name
        finally:
            self.opened.unstage(name)

    def delete_files(self) -> DeleteFiles:
        """Return all delete files of the current snapshot, also those that apply to no data file."""
        with java_errors(f"read the delete files of {self.name}"):
            return DeleteFiles.read(self._jvm, self.java)

    @property
    def own_folder(self) -> str | None:
        """The folder of new files, if it belongs to this table alone, else None."""
        own = self.metadata.own_folder
        return own if own is not None and self.storage().folder.startswith(own) else None

    def storage(self) -> IcebergStorage:
        """Return the folder for new files, and the properties to access it."""
        properties = ((k, v) for k, v in self.metadata.properties.items() if k.startswith("write."))
        depends_on = (("location", self.metadata.location), *sorted(properties))
        if self._storage is None or self._stored != depends_on:
            with java_errors(f"read {self.name}"):
                found = json.loads(self.opened.storage())
                access = {name: text for name, text in found["properties"].items() if text is not None}
                self._storage = IcebergStorage(found["folder"], access, parquet_settings(self.metadata.properties))
                self._stored = depends_on
        return self._storage

    @contextmanager
    def _scan(self) -> Iterator[Iterator[JavaObject]]:
        """Plan a scan of all files, and close it in any case. A plain generator would close it late after an error."""
        tasks = self.java.newScan().planFiles()
        try:
            yield each(tasks)
        finally:
            tasks.close()

    def paths_in_use(self) -> list[str]:
        """Return the paths of the data and delete files of the current snapshot."""
        with self._scan() as tasks:
            return [file.location() for task in tasks for file in (task.file(), *task.deletes())]

    def may_exceed(self, column: str, low: int | Decimal, high: int | Decimal) -> bool:
        """Return False if the bounds of all data files say that the column has no value outside of low and high."""
        with java_errors(f"look for values in {self.name}"):
            terms = self._jvm.iceberg.expressions.Expressions
            outside = getattr(terms, "or")(terms.lessThan(column, low), terms.greaterThan(column, high))
            tasks = self.java.newScan().filter(outside).planFiles()
            try:
                return next(each(tasks), None) is not None
            finally:
                tasks.close()

    def damaged_files(self, snapshot: int) -> list[str]:
        """Return the paths of the data and delete files of a snapshot that are missing, or have another size."""
        with java_errors(f"look for the files of {self.name}"):
            io, files = self.java.io(), self._files_of(snapshot)
            return [path for path, f in files.items() if _is_damaged(io.newInputFile(path), f.fileSizeInBytes())]

    def content_of(self, snapshot: int) -> tuple[list[ListedFile], list[DeletionVector]]:
        """Return the Parquet files of a snapshot, and its deletion vectors."""
        with java_errors(f"look for the files of {self.name}"):
            specs, files, vectors, columns = self.java.specs(), [], [], self.metadata.layout.arrow
            for file in self._files_of(snapshot, each_vector=True).values():
                text = self._jvm.iceberg.ContentFileParser.toJson(file, specs.get(file.specId()))
                found = json.loads(text)
                kind = str(found["file-format"]).lower()
                if kind == "parquet":
                    files.append(listed_file(found, columns))
                elif kind == "puffin":
                    vectors.append(vector_of(found))
            return files, vectors

    def _files_of(self, snapshot: int, *, each_vector: bool = False) -> dict[str, JavaObject]:
        """Return the data and delete files of a snapshot by path. A Puffin file may have several vectors."""
        tasks = self.java.newScan().includeColumnStats().useSnapshot(snapshot).planFiles()
        try:
            found = ((t, f) for t in each(tasks) for f in (t.file(), *t.deletes()))
            return {
                f"{f.location()} {t.file().location()}" if each_vector and _is_puffin(f) else f.location(): f
                for t, f in found
            }
        finally:
            tasks.close()

    def check_epoch(self, mark: Watermark) -> None:
        """Raise StaleEpoch if a newer driver wrote the table.

        A mark of another pipeline is that of a former owner under another name, whose epochs say nothing.
        """
        current = self.metadata.mark
        if current is not None and current.pipeline == mark.pipeline:
            require_epoch(current.epoch, mark.epoch)


def _is_strange(file: JavaObject) -> bool:
    return str(file.format()) != "PARQUET"


def _is_puffin(file: JavaObject) -> bool:
    return str(file.format()) == "PUFFIN"


def _is_damaged(file: JavaObject, size: int) -> bool:
    return not file.exists() or int(file.getLength()) != int(size)
