"""`DuckLakeDestination`, which writes tables to a DuckLake catalog in PostgreSQL."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

import psycopg
import pyarrow as pa

from levada.copy.rows import TableRows
from levada.copy.tasks import BatchRunner
from levada.destinations.collisions import TargetName
from levada.destinations.context import DestinationContext
from levada.destinations.data_files.file_destination import FileDestination
from levada.destinations.data_files.fold_task import FoldTask
from levada.destinations.data_files.left_out import LeftOutRows
from levada.destinations.data_files.region_reader import RegionReader
from levada.destinations.ducklake import claims
from levada.destinations.ducklake.columns import reconcile, replacement_columns
from levada.destinations.ducklake.copy_folder import remove_folder, take_folder
from levada.destinations.ducklake.copying import CopiedTable
from levada.destinations.ducklake.database import CatalogDatabase
from levada.destinations.ducklake.erasing import erase
from levada.destinations.ducklake.fixed_table import DuckLakeVersion, current_version, has_files, while_current
from levada.destinations.ducklake.format import create_catalog, read_format
from levada.destinations.ducklake.group import LakeGroup
from levada.destinations.ducklake.index_sync import live_files
from levada.destinations.ducklake.intact import IntactTable, read_intact
from levada.destinations.ducklake.lake_state import LakeState, copy_shadow, swap_shadow
from levada.destinations.ducklake.repair import accept, repair_rows
from levada.destinations.ducklake.server import server_of, store_properties
from levada.destinations.ducklake.settings import Settings
from levada.destinations.ducklake.state import State, key_text
from levada.destinations.ducklake.storage import LakeFolder
from levada.destinations.ducklake.tables import (
    FullName,
    LiveDataFile,
    find_named,
    full_name,
    read_files,
    target_name,
)
from levada.destinations.ducklake.writes import (
    Catalog,
    append_batch,
    commit,
    is_uncommitted,
    new_row,
    retried,
    synced_index,
    take_key,
    upsert_batch,
)
from levada.destinations.erasure import Erased, Erasure
from levada.destinations.fenced import (
    TableStates,
    check_same_table,
)
from levada.destinations.groups import GroupWriter
from levada.destinations.interface import Capabilities, OnSchemaChange, TableMode
from levada.destinations.key_index.table_index import TableIndex
from levada.destinations.ownership import Owner
from levada.destinations.verification import FixedTable, Repair
from levada.errors import LevadaError
from levada.locations import target_name as path_name
from levada.postgres.connection import PostgresConnection
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.partitions import Region
from levada.segments.batch import EventBatch, TableEvents
from levada.values import Durability, QualifiedTable, TableId, Watermark, resync_command

_log = logging.getLogger(__name__)


class DuckLakeDestination(FileDestination[LakeState]):
    """Writes each source table to a DuckLake table, with its watermark in the same transaction of the catalog.

    Upsert tables get delete files. The positions come from a key index in ``context.work_dir``, which can be rebuilt if
    it is lost. A table without a usable key is a changelog (`effective_mode`).
    """

    name: ClassVar[str] = "ducklake"
    capabilities: ClassVar[Capabilities] = Capabilities(
        upsert=True,
        watermark=True,
        replacement=True,
        finds_rows=True,
        keeps_deleted=True,
        keeps_ranges=True,
        verifies=True,
        verifies_ranges=True,
        repairs=True,
        erases=True,
        copies_in_process=True,
        folds_ahead=True,
    )
    settings_model = Settings

    def __init__(self, server: PostgresConnection, settings: Settings, context: DestinationContext) -> None:
        self._states = TableStates(self._new_state)
        self._settings = settings
        self._context = context
        self._database = CatalogDatabase(server, settings.catalog.schema_name)
        self._state = State(Owner(context))
        self._lock = threading.Lock()
        self._opened: Catalog | None = None
        self.batch_tasks = None

    @classmethod
    def from_settings(cls, settings: Settings, context: DestinationContext) -> Self:
        """Create a destination from the manifest's ``spec.destination.ducklake``."""
        return cls(server_of(settings, context.credentials), settings, context)

    @classmethod
    def object_store(cls, settings: Settings, credentials: Path | None) -> Mapping[str, str]:
        """Return the properties of the object store, with those of the Secret."""
        return {k: v for k, v in store_properties(settings, credentials).items() if k.startswith("s3.")}

    @classmethod
    def planned_name(cls, settings: Settings, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in the catalog."""
        return target_name(full_name(settings.schema_name, table, name))

    def run_batches_in(self, runner: BatchRunner) -> None:
        """Fold batches, and write their data files, in tasks."""
        self.batch_tasks = runner

    def startup(self) -> None:
        """Open the catalog, or create it, so that an unusable one is reported before a copy begins."""
        self._catalog()

    def check(self) -> None:
        """Raise if the catalog or the folder of its files cannot be used."""
        with self._database.transaction("checking the destination") as connection:
            read_format(connection, self._database.where, self._settings.data_path)

    def shutdown(self) -> None:
        """Close the connections."""
        super().shutdown()
        self._database.close()

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName:
        """Return the table's name in the catalog."""
        return self.planned_name(self._settings, table, name)

    def check_place(self, target: TableTarget) -> None:
        """Raise NeedsOperator if the catalog has a table of that name which a copy must not replace."""
        catalog, name = self._catalog(), self.place_of(target)
        with self._database.transaction(f"checking {name}") as connection:
            if self._context.only_checks:
                catalog.state.create(connection)
            claims.check_free(catalog, connection, target.schema, name)
            if self._context.only_checks:
                raise psycopg.Rollback

    def has_table(self, target: TableTarget) -> bool:
        """Return True if the catalog has a table of that name."""
        with self._database.transaction(f"looking for the table of {target.schema.name}") as connection:
            return find_named(connection, self.place_of(target)) is not None

    def drop_table_for_copy(self, target: TableTarget, epoch: int | None = None) -> None:
        """Drop the table and its index. DuckLake keeps the files until its snapshots expire."""
        catalog, name, state = self._catalog(), self.place_of(target), self._table_of(target)

        def run() -> None:
            with self._database.transaction(f"dropping {name}") as connection:
                claims.drop(catalog, connection, target.schema, name, epoch)

        with state.lock:
            retried(run)
            state.forget()

    def write_table_rows(self, target: TableTarget, rows: TableRows, mark: Watermark) -> Durability:
        """Write the rows as data files in worker processes, and commit them with ``mark``.

        The commit removes all earlier rows.
        """
        catalog, name, state, schema = self._catalog(), self.place_of(target), self._table_of(target), target.schema
        mode = self.effective_mode(target)
        with state.lock:
            made = retried(lambda: self._claimed(catalog, schema, name, mode, mark, rows.kept_place))
            try:
                copied = rows.map_ranges(made.writer(mark.lsn), made.ranges)
                changes, after = made.changes(copied, state.index), new_row(made.row, schema, mode, mark)
                # A copy replaces all rows, those of another writer included.
                stored = retried(lambda: commit(catalog, made.row, made.intact, changes, after, check=False).row)
            except BaseException as error:
                state.index.forget()
                if isinstance(error, LevadaError) and is_uncommitted(error) and rows.kept_place != made.ranges.place:
                    remove_folder(made.storage)
                raise
            state.seen = mark.lsn
            state.synced.known = None
            made.committed(copied, state.index, stored.snapshot)
        return Durability.DURABLE

    def group_writer(self) -> GroupWriter:
        """Return what commits the first copies of small tables in two snapshots."""
        return LakeGroup(self._catalog(), self)

    def group_committed(self, tables: Collection[TableId], mark: Watermark) -> None:
        """Forget what was known of tables. The first batch of changes builds the key index of a small one."""
        for state in map(self._states.of, tables):
            with state.lock:
                state.forget()
                state.seen = mark.lsn

    def applied(self, table: TableId) -> Watermark | None:
        """Return the table's watermark. Raise DestinationChanged if another writer changed the table."""
        catalog, state = self._catalog(), self._states.of(table)
        with state.lock:
            with self._database.transaction("reading a watermark", pipelined=True) as connection:
                found = self._state.find_copied(connection, table, lock=True)
                if found is None:
                    return None
                row, lsn = found
                state.saw(row.name, lsn, resync_command(row.owner.source_name))
                read_intact(connection, catalog.lake.uri, row)
            return Watermark(self._context.pipeline, row.epoch, lsn)

    def keys_in(self, target: TableTarget, region: Region) -> Iterator[pa.RecordBatch]:
        """Yield the keys of the rows in a region from the current data files. Their bounds exclude most files."""
        catalog, state = self._catalog(), self._states.of(target.id)
        with state.lock:
            intact, held = self._current_files(catalog, target)
            storage = catalog.lake.storage(intact.table.folder)
            reader = RegionReader.of(target.schema, intact.columns.files(target.schema), region)
            with while_current(target.schema.name, partial(has_files, catalog, intact.table, held)):
                files = [f for f in held if reader.may_have_rows(storage, catalog.lake.path(f.path))]
                for file in files:
                    yield from reader.read(storage, live_files(storage, catalog.lake, [file]))

    def rows_left_out(self, target: TableTarget) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the current data files whose keys are not in the index of the shadow copy."""
        catalog, state, schema = self._catalog(), self._states.of(target.id), target.schema
        with state.lock:
            if state.replacement is None or state.replacement.index is None:
                return
            intact, held = self._current_files(catalog, target)
            storage = catalog.lake.storage(intact.table.folder)
            rows = LeftOutRows(storage, intact.columns.files(schema), schema, state.replacement.index)
            with while_current(schema.name, partial(has_files, catalog, intact.table, held)):
                for file in held:
                    yield from rows.read(live_files(storage, catalog.lake, [file]))

    def erase(self, target: TableTarget, wanted: Erasure, mark: Watermark) -> Erased:
        """Write the files again that have the rows, also those of former snapshots. All snapshots stay."""
        state = self._table_of(target)
        with state.lock:
            return retried(lambda: self._erase(state, target, wanted, mark))

    def fixed(self, target: TableTarget) -> FixedTable | None:
        """Return the rows of the current data files, also if another writer has changed the table.

        Raise DestinationChanged ``foreign_write`` if another writer has put rows into the catalog itself.
        """
        self._require_last_rows(target, "DuckLake")
        with self._states.of(target.id).lock:
            return current_version(self._catalog(), target, self.batch_tasks, keeps_columns=self._keeps_columns)

    def fixed_replacement(self, target: TableTarget) -> FixedTable | None:
        """Return the rows of the shadow copy. No snapshot has its files, so only this process can read them."""
        self._require_last_rows(target, "DuckLake")
        made = self._states.of(target.id).replacement
        if made is None:
            return None
        return DuckLakeVersion(
            target.schema,
            made.columns,
            made.storage,
            made.live,
            made.lsn,
            self.batch_tasks,
            lambda: True,
            keeps_columns=self._keeps_columns,
        )

    @property
    def _keeps_columns(self) -> bool:
        return self._context.on_schema_change is OnSchemaChange.IGNORE

    def repair(
        self,
        target: TableTarget,
        fixed: FixedTable,
        repair: Repair,
        rows: Iterable[pa.RecordBatch],
        mark: Watermark,
    ) -> None:
        """Replace the rows that differ. A table that another writer has changed counts so until `accept_repair`."""
        assert isinstance(fixed, DuckLakeVersion)
        state = self._table_of(target)
        with state.lock:
            try:
                repair_rows(self._catalog(), target.schema, fixed, repair, rows, mark)
            finally:
                state.index.forget()
                state.synced.known = None

    def accept_repair(self, target: TableTarget, fixed: FixedTable, mark: Watermark) -> None:
        """Make ``mark`` the table's watermark, because the version ``fixed`` equals the source there."""
        assert isinstance(fixed, DuckLakeVersion)
        state = self._table_of(target)
        with state.lock:
            accept(self._catalog(), target.schema, fixed, mark)
            state.index.forget()
            state.seen, state.synced.known = mark.lsn, None

    # -- the shadow copy of a table

    def copy_replacement(self, target: TableTarget, rows: TableRows, mark: Watermark) -> bool:
        """Write the rows to data files that no snapshot refers to. Return False if there is no complete copy."""
        place, mode = self.place_of(target), self.effective_mode(target)
        return copy_shadow(self._catalog(), self._table_of(target), target.schema, place, mode, rows, mark)

    def write_replacement_events(self, events: EventBatch, mark: Watermark) -> bool:
        """Write the batch to more files that no snapshot refers to. Return False if the batch changes the columns."""
        (table,) = events.tables
        state = self._states.of(table)
        with state.lock:
            made = state.replacement
            return made is not None and made.apply(events.changes(table), mark, made.storage)

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        """Replace all files and columns of the table by those of the shadow copy, in one commit."""
        return swap_shadow(self._catalog(), self._states.of(table), table, mark)

    def drop_replacement(self, table: TableId) -> None:
        """Remove the shadow copy's files and index."""
        state = self._states.of(table)
        with state.lock:
            if state.replacement is not None:
                state.replacement.remove()
                state.replacement = None

    # -- parts of the methods above

    def _known_states(self) -> Mapping[TableId, LakeState]:
        return self._states.known()

    def _task_ahead(self, state: LakeState, events: TableEvents) -> FoldTask | None:
        catalog, schema = self._catalog(), events.schema
        with self._database.transaction(f"reading {schema.name}", pipelined=True) as connection:
            row, _ = self._state.require_copied(connection, self.place_of(events.target), schema)
            intact = read_intact(connection, catalog.lake.uri, row)
        last_id = intact.last_column_id
        columns, changes = reconcile(intact.columns, last_id, schema, TableMode.UPSERT, self._context.on_schema_change)
        if changes or row.key != key_text(schema):
            # A batch with another key looks at all rows first, and builds the key index again.
            return None
        index = synced_index(catalog, row, intact, columns, state.index, state.synced, schema)
        storage = catalog.lake.storage(intact.table.folder)
        return FoldTask(storage, columns.files(schema), schema, index.seed, events.after, None)

    def _apply(self, state: LakeState, events: TableEvents, mark: Watermark) -> None:
        catalog = self._catalog()
        retried(lambda: self._apply_once(catalog, state, events, mark))

    def _apply_once(self, catalog: Catalog, state: LakeState, events: TableEvents, mark: Watermark) -> None:
        schema, mode = events.schema, self.effective_mode(events.target)
        with self._database.transaction(f"reading {schema.name}", pipelined=True) as connection:
            row, held = self._state.require_copied(connection, self.place_of(events.target), schema, mark.epoch)
            is_new = state.begins(row.name, resync_command(row.owner.source_name), (row.epoch, held), mark)
            intact = read_intact(connection, catalog.lake.uri, row, with_files=mode is TableMode.UPSERT)
        if intact.content.files:
            catalog.lake.require(intact.table.folder, schema.name)
        check_same_table(row.name, schema, mode, made_as=row.mode, same_key=True)
        if not is_new:
            return
        after = max(events.after, held)
        if mode is TableMode.UPSERT and row.key != key_text(schema):
            row = take_key(catalog, row, intact, state.index, state.synced, schema, mark)
        columns, made = reconcile(intact.columns, intact.last_column_id, schema, mode, self._context.on_schema_change)
        if made:
            _log.info("%s: %s", row.name, "; ".join(made))
        if mode is TableMode.UPSERT:
            upsert_batch(
                catalog,
                row,
                intact,
                columns,
                state.index,
                state.synced,
                events,
                after,
                mark,
                self.batch_tasks,
                state.ahead,
            )
        else:
            append_batch(catalog, row, intact, columns, events, after, mark, self.batch_tasks)
        state.seen = mark.lsn

    def _erase(self, state: LakeState, target: TableTarget, wanted: Erasure, mark: Watermark) -> Erased:
        catalog, schema, mode = self._catalog(), target.schema, self.effective_mode(target)
        with self._database.transaction(f"reading {schema.name}") as connection:
            row, _ = self._state.require_copied(connection, self.place_of(target), schema, mark.epoch)
            intact = read_intact(connection, catalog.lake.uri, row)
        check_same_table(row.name, schema, mode, made_as=row.mode, same_key=row.key == key_text(schema))
        if not wanted.dry_run:
            # It has keys, and the positions of rows in files that are replaced.
            state.index.forget()
            state.synced.known = None
        return erase(catalog, row, intact, schema, wanted, mark.epoch)

    def _current_files(self, catalog: Catalog, target: TableTarget) -> tuple[IntactTable, Sequence[LiveDataFile]]:
        with self._database.transaction(f"reading {target.schema.name}") as connection:
            row, _ = self._state.require_copied(connection, self.place_of(target), target.schema)
            intact = read_intact(connection, catalog.lake.uri, row)
            return intact, read_files(connection, intact.table)

    def _claimed(
        self,
        catalog: Catalog,
        schema: ReplicatedTableSchema,
        name: FullName,
        mode: TableMode,
        mark: Watermark,
        kept_place: str | None,
    ) -> CopiedTable:
        with self._database.transaction(f"creating {name}") as connection:
            row, table, columns, content, last_id = claims.claim(catalog, connection, schema, name, mode, mark)
            row, storage = take_folder(catalog, connection, row, table, mark, kept_place)
        intact = IntactTable(table, columns, content, last_id)
        copied = replacement_columns(columns, last_id, schema, mode)
        return CopiedTable(catalog.lake, row, intact, copied, storage, schema, mode)

    def _catalog(self) -> Catalog:
        """Return the catalog, which is opened or created at the first call."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
            return self._opened

    def _open(self) -> Catalog:
        where, wanted = f"{self._database.where}, schema {self._database.schema}", self._settings.data_path
        with self._database.transaction("opening the destination") as connection:
            found = read_format(connection, where, wanted)
            if not self._context.only_checks:
                found = found or create_catalog(connection, self._database.schema, where, wanted)
                self._state.create(connection)
        path = wanted if found is None else found.data_path
        lake = LakeFolder(path, store_properties(self._settings, self._context.credentials))
        return Catalog(self._database, self._state, lake, self._context.full_name)

    def place_of(self, target: TableTarget) -> FullName:
        """Return the table's name in the catalog. Raise NeedsOperator ``destination_name_unusable``."""
        return full_name(self._settings.schema_name, target.schema.name, target.name)

    def _new_state(self, table: TableId) -> LakeState:
        folder = self._context.work_dir / "ducklake" / path_name(self._context.pipeline) / str(int(table))
        return LakeState(TableIndex(folder))
