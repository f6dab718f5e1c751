"""Atomic commits to an Iceberg table through Iceberg's Java API.

A commit is a compare-and-set on the metadata that was read. It fails if another writer committed in between. So the
epoch, the watermark and the row positions on which a commit is based are still valid when it succeeds.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.delete_files import NewDeletes
from levada.destinations.iceberg.file_describer import FileDescriber, require_files
from levada.destinations.iceberg.java import CommitConflict, CommitUnknown, JavaObject, java_errors
from levada.destinations.iceberg.metadata import LastCommit, Property, stamp
from levada.destinations.iceberg.partitioning import SortOrder, Spec, order_json, spec_json
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.table_reader import TableReader
from levada.errors import LevadaError, NeedsOperator
from levada.values import Watermark

_log = logging.getLogger(__name__)

NO_DELETES: Final = NewDeletes()
_NEVER_MS: Final = (1 << 63) - 1
"""The age in milliseconds of a tag that never expires, which is Java's largest long."""


class IcebergTable(TableReader):
    """A table with the commits to it. Not thread-safe.

    `upgrade` brings the table to the configured format version.
    """

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
        update = self._update(files, deletes, replacing=replacing)
        return self._commit(update, mark, properties or {}, layout, unrecorded=unrecorded)

    def uncommitted(self, files: Sequence[WrittenFile], deletes: NewDeletes, layout: IcebergSchema) -> JavaObject:
        """Return the metadata of a table with these files and columns, as `write` with ``replacing`` would commit it.

        It is not committed. `remove_manifests` removes what was written for it.
        """
        self._check_writable()
        update = self._update(files, deletes, replacing=True)
        with java_errors(f"read {self.name}"):
            return self._changed(update, None, {}, layout, unrecorded=True)[1]

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

    def _update(self, files: Sequence[WrittenFile], deletes: NewDeletes, *, replacing: bool) -> JavaObject:
        """Return Iceberg's update that adds and deletes these rows, see `write`."""
        require_files(self.storage(), files, deletes)
        described = self._describer()
        added, deleted = described.files(files, deletes)
        with java_errors(f"write to {self.name}"):
            if deleted or deletes.vectors or replacing:
                update = self.java.newRowDelta()
                for file in added:
                    update.addRows(file)
                for file in (*deleted, *described.vectors(deletes.vectors)):
                    update.addDeletes(file)
                for file in described.vectors(deletes.replaced):
                    update.removeDeletes(file)
                if deletes.vectors and (current := self.metadata.snapshot_id) is not None:
                    # Otherwise a vector of any earlier snapshot counts as a conflict. A replaced vector that is missing
                    # is an error, as its data file may get a second one.
                    update = update.validateFromSnapshot(current).validateDeletedFiles()
                if replacing:
                    self._remove_everything(update)
            else:
                update = self.java.newAppend()
                for file in added:
                    update.appendFile(file)
        return update

    def replace_deletes(self, former: Iterable[JavaObject], vectors: Sequence[DeletionVector]) -> int:
        """Replace delete files by deletion vectors for the same rows, in one commit. Return the snapshot's ID."""
        self.check_intact()
        with java_errors(f"write to {self.name}"):
            described, update = self._describer(), self.java.newRewrite()
            for file in former:
                update.deleteFile(file)
            for file in described.vectors(vectors):
                update.addFile(file)
        return self._commit(update, None, {})

    def _describer(self) -> FileDescriber:
        return FileDescriber(self._jvm, self.java, self.name, self.metadata, self._modes.of(self.java, self.metadata))

    def _remove_everything(self, update: JavaObject) -> None:
        with self._scan() as tasks:
            for task in tasks:
                update.removeRows(task.file())
                for file in task.deletes():
                    update.removeDeletes(file)

    def remove_files(self, paths: Sequence[str]) -> None:
        """Remove files from the table in one commit, without reading them. It is not recorded, see `write`.

        A data file whose deletes are removed is removed too, because its deleted rows would return.
        """
        gone = frozenset(paths)
        with java_errors(f"write to {self.name}"):
            update = self.java.newRowDelta()
            with self._scan() as tasks:
                for task in tasks:
                    lost = [file for file in task.deletes() if file.location() in gone]
                    if lost or task.file().location() in gone:
                        update = update.removeRows(task.file())
                    for file in lost:
                        update = update.removeDeletes(file)
        self._commit(update, None, {}, unrecorded=True)

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
        i, builder = self._jvm.iceberg, self._builder(base)
        if spec != self.metadata.spec:
            builder = builder.setDefaultPartitionSpec(i.PartitionSpecParser.fromJson(base.schema(), spec_json(spec)))
        if order != self.metadata.order:
            builder = builder.setDefaultSortOrder(i.SortOrderParser.fromJson(base.schema(), order_json(order)))
        return builder

    def _without_lost_columns(
        self, base: JavaObject, layout: IcebergSchema, properties: Mapping[str, str | None]
    ) -> tuple[JavaObject, Mapping[str, str | None]]:
        """Return metadata whose spec and order use only columns of ``layout``, and the properties with that spec.

        Iceberg refuses to drop a column that the spec or the order of new files uses.
        """
        left = layout.by_id
        spec = tuple(f for f in self.metadata.spec if f.source_id in left)
        order = tuple(f for f in self.metadata.order if f.source_id in left)
        if (spec, order) == (self.metadata.spec, self.metadata.order):
            return base, properties
        kept = replace(self.metadata.arrangement, terms=tuple(f.term for f in spec))
        return self._arranged(base, spec, order).build(), {**properties, Property.ARRANGEMENT.value: kept.to_text()}

    def set_properties(self, properties: Mapping[str, str | None]) -> None:
        """Set properties, or remove those whose value is None."""
        with java_errors(f"set properties of {self.name}"):
            base = self._ops.current()
            self.commit_metadata(base, self._with_properties(self._builder(base), properties).build())

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

    def _commit(
        self,
        update: JavaObject,
        mark: Watermark | None,
        properties: Mapping[str, str | None],
        layout: IcebergSchema | None = None,
        *,
        unrecorded: bool = False,
    ) -> int:
        with java_errors(f"commit to {self.name}"):
            base, changed = self._changed(update, mark, properties, layout, unrecorded=unrecorded)
            snapshot_id = int(changed.currentSnapshot().snapshotId())
        try:
            with java_errors(f"commit to {self.name}"):
                self.commit_metadata(base, changed)
        except CommitUnknown:
            self.refresh()
            if all(s.id != snapshot_id for s in self.metadata.history):
                raise
            _log.warning("%s: the commit of snapshot %s was not confirmed, but it succeeded", self.name, snapshot_id)
        return snapshot_id

    def _changed(
        self,
        update: JavaObject,
        mark: Watermark | None,
        properties: Mapping[str, str | None],
        layout: IcebergSchema | None,
        *,
        unrecorded: bool,
    ) -> tuple[JavaObject, JavaObject]:
        """Write the manifests of an update. Return the table's metadata, and the one with the update."""
        for key, value in stamp(mark).items() if mark is not None else ():
            update.set(key, value)
        snapshot = self._apply(update)
        base = self._ops.current()
        if base.metadataFileLocation() != self._read_from:
            # The files may not be valid in another format version.
            upgraded = int(base.formatVersion()) != self.metadata.format_version
            if upgraded or snapshot.parentId() != self.metadata.snapshot_id:
                raise CommitConflict("commit_conflict", f"another writer changed {self.name}")
        builder, schema_id = self._builder(base), self.metadata.schema_id
        if layout is not None and layout != self.metadata.layout:
            kept, properties = self._without_lost_columns(base, layout, properties)
            builder, snapshot, schema_id = self._under(layout, kept, snapshot)
        builder = builder.setBranchSnapshot(snapshot, "main")
        record = {} if unrecorded else self._record(mark or self.metadata.mark, int(snapshot.snapshotId()), schema_id)
        return base, self._with_properties(builder, {**properties, **record}).build()

    def _apply(self, update: JavaObject) -> JavaObject:
        """Write the manifests for the newest metadata once. ``commit()`` would retry with newer metadata."""
        try:
            with java_errors(f"commit to {self.name}"):
                return update.apply()
        except NeedsOperator as error:
            if self._ops.current().metadataFileLocation() == self._read_from:
                raise
            raise CommitConflict("commit_conflict", f"another writer changed {self.name}") from error

    def _under(
        self, layout: IcebergSchema, base: JavaObject, snapshot: JavaObject
    ) -> tuple[JavaObject, JavaObject, int]:
        """Return a metadata builder with the new columns, the snapshot with their schema, and that schema's ID.

        ``snapshot`` was built with the schema ID of the former columns.
        """
        changed = base.updateSchema(self._jvm.iceberg.SchemaParser.fromJson(layout.to_json()))
        parser = self._jvm.iceberg.SnapshotParser
        schema_id = int(changed.currentSchemaId())
        described = {**json.loads(parser.toJson(snapshot)), "schema-id": schema_id}
        return self._builder(changed), parser.fromJson(json.dumps(described)), schema_id

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

        Every write to the table ends here.
        """
        self._ops.commit(base, changed)
        current = self._ops.refresh()
        self._read(current, current.metadataFileLocation())
