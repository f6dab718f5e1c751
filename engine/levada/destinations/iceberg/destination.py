"""`IcebergDestination`, which writes tables to an Iceberg catalog through Spark."""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final, Self

import pyarrow as pa

from levada import codes
from levada.copy.rows import TableRows
from levada.copy.spark_tasks import SparkTasks
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.data_files.file_destination import FileDestination
from levada.destinations.data_files.fold_task import FoldTask
from levada.destinations.data_files.left_out import LeftOutRows
from levada.destinations.data_files.region_reader import RegionReader
from levada.destinations.erasure import Erased, Erasure
from levada.destinations.fenced import committed, missing
from levada.destinations.groups import GroupWriter
from levada.destinations.iceberg.arranging import arrange_as
from levada.destinations.iceberg.batches import append_batch, task_ahead, upsert_batch
from levada.destinations.iceberg.catalog import IcebergCatalog
from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName, all_properties
from levada.destinations.iceberg.checked_catalog import CheckedCatalog
from levada.destinations.iceberg.copying import write_copy
from levada.destinations.iceberg.cuts import update_cuts
from levada.destinations.iceberg.erasing import erase
from levada.destinations.iceberg.evolution import backfill, evolve_to
from levada.destinations.iceberg.foreign_changes import resync_hint
from levada.destinations.iceberg.group import IcebergGroup
from levada.destinations.iceberg.index_sync import synced_index, take_key
from levada.destinations.iceberg.java import CommitConflict, CommitUnknown
from levada.destinations.iceberg.known_tables import KnownTables
from levada.destinations.iceberg.lineage import Lineage
from levada.destinations.iceberg.maintenance import (
    FILES_EVERY_S,
    MaintenanceSettings,
    check_files,
    compact,
    expire,
    remove_left_tags,
    remove_orphans,
)
from levada.destinations.iceberg.ownership import check_same_mode, check_same_table
from levada.destinations.iceberg.repair import accept, forget_missing_files, rewrite_keys
from levada.destinations.iceberg.retention import is_expiry_due
from levada.destinations.iceberg.scan import live_files
from levada.destinations.iceberg.settings import Settings, TableSettings
from levada.destinations.iceberg.shadow_copies import ShadowCopies
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.warehouse_check import MountedWarehouse
from levada.destinations.interface import Capabilities, NamedCut, TableMode
from levada.destinations.ownership import ANOTHERS
from levada.destinations.verification import FixedTable, Repair, is_kept
from levada.errors import DestinationChanged, LevadaError
from levada.local.jars import Jar, read_jars
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.partitions import Region
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, Lsn, QualifiedTable, TableId, Watermark

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
_STORE_PROPERTIES: Final = ("s3.", "client.")
"""Prefixes of the catalog's properties that configure the object store."""
_SPARK_CONF: Final = {
    "spark.python.daemon.module": "levada.destinations.iceberg.worker_daemon",
    "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
}
_MOST_BATCHES: Final = 8
"""The number of usual batches from which a larger one is not faster. This process then has most of the work."""


class IcebergDestination(FileDestination[IcebergState]):
    """Writes each source table to an Iceberg table, with its watermark in every commit.

    Upsert tables get position deletes, or deletion vectors in format version 3. The positions come from a key index in
    ``context.work_dir``, which can be rebuilt if it is lost. A table without a usable key is a changelog
    (`effective_mode`).
    """

    name: ClassVar[str] = "iceberg"
    keeps_former_tables: ClassVar[bool] = True
    capabilities: ClassVar[Capabilities] = Capabilities(
        upsert=True,
        watermark=True,
        replacement=True,
        spark=True,
        keeps_ranges=True,
        verifies=True,
        verifies_ranges=True,
        repairs=True,
        cuts=True,
        erases=True,
        finds_rows=True,
        keeps_deleted=True,
        checks_without_spark=True,
        copies_in_process=True,
        folds_ahead=True,
    )
    settings_model = Settings
    table_settings_model = TableSettings

    def __init__(
        self,
        catalog: CatalogConfig,
        context: DestinationContext,
        maintenance: MaintenanceSettings | None = None,
        table_properties: Mapping[str, str] | None = None,
        format_version: int = 2,
    ) -> None:
        if context.spark is None and context.jvm is None:
            raise ValueError("an Iceberg destination needs a Spark session")
        self._spark = context.spark
        self._context = context
        self.batch_tasks = None if context.spark is None else SparkTasks(context.spark)
        self._capacity = 0
        self.maintenance = maintenance or MaintenanceSettings()
        """The settings of `maintain`."""
        self._tables = IcebergCatalog(catalog, context, table_properties, format_version)
        checks = CheckedCatalog(catalog, context, self._tables)
        self._checked = checks if context.spark is None else self._tables
        self._known = KnownTables(self._tables, MountedWarehouse(catalog.properties), context.work_dir / "iceberg-keys")
        self._shadows = ShadowCopies(self._tables, self._known)

    @classmethod
    def spark_conf(cls, settings: Settings | None) -> Mapping[str, str]:
        """Return what a session needs before it starts. The catalog is configured once the destination is created."""
        return _SPARK_CONF

    @classmethod
    def jars(cls) -> Sequence[Jar]:
        """Return Iceberg's runtime and what its catalogs and object stores need."""
        return read_jars(Path(__file__).with_name("jars.toml"))

    @classmethod
    def from_settings(cls, settings: Settings, context: DestinationContext) -> Self:
        """Create a destination from the manifest's ``spec.destination.iceberg``.

        The Secret's keys are catalog properties.
        """
        catalog = CatalogConfig.of(settings, context.pipeline, context.credentials)
        maintenance = MaintenanceSettings.of(settings.maintenance)
        return cls(catalog, context, maintenance, settings.table_properties, settings.format_version)

    @classmethod
    def object_store(cls, settings: Settings, credentials: Path | None) -> Mapping[str, str]:
        """Return the properties of the catalog and its Secret that configure the object store."""
        return {k: v for k, v in all_properties(settings, credentials).items() if k.startswith(_STORE_PROPERTIES)}

    @classmethod
    def planned_name(cls, settings: Settings, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in the catalog."""
        return CatalogConfig.of(settings, "").target_name(table, name)

    def startup(self) -> None:
        """Open the catalog, so that an unusable one is reported before a copy begins."""
        self._checked.open()
        if self._spark is not None:
            self._capacity = SparkTasks(self._spark).capacity()

    def parallel_batches(self) -> int:
        """Return twice the number of Spark's tasks that run at the same time, 8 at most, so that all have work."""
        return max(1, min(2 * self._capacity, _MOST_BATCHES))

    def check(self) -> None:
        """Raise if the catalog's namespaces cannot be listed, or if the warehouse cannot be written."""
        self._checked.check()

    def shutdown(self) -> None:
        """Close the catalog."""
        super().shutdown()
        self._checked.close()

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in the catalog."""
        return self._tables.target_name(table, name)

    def check_place(self, target: TableTarget) -> None:
        """Raise NeedsOperator if the catalog has a table of that name which a copy must not replace.

        It may replace this source table's own table, and that of a dropped source table of the same name.
        """
        place = self._tables.table_name(target)
        # A copy may replace the pipeline's own table, so a check spares the search for all of them.
        state = None if self._spark is None else self._known.find(target.id)
        if state is None or state.name != place:
            self._checked.check_free(place, target.schema)

    def has_table(self, target: TableTarget) -> bool:
        """Return True if the catalog has a table of that name."""
        return self._tables.exists(self._tables.table_name(target))

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Drop the table with its files and its index. A missing table is no error.

        Raise NeedsOperator, without removing data, if the configured name belongs to another table. Raise StaleEpoch if
        a driver newer than ``epoch`` has written the table or copies it.
        """
        state, schema = self._known.of(target), target.schema
        with state.lock:
            place = self._tables.table_name(target)
            if state.name != place:
                self._tables.check_free(place, schema)
                self._drop_former(state.name, schema, epoch)
            self._tables.drop(place, schema, epoch)
            state.forget()
            state.name = place

    def _drop_former(self, name: TableName, schema: ReplicatedTableSchema, epoch: int | None) -> None:
        try:
            self._tables.drop(name, schema, epoch)
        except DestinationChanged as error:
            if error.code not in ANOTHERS:
                raise
            _log.warning("%s is not dropped: %s", name, error.message)

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Write the rows as data files in Spark tasks, and commit them with ``mark``.

        The commit removes all earlier rows.
        """
        state, schema = self._known.of(target), target.schema
        mode = self.effective_mode(target)
        with state.lock:
            table, lease = self._known.open(state), None
            if table is None:
                table, lease = self._known.create(state, schema, mode, mark)
            write_copy(state, table, target, mode, rows, mark, self._context.on_schema_change, lease=lease)
        return Durability.DURABLE

    def group_writer(self) -> GroupWriter:
        """Return what creates small tables and commits their rows side by side."""
        return IcebergGroup(self._tables, self._known, self, self._context.on_schema_change)

    def copied_elsewhere(self, target: TableTarget) -> None:
        """Forget the table of the last copy, with its index. The table has the target's name now."""
        super().copied_elsewhere(target)
        self._known.of(target).name = self._tables.table_name(target)

    def applied(self, table: TableId) -> Watermark | None:
        """Return the watermark of Levada's last commit.

        Raise DestinationChanged if another writer changed the table.
        """
        state = self._known.find(table, again=True)
        if state is None:
            for error in self._known.unread.values():
                # One of the unreadable tables may be this one.
                raise error
            return None
        with state.lock:
            opened = self._known.open(state)
            if opened is None:
                return None
            opened.check_intact()
            self._tables.put_own_name(opened)
            self._tables.put_table_properties(opened)
            state.seen = opened.metadata.lsn
            return opened.metadata.mark

    def keys_in(self, target: TableTarget, region: Region) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the rows in a region from the current snapshot's files. Their bounds exclude most files."""
        with self._opened(target) as (_, table):
            reader, storage = RegionReader.of(target.schema, table.metadata.layout.files, region), table.storage()
            files = [f for f in live_files(table) if reader.may_have_rows(storage, f.path)]
            yield from reader.read(storage, files)

    def rows_left_out(self, target: TableTarget) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the current snapshot whose keys are not in the index of the shadow copy."""
        with self._opened(target) as (state, table):
            if state.replacement is not None and state.replacement.index is not None:
                layout, copied = table.metadata.layout.files, state.replacement.index
                yield from LeftOutRows(table.storage(), layout, target.schema, copied).read(live_files(table))

    def fixed(self, target: TableTarget) -> FixedTable | None:
        """Return the table's current snapshot, also if another writer has changed the table. A tag keeps it."""
        state = self._known.find(target.id)
        if state is None:
            return None
        with state.lock:
            table = self._known.open(state)
            return None if table is None else self._tables.fixed(table, state.lock, state.tags)

    def repair(
        self,
        target: TableTarget,
        fixed: FixedTable,
        repair: Repair,
        rows: Iterable[pa.RecordBatch],
        mark: Watermark,
    ) -> None:
        """Replace the rows that differ. A table that another writer has changed counts so until `accept_repair`."""
        from levada.destinations.iceberg.fixed_table import IcebergSnapshot

        assert isinstance(fixed, IcebergSnapshot)
        schema, mode = target.schema, self.effective_mode(target)
        with self._opened(target, mark) as (state, table):
            kept = is_kept(table.check_intact, repair)
            files = arrange_as(table, target, evolve_to(table, schema, mode, self._context.on_schema_change))
            rewrite_keys(state, table, files, schema, fixed, repair.gone, rows, recorded=kept)

    def accept_repair(self, target: TableTarget, fixed: FixedTable, mark: Watermark) -> None:
        """Make ``mark`` the table's watermark, because the version ``fixed`` equals the source there."""
        from levada.destinations.iceberg.fixed_table import IcebergSnapshot

        assert isinstance(fixed, IcebergSnapshot)
        with self._opened(target, mark) as (state, table):
            accept(table, fixed, mark)
            state.schema, state.seen = target.schema, table.metadata.lsn

    def forget_missing_files(self, target: TableTarget, fixed: FixedTable, mark: Watermark) -> Sequence[str]:
        """Remove the files of ``fixed`` that were found missing or damaged from the table. Return their paths."""
        from levada.destinations.iceberg.fixed_table import IcebergSnapshot

        assert isinstance(fixed, IcebergSnapshot)
        with self._opened(target, mark) as (state, table):
            state.index.forget()
            state.vectors = None
            return forget_missing_files(table, fixed)

    def erase(self, target: TableTarget, wanted: Erasure, mark: Watermark) -> Erased:
        """Write the files again that have the rows, and expire every snapshot that has them."""
        with self._opened(target, mark) as (state, table):
            check_same_table(table, target.schema, self.effective_mode(target))
            self._intact(state, table)
            return erase(state, table, target.schema, wanted)

    @contextmanager
    def _opened(
        self, target: TableTarget, mark: Watermark | None = None
    ) -> Iterator[tuple[IcebergState, IcebergTable]]:
        """Yield a table with its state, which is locked. Raise StaleEpoch if ``mark`` is that of an older driver."""
        state = self._known.of(target)
        with state.lock:
            table = self._known.open(state)
            if table is None:
                raise missing(state.name, target.schema.name)
            if mark is not None:
                table.check_epoch(mark)
            yield state, table

    def update_cuts(
        self, table: TableId, added: NamedCut | None, removed: Collection[str], mark: Watermark
    ) -> Mapping[str, Lsn]:
        """Tag the current snapshot, and remove the tags of other cuts. Maintenance expires no snapshot with a tag."""
        state = self._known.find(table)
        if state is None:
            raise missing(f"table {int(table)}", None)
        with state.lock:

            def commit() -> Mapping[str, Lsn]:
                opened = self._serving(state)
                opened.check_epoch(mark)
                if added is not None:
                    self._intact(state, opened)
                return update_cuts(opened, added, frozenset(removed))

            return committed(commit, _ATTEMPTS, lambda error: isinstance(error, CommitConflict | CommitUnknown))

    def _serving(self, state: IcebergState) -> IcebergTable:
        table = self._known.open(state)
        if table is None:
            raise missing(state.name, None if state.schema is None else state.schema.name)
        return table

    def maintain(self, table: TableId) -> None:
        """Check the table for changes by other writers. If it is due, compact it and expire old snapshots.

        Raise DestinationChanged if another writer changed the table, even if batches would not detect it.
        """
        state = self._known.states.get(table)
        if state is None:
            return
        with state.lock:
            opened = self._serving(state)
            if self._intact(state, opened).since:
                opened.record_current()
            try:
                self._maintain(state, opened)
            except DestinationChanged as error:
                if not self._was_outdated(state, error):
                    raise
                _log.warning(
                    "maintenance of %s failed because another writer removed files: %s", state.name, error.message
                )

    # -- the shadow copy of a table

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Write the rows to data files that no commit refers to. Return False if there is no readable table of ours."""
        return self._shadows.copy(target, self.effective_mode(target), rows, mark)

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Write the batch to more files that no commit refers to. Return False if the batch changes the columns."""
        return self._shadows.apply(events, mark)

    def fixed_replacement(self, target: TableTarget) -> FixedTable | None:
        """Return the shadow copy's rows. No commit refers to its files, so only this process can read them."""
        return self._shadows.fixed(target)

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Replace all files and columns of the table by those of the shadow copy, in one commit."""
        return self._shadows.swap(table, mark)

    def drop_replacement(self, table: TableId) -> None:
        """Remove the shadow copy's files and index, and release its lease on the table."""
        self._shadows.drop(table)

    def _maintain(self, state: IcebergState, table: IcebergTable) -> None:
        now, settings = time.monotonic(), self.maintenance
        if not settings.compact_every_s or now - state.maintained_at < settings.compact_every_s:
            return
        state.maintained_at = now
        # By a clock that is ahead, snapshots and uncommitted files would look old.
        self._tables.clock.check(f"maintain {table.name}")
        before = table.metadata.snapshot_id
        rewritten = compact(table, self._tables.jvm, settings.files)
        if self._intact(state, table).since:
            table.record_current()
        compacted = table.metadata.snapshot_id != before
        if compacted and state.index.opened is not None and state.schema is not None:
            # Update the index before old snapshots expire. Afterwards the history between its snapshot and the current
            # one is lost.
            synced_index(state, table, state.schema, table.metadata.layout, self._context.pipeline, rewritten)
        remove_left_tags(table, state.tags)
        now_ms = int(time.time() * 1000)
        if is_expiry_due(table.metadata, settings.expire_after_s, now_ms, settings.retention):
            expire(table, settings, now_ms)
        if now >= state.files_due_at:
            state.files_due_at = now + FILES_EVERY_S
            check_files(table)
            remove_orphans(table, self._tables.jvm, now_ms, settings.files)

    # -- one batch

    def _known_states(self) -> Mapping[TableId, IcebergState]:
        return dict(self._known.states)

    def _task_ahead(self, state: IcebergState, events: TableEvents) -> FoldTask | None:
        table = self._known.open(state)
        return None if table is None else task_ahead(state, table, events, self._context)

    def _table_of(self, target: TableTarget) -> IcebergState:
        return self._known.of(target)

    def _apply(self, state: IcebergState, events: TableEvents, mark: Watermark) -> None:
        def may_succeed(error: LevadaError) -> bool:
            return isinstance(error, CommitConflict) or self._was_outdated(state, error)

        committed(lambda: self._apply_once(state, events, mark), _ATTEMPTS, may_succeed)

    def _was_outdated(self, state: IcebergState, error: LevadaError) -> bool:
        """Return True if a file is missing because another writer's compaction replaced it."""
        if not isinstance(error, DestinationChanged) or error.code != codes.TABLE_DAMAGED or state.table is None:
            return False
        before = state.table.metadata.snapshot_id
        table = self._known.open(state)
        return table is not None and table.metadata.snapshot_id != before

    def _apply_once(self, state: IcebergState, events: TableEvents, mark: Watermark) -> None:
        schema, mode = events.schema, self.effective_mode(events.target)
        table = self._known.open(state)
        if table is None:
            raise missing(state.name, schema.name)
        check_same_mode(table, schema, mode)
        table.check_epoch(mark)
        self._intact(state, table)
        held = table.metadata.lsn
        if held is not None and mark.lsn <= held:
            return
        after = events.after if held is None else max(events.after, held)
        table.upgrade()
        if mode is TableMode.UPSERT:
            take_key(state, table, schema, self._context.pipeline)
        layout = evolve_to(table, schema, mode, self._context.on_schema_change)
        files = arrange_as(table, events.target, layout)
        if mode is TableMode.UPSERT:
            assert self._spark is not None, "a check writes nothing"
            if backfill(table, schema, layout, files, self._spark):
                state.index.forget()
            upsert_batch(state, table, layout, files, events, after, mark, self._context.pipeline, self.batch_tasks)
        else:
            append_batch(table, files, events, after, mark, self.batch_tasks)
        state.schema, state.seen = schema, table.metadata.lsn

    def _intact(self, state: IcebergState, table: IcebergTable) -> Lineage:
        """Check the table as `IcebergTable.check_intact` does, and that its watermark has not moved back."""
        found = table.check_intact()
        state.saw(table.name, table.metadata.lsn, resync_hint(table.metadata))
        return found
