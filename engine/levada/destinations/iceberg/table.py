"""Atomic commits to an Iceberg table through Iceberg's Java API.

A commit is a compare-and-set on the metadata that was read. It fails if another writer committed in between. So the
epoch, the watermark and the row positions on which a commit is based are still valid when it succeeds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.catalog_config import TableName
from levada.destinations.iceberg.clock import Clock
from levada.destinations.iceberg.delete_files import NewDeletes
from levada.destinations.iceberg.file_describer import FileDescriber, require_files
from levada.destinations.iceberg.java import CommitConflict, JavaObject, Jvm, java_errors
from levada.destinations.iceberg.metadata import LastCommit, Property, recorded, stamp
from levada.destinations.iceberg.partitioning import SortOrder, Spec, order_json, spec_json
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.table_reader import TableReader
from levada.errors import LevadaError
from levada.values import Watermark

_log = logging.getLogger(__name__)

NO_DELETES: Final = NewDeletes()
_NEVER_MS: Final = (1 << 63) - 1
"""The age in milliseconds of a tag that never expires, which is Java's largest long."""


class IcebergTable(TableReader):
    """A table with the commits to it. Not thread-safe.

    `upgrade` brings the table to the configured format version. ``clock`` is checked before each commit.
    """

    def __init__(self, jvm: Jvm, name: TableName, java: JavaObject, format_version: int, clock: Clock) -> None:
        super().__init__(jvm, name, java, format_version)
        self.clock = clock

    def upgrade(self) -> None:
        """Upgrade the table to the configured format version, if it has an older one. Its files stay valid."""
        if self.metadata.format_version >= self._format_version:
            return
        with java_errors(f"upgrade {self.name}"):
            base = self._ops.current()
            self.commit_metadata(base, self._builder(base).upgradeFormatVersion(self._format_version).build())
        _log.info("upgraded %s to format version %d", self.name, self._format_version)

    def record_current(self) -> None:
        """Record the current snapshot as Levada's last commit. Call it after `check_intact`, as its rows are the same.

        Later commits of other writers are then compared with this snapshot, even if older ones have expired.
        """
        recorded, current = self.metadata.last_commit, self.metadata.snapshot_id
        if recorded is not None and current is not None and recorded.snapshot_id != current:
            self.set_properties(self._record(recorded.mark, current, self.metadata.schema_id))

    def record_mark(self, mark: Watermark) -> None:
        """Store the watermark ``mark`` without a new snapshot, because no row changes."""
        if (current := self.metadata.snapshot_id) is not None:
            self.set_properties(self._record(mark, current, self.metadata.schema_id))

    def _record(self, mark: Watermark | None, snapshot_id: int, schema_id: int) -> dict[str, str | None]:
        if mark is None:
            return {}
        return {Property.LAST_COMMIT.value: LastCommit(mark, snapshot_id, schema_id).to_text()}

    def release_columns(self, layout: IcebergSchema) -> None:
        """Rewrite the table to partitions that use only columns of ``layout``, if a file has others.

        Call it before the other columns are dropped. Afterwards Iceberg's library could not read such a file together
        with new position deletes, because it no longer knows the values of its partition.
        """
        left = layout.by_id
        lost = {number for number, spec in self.metadata.specs.items() if any(f.source_id not in left for f in spec)}
        if not lost:
            return
        with java_errors(f"change the partitions of {self.name}"):
            base = self._ops.current()
            kept, properties = self._without_lost_columns(base, layout, {})
            if kept is not base:
                self.commit_metadata(base, self._with_properties(self._builder(kept), properties).build())
        with java_errors(f"plan a scan of {self.name}"), self._scan() as tasks:
            used = {int(task.file().specId()) for task in tasks}
        if used & lost:
            _log.info("%s: rewriting all rows, because a column of their partitions was dropped", self.name)
            self.rewrite_all()

    def rewrite_all(self) -> None:
        """Let Spark rewrite all rows to Parquet files without deletes."""
        self.set_properties({"write.format.default": "parquet"})
        with java_errors(f"rewrite {self.name}"):
            actions = self._jvm.actions()
            rewrite = actions.rewriteDataFiles(self.java).option("rewrite-all", "true")
            rewrite.option("remove-dangling-deletes", "true").execute()
        self.refresh()

    def write(
        self,
        files: Sequence[WrittenFile],
        deletes: NewDeletes = NO_DELETES,
        *,
        mark: Watermark | None,
        replacing: bool = False,
        properties: Mapping[str, str | None] | None = None,
        layout: IcebergSchema | None = None,
        unrecorded: bool = False,
    ) -> int:
        """Add rows, delete rows by position and store ``mark``, in one commit. Return the new snapshot's ID.

        ``files`` are data files. With ``replacing`` all existing rows are removed. ``properties`` are set, or removed
        if the value is None. ``layout`` has the table's new columns, if they change. With ``unrecorded`` the commit is
        one of a repair. The table need not be intact, and the commit counts as that of another writer until
        `record_mark`. Raise CommitConflict if the table changed since it was last read.
        """
        if not unrecorded and (not replacing or mark is None):
            # A rewrite by this process may have read a commit of another writer since the last check.
            self.check_intact()
        self._check_writable()
        require_files(self.storage(), files, deletes)
        changes = self._changes(files, deletes, replacing=replacing)
        return self.commit({**changes, **self._terms(mark, properties or {}, layout, unrecorded=unrecorded)})

    def uncommitted(self, files: Sequence[WrittenFile], deletes: NewDeletes, layout: IcebergSchema) -> JavaObject:
        """Return the metadata of a table with these files and columns, as `write` with ``replacing`` would commit it.

        It is not committed. `remove_manifests` removes what was written for it.
        """
        self._check_writable()
        require_files(self.storage(), files, deletes)
        changes = self._changes(files, deletes, replacing=True)
        request = json.dumps({**changes, **self._terms(None, {}, layout, unrecorded=True)})
        with java_errors(f"read {self.name}"):
            return self.opened.uncommitted(request, self._read_from)

    def remove_manifests(self, uncommitted: JavaObject) -> None:
        """Remove the manifests of the result of `uncommitted`. A failure is logged, as they only use space."""
        try:
            with java_errors(f"remove manifests of {self.name}"):
                io, snapshot = self.java.io(), uncommitted.currentSnapshot()
                new = [m.path() for m in snapshot.allManifests(io) if m.snapshotId() == snapshot.snapshotId()]
                for path in (*new, snapshot.manifestListLocation()):
                    io.deleteFile(path)
        except LevadaError as error:
            _log.warning("manifests of a verification of %s stay: %s", self.name, error)

    def _changes(self, files: Sequence[WrittenFile], deletes: NewDeletes, *, replacing: bool) -> Mapping[str, Any]:
        """Return the part of a request that adds and deletes these rows, see `write`."""
        described, current = self._describer(), self.metadata.snapshot_id
        delta = bool(deletes.files or deletes.vectors or replacing)
        return {
            "operation": "delta" if delta else "append",
            "data": described.data(files),
            "deletes": described.deletes(deletes),
            "removed-deletes": described.vectors(deletes.replaced),
            "replacing": replacing,
            "validate-from": current if deletes.vectors else None,
        }

    def replace_deletes(self, former: Sequence[Mapping[str, Any]], vectors: Sequence[DeletionVector]) -> int:
        """Replace delete files by deletion vectors for the same rows, in one commit. Return the snapshot's ID.

        ``former`` are delete files in Iceberg's JSON.
        """
        self.check_intact()
        deletes = self._describer().vectors(vectors)
        changes = {"operation": "rewrite-deletes", "data": [], "deletes": deletes, "removed-deletes": former}
        return self.commit({**changes, **self._terms(None, {})})

    def rewrite(self, files: Sequence[WrittenFile]) -> int:
        """Replace all data and delete files by data files with the same rows, in one commit.

        Return the snapshot's ID. Raise CommitConflict if the table changed since it was last read.
        """
        self.check_intact()
        require_files(self.storage(), files, NO_DELETES)
        changes = {"operation": "rewrite", "data": self._describer().data(files), "deletes": [], "removed-deletes": []}
        return self.commit({**changes, **self._terms(None, {})})

    def rewrite_without(self, lost: Sequence[str], files: Sequence[WrittenFile]) -> int:
        """Replace the files ``lost`` by ``files``, which lack some of their rows, in one commit.

        They are data files, and position-delete files that apply to no other ones. The watermark stays. Return the
        snapshot's ID. Raise CommitConflict if the table changed since it was last read.
        """
        self.check_intact()
        self._check_writable()
        require_files(self.storage(), files, NO_DELETES)
        changes = {**self._changes(files, NO_DELETES, replacing=False), "operation": "delta", "lost": lost}
        return self.commit({**changes, **self._terms(None, {})})

    def rewrite_manifests(self, paths: Sequence[str]) -> int:
        """Replace manifests of data files by new ones without entries of removed files, in one commit.

        Return the snapshot's ID. Raise CommitConflict if the table changed since it was last read.
        """
        self.check_intact()
        changes = {**self._changes((), NO_DELETES, replacing=False), "operation": "rewrite-manifests"}
        return self.commit({**changes, "manifests": paths, **self._terms(None, {})})

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove files from the table in one commit, without reading them. It is not recorded, see `write`.

        A data file whose deletes are removed is removed too, because its deleted rows would return.
        """
        changes = {**self._changes((), NO_DELETES, replacing=False), "operation": "delta", "lost": paths}
        self.commit({**changes, **self._terms(None, {}, unrecorded=True)})

    def _describer(self) -> FileDescriber:
        return FileDescriber(self.metadata, self._modes.of(self.metadata))

    def _terms(
        self,
        mark: Watermark | None,
        properties: Mapping[str, str | None],
        layout: IcebergSchema | None = None,
        *,
        unrecorded: bool = False,
    ) -> Mapping[str, Any]:
        """Return the part of a request that is the same for all files: what is recorded, and what is expected."""
        columns: dict[str, Any] = {}
        if layout is not None and layout != self.metadata.layout:
            spec, order, properties = self._left_arrangement(layout, properties)
            columns = {"schema": layout.to_json(), **self._arrangement_json(spec, order)}
        recorded_mark = None if unrecorded else mark or self.metadata.mark
        return {
            "summary": {} if mark is None else stamp(mark),
            "properties": properties,
            "record": None if recorded_mark is None else recorded(recorded_mark),
            "record-in": Property.LAST_COMMIT.value,
            "recorded": self.metadata.properties.get(Property.LAST_COMMIT.value),
            "parent": self.metadata.snapshot_id,
            "format-version": self.metadata.format_version,
            "schema-id": self.metadata.schema_id,
            **columns,
        }

    def commit(self, request: Mapping[str, Any]) -> int:
        """Commit files in one call of the JVM, and read the result. Return the new snapshot's ID.

        ``OpenTable.java`` reads the request. Every commit of files ends here.
        """
        self.clock.check(f"commit to {self.name}")
        text = json.dumps(request)
        with java_errors(f"commit to {self.name}"):
            result = self.adopt(self.opened.commit(text, self._read_from))
        snapshot = int(result["snapshot"])
        if result["unconfirmed"]:
            _log.warning("%s: the commit of snapshot %s was not confirmed, but it succeeded", self.name, snapshot)
        return snapshot

    def evolve(self, layout: IcebergSchema, properties: Mapping[str, str | None]) -> None:
        """Change the columns and the properties in one commit."""
        with java_errors(f"change the columns of {self.name}"):
            base, recorded = self._ops.current(), self.metadata.last_commit
            schema = self._jvm.iceberg.SchemaParser.fromJson(layout.to_json())
            kept, properties = self._without_lost_columns(base, layout, properties)
            changed = kept.updateSchema(schema)
            if recorded is not None:
                schema_id = int(changed.currentSchemaId())
                properties = {**properties, **self._record(recorded.mark, recorded.snapshot_id, schema_id)}
            self.commit_metadata(base, self._with_properties(self._builder(changed), properties).build())

    def arrange(self, spec: Spec, order: SortOrder, properties: Mapping[str, str | None]) -> None:
        """Change the partition spec and the sort order of new files, and the properties, in one commit."""
        with java_errors(f"change the partitions of {self.name}"):
            base = self._ops.current()
            builder = self._arranged(base, spec, order)
            self.commit_metadata(base, self._with_properties(builder, properties).build())

    def _arranged(self, base: JavaObject, spec: Spec, order: SortOrder) -> JavaObject:
        i, builder, changed = self._jvm.iceberg, self._builder(base), self._arrangement_json(spec, order)
        if "spec" in changed:
            builder = builder.setDefaultPartitionSpec(i.PartitionSpecParser.fromJson(base.schema(), changed["spec"]))
        if "order" in changed:
            builder = builder.setDefaultSortOrder(i.SortOrderParser.fromJson(base.schema(), changed["order"]))
        return builder

    def _arrangement_json(self, spec: Spec, order: SortOrder) -> Mapping[str, str]:
        """Return the spec and the order, as far as they are not those of the table."""
        changed = {"spec": spec_json(spec)} if spec != self.metadata.spec else {}
        return changed | ({"order": order_json(order)} if order != self.metadata.order else {})

    def _without_lost_columns(
        self, base: JavaObject, layout: IcebergSchema, properties: Mapping[str, str | None]
    ) -> tuple[JavaObject, Mapping[str, str | None]]:
        """Return metadata whose spec and order use only columns of ``layout``, and the properties with that spec.

        Iceberg refuses to drop a column that the spec or the order of new files uses.
        """
        spec, order, properties = self._left_arrangement(layout, properties)
        if (spec, order) == (self.metadata.spec, self.metadata.order):
            return base, properties
        return self._arranged(base, spec, order).build(), properties

    def _left_arrangement(
        self, layout: IcebergSchema, properties: Mapping[str, str | None]
    ) -> tuple[Spec, SortOrder, Mapping[str, str | None]]:
        """Return the spec and the order without columns that ``layout`` lacks, and the properties with that spec."""
        left = layout.by_id
        spec = tuple(f for f in self.metadata.spec if f.source_id in left)
        order = tuple(f for f in self.metadata.order if f.source_id in left)
        if (spec, order) == (self.metadata.spec, self.metadata.order):
            return spec, order, properties
        kept = replace(self.metadata.arrangement, terms=tuple(f.term for f in spec))
        return spec, order, {**properties, Property.ARRANGEMENT.value: kept.to_text()}

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set properties, or remove those whose value is None."""
        self.clock.check(f"commit to {self.name}")
        with java_errors(f"set properties of {self.name}"):
            self.adopt(self.opened.setProperties(json.dumps(properties), self._read_from))

    def set_tags(
        self, tagged: Mapping[str, int], untagged: Iterable[str], properties: Mapping[str, str | None] | None = None
    ) -> None:
        """Set tags with their snapshots, remove others, and set properties, in one commit.

        The tags do not expire by age, whatever the table property ``history.expire.max-ref-age-ms`` has. Raise
        CommitConflict if the table changed since it was last read.
        """
        with java_errors(f"set tags of {self.name}"):
            base = self._ops.current()
            if base.metadataFileLocation() != self._read_from:
                raise CommitConflict("commit_conflict", f"another writer changed {self.name}")
            builder = self._with_properties(self._builder(base), properties or {})
            for name in untagged:
                builder = builder.removeRef(name)
            for name, snapshot in tagged.items():
                tag = self._jvm.iceberg.SnapshotRef.tagBuilder(snapshot).maxRefAgeMs(_NEVER_MS)
                builder = builder.setRef(name, tag.build())
            self.commit_metadata(base, builder.build())

    def _builder(self, base: JavaObject) -> JavaObject:
        return self._jvm.iceberg.TableMetadata.buildFrom(base)

    def _with_properties(self, builder: JavaObject, properties: Mapping[str, str | None]) -> JavaObject:
        present = {k: v for k, v in properties.items() if v is not None}
        gone = [k for k, v in properties.items() if v is None]
        if present:
            builder = builder.setProperties(self._jvm.map(present))
        return builder.removeProperties(self._jvm.set(gone)) if gone else builder

    def commit_metadata(self, base: JavaObject, changed: JavaObject) -> None:
        """Replace the table's metadata in one commit, and read the result. Another commit since ``base`` is an error.

        Every commit without files ends here, or in `set_properties`.
        """
        self.clock.check(f"commit to {self.name}")
        self.adopt(self.opened.replace(base, changed, self._read_from))
