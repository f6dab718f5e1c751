"""The copy of one table, from the snapshot to the commit with its watermark. It carries out a `CopyPlan`."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from levada import codes
from levada.apply.applier import wait_durable
from levada.copy.guard import hold_table
from levada.copy.in_process import IN_PROCESS
from levada.copy.kept import KeptCopy, changed_part
from levada.copy.resumable import BEGINS_AGAIN, Keeping, ResumableRows, outdated
from levada.copy.snapshot import SnapshotRows
from levada.copy.stored_rows import stored_rows
from levada.copy.tasks import TaskRunner
from levada.destinations.answers import perform, require_durability, require_flag
from levada.destinations.interface import Destination
from levada.errors import LevadaError, Transient
from levada.postgres.idle_connections import IdleReaders, IdleWalsenders
from levada.postgres.server import read_clock
from levada.postgres.slots import ExportedSnapshot, copy_slot_name, export_snapshot
from levada.runtime.config_ref import ConfigRef
from levada.runtime.copies.carried import KeptRows
from levada.runtime.copies.copied_rows import forget_if_useless, rows_to_copy, why_not_kept
from levada.runtime.copies.copy_marks import CopyMarks
from levada.runtime.copies.outcomes import Copied, cancelled_wait
from levada.runtime.copies.source_table import SnapshotTables, SourceTable
from levada.runtime.copies.staged_changes import ChangesReader
from levada.runtime.tables.copy_plan import CopyPlan, Recreate, ReplaceInPlace, Shadow
from levada.runtime.tables.kept_copies import KeptCopies, StoredKeptCopies
from levada.runtime.tables.requests import CopySettings
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.masking import kept_rows_masked
from levada.schema.metadata import at_source
from levada.schema.storage import TableStorage
from levada.schema.table import COPY_VERSION, NEWEST_VERSION
from levada.stores.interface import PipelineStore, TableControls
from levada.values import Durability, Lsn, QualifiedTable, TableId, Watermark

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableCopy:
    """Copies tables of one pipeline."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    tasks: TaskRunner
    epoch: int
    sessions: IdleReaders
    turn: AbstractContextManager[object] = field(default_factory=nullcontext)
    """The lock held while waiting for durability. With the ordering PIPELINE, calls must not overlap."""
    require_order: Callable[[], object] = lambda: None
    """Raises an error if the driver wants another copy by now. Called before something that exists is changed."""
    changes: ChangesReader | None = None
    """The staged changes of tables, without which an interrupted copy begins again."""
    kept_copies: KeptCopies | None = None
    """The records of interrupted copies, by default those in the store."""
    walsenders: IdleWalsenders | None = None
    """The connections that export snapshots, by default a new one for each copy."""

    @property
    def source(self) -> SnapshotTables:
        """Return the reader of tables in the snapshot of a copy."""
        return SnapshotTables(self.config_ref, self.store, self.sessions)

    @property
    def _kept(self) -> KeptCopies:
        return self.kept_copies or StoredKeptCopies(self.store)

    @property
    def marks(self) -> CopyMarks:
        """Return the marks of tables that are not what their settings say."""
        return CopyMarks(self.store)

    @property
    def kept_rows(self) -> KeptRows:
        """Return what takes over the kept rows of a table that is replaced."""
        return KeptRows(self.config_ref, self.store, self.destination)

    def close_idle(self) -> None:
        """Close the connections that no copy uses at the moment."""
        self.sessions.close()
        IN_PROCESS.close()
        if self.walsenders is not None:
            self.walsenders.close()

    @contextmanager
    def snapshot(
        self, table: TableId, name: object, cancelled: Collection[threading.Event], *, metadata: bool
    ) -> Iterator[ExportedSnapshot]:
        """Export a snapshot for a copy, or raise Transient ``copy_cancelled``. With ``metadata`` it has a time."""
        config, began, end = self.config_ref.current, None, cancelled_wait(cancelled, f"the copy of {name}")
        if metadata:
            # Before the snapshot, so that no later change has an earlier commit time than the rows of the copy.
            with self.sessions.session() as connection:
                began = read_clock(connection)
        with export_snapshot(config.source, copy_slot_name(config.name, table), end, self.walsenders) as snapshot:
            yield replace(snapshot, began=began)

    def run(
        self,
        table: TableId,
        name: QualifiedTable,
        plan: Recreate | ReplaceInPlace,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows], None],
        since: Lsn | None = None,
    ) -> Copied:
        """Copy the table with a snapshot of its own. ``started`` receives the rows, which count their progress.

        ``since`` is the LSN from which on the table's segments are kept. If it is given, an interrupted copy is
        resumed, and this one can be.

        The rows are durable when this returns. Raise Transient ``copy_cancelled`` once ``cancelled`` is set.
        """
        kept, note = None if since is None else self._kept.get(table), ""
        if kept is not None:
            try:
                return self._resume(table, name, plan, kept, cancelled, started)
            except Transient as error:
                note = self._why_outdated(table, error)
        former = self.make_room(table, name, plan)
        with self.snapshot(table, name, [cancelled], metadata=bool(plan.settings.metadata)) as snapshot:
            return self.copy_at(snapshot, table, name, plan, former, cancelled, started, since, note=note)

    def copy_at(
        self,
        snapshot: ExportedSnapshot,
        table: TableId,
        name: QualifiedTable,
        plan: Recreate | ReplaceInPlace,
        former: ReplicatedTableSchema | None,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows], None],
        since: Lsn | None,
        *,
        note: str = "",
        read: SourceTable | None = None,
        wait_s: float = math.inf,
    ) -> Copied:
        """Copy the table from a snapshot, after `make_room` has returned ``former``.

        ``read`` is the table's state in the snapshot, if it was read. Wait at most ``wait_s`` seconds for its locks.
        """
        with self._rows(snapshot, table, name, plan, cancelled, since, note=note, read=read, wait_s=wait_s) as (
            rows,
            storage,
        ):
            mark = Watermark(self.config_ref.current.name, self.epoch, snapshot.lsn)
            started(rows)
            if isinstance(plan, ReplaceInPlace) and self._replace(plan, rows, storage, mark):
                self.store.store_table_schema(rows.schema)
            else:
                self._recreate(plan, former, rows, mark, cancelled)
            return Copied(rows.schema, snapshot.lsn, storage)

    def complete(
        self,
        table: TableId,
        name: QualifiedTable,
        plan: Recreate | ReplaceInPlace,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows], None],
    ) -> Copied:
        """Complete a copy whose ranges another process has read, by the changes since.

        Raise Transient ``copy_outdated`` if its finished ranges cannot be used.
        """
        kept = self._kept.get(table)
        try:
            if kept is None:
                raise Transient("copy_outdated", f"the interrupted copy of {name} begins again: it has no record")
            return self._resume(table, name, plan, kept, cancelled, started)
        except Transient as error:
            if error.code == codes.COPY_OUTDATED:
                self._kept.put(table, None)
            raise

    def _resume(
        self,
        table: TableId,
        name: QualifiedTable,
        plan: Recreate | ReplaceInPlace,
        kept: KeptCopy,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows], None],
    ) -> Copied:
        """Continue an interrupted copy with another snapshot. The table and its stored state stay.

        If the plan is to replace a table, and the one at the destination is unfinished, then its ranges are continued.

        Raise Transient ``copy_outdated`` if its finished ranges cannot be used.
        """
        with (
            self.snapshot(table, name, [cancelled], metadata=bool(plan.settings.metadata)) as snapshot,
            self._rows(snapshot, table, name, plan, cancelled, kept.since, kept) as (rows, storage),
        ):
            started(rows)
            target = self._target(plan.settings, rows.schema)
            perform(self.destination.check_place, target)
            self.store.require_epoch()
            mark = Watermark(self.config_ref.current.name, self.epoch, snapshot.lsn)
            if isinstance(plan, ReplaceInPlace) and self._replace(plan, rows, storage, mark):
                self.store.store_table_schema(rows.schema)
            elif self.destination.applied(table) is not None:
                # It is complete, and would have to be dropped before.
                raise outdated(rows.schema, "the table at the destination can no longer be replaced")
            else:
                self._write(target, rows, mark, cancelled)
                rows.check()
                self.marks.complete(target.id)
            return Copied(rows.schema, snapshot.lsn, storage)

    def run_shadow(
        self,
        table: TableId,
        name: QualifiedTable,
        plan: Shadow,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows, Lsn], None],
        since: Lsn | None = None,
    ) -> Copied | None:
        """Make a shadow copy of the table. Return None if the destination has no such table.

        ``started`` receives the rows and the LSN of the snapshot. The copy is not swapped in yet. ``since`` is that of
        `run`.
        """
        kept, note = None if since is None else self._kept.get(table), ""
        if kept is not None:
            try:
                return self._shadow(table, name, plan, cancelled, started, kept.since, kept)
            except Transient as error:
                note = self._why_outdated(table, error)
        return self._shadow(table, name, plan, cancelled, started, since, note=note)

    def _shadow(
        self,
        table: TableId,
        name: QualifiedTable,
        plan: Shadow,
        cancelled: threading.Event,
        started: Callable[[SnapshotRows, Lsn], None],
        since: Lsn | None,
        kept: KeptCopy | None = None,
        *,
        note: str = "",
    ) -> Copied | None:
        with (
            self.snapshot(table, name, [cancelled], metadata=bool(plan.settings.metadata)) as snapshot,
            self._rows(snapshot, table, name, plan, cancelled, since, kept, note=note) as (rows, storage),
        ):
            started(rows, snapshot.lsn)
            mark = Watermark(self.config_ref.current.name, self.epoch, snapshot.lsn)
            copy = self.destination.copy_replacement
            target = self._target(plan.settings, rows.schema)
            try:
                copied = require_flag(copy(target, stored_rows(rows, target, rows.moment), mark), copy)
                rows.check()
            except BaseException as error:
                self._discard(rows, error)
                raise
            return Copied(rows.schema, snapshot.lsn, storage, not plan.settings.lack) if copied else None

    def make_room(
        self, table: TableId, name: QualifiedTable, plan: Recreate | ReplaceInPlace
    ) -> ReplicatedTableSchema | None:
        """Drop the table of the last copy if the plan says so, then clear the stored state of that copy.

        Return the schema that was stored last, None if there was none. The table is dropped by that schema, which the
        store keeps until the destination has dropped the table. So an attempt after a crash drops it too. A plan that
        replaces the table keeps the schema, because the copy may still have to drop the table.

        Raise NeedsOperator ``excluded_column_renamed`` before anything is dropped or cleared.
        """
        former = self.store.get_table_schema(table, NEWEST_VERSION)
        if former is not None and former.excluded:
            with self.sessions.session() as connection:
                self.source.require_excluded(connection, table, name, plan.settings.excluded_columns)
        if former is not None:
            perform(self.destination.check_place, self._target(plan.settings, replace(former, name=name)))
            if isinstance(plan, Recreate):
                self._drop(self._target(plan.former or plan.settings, former))
        self.require_order()
        # Cleared before the snapshot is exported, because versions that the stream sends later apply to the copy.
        self.store.clear_table_copy_state(table)
        # Another attempt must still know the excluded and masked columns, which may be renamed before the snapshot.
        if former is not None and (isinstance(plan, ReplaceInPlace) or former.excluded or former.masks):
            self.store.store_table_schema(replace(former, snapshot_id=COPY_VERSION))
        return former

    def _recreate(
        self,
        plan: Recreate | ReplaceInPlace,
        former: ReplicatedTableSchema | None,
        rows: SnapshotRows,
        mark: Watermark,
        cancelled: threading.Event,
    ) -> None:
        """Write the rows to a new table. ``former`` is the schema that was stored last.

        Leftovers of earlier attempts are dropped, also by a schema that was not stored. Kept rows must not be lost.
        """
        target = self._target(plan.settings, rows.schema)
        if former is None:
            perform(self.destination.check_place, target)
        self.kept_rows.require_none_lost(target, plan.former)
        if plan.former is not None and (former is None or isinstance(plan, ReplaceInPlace)):
            self._drop(self._target(plan.former, former or rows.schema))
        self.require_order()
        self.begin_new([(rows.schema, target, plan)])
        if plan.former != plan.settings:
            self._drop(target)
        self.marks.masks_are_new(target.id)
        self._write(target, rows, mark, cancelled)
        rows.check()
        self.marks.complete(target.id)

    def begin_new(self, tables: Sequence[tuple[ReplicatedTableSchema, TableTarget, Recreate | ReplaceInPlace]]) -> None:
        """Store the schemas and the settings of copies whose tables are about to be created, in one step."""
        with self.store.together():
            for schema, target, plan in tables:
                self.store.store_table_schema(schema)
                if plan.former != plan.settings:
                    self._store_settings(plan.settings, target.id)
                if target.keeps_rows:
                    self.marks.first_begins(target.id)

    def _replace(self, plan: ReplaceInPlace, rows: SnapshotRows, storage: TableStorage, mark: Watermark) -> bool:
        """Make a shadow copy and swap it in atomically. Return False if the destination has no such table.

        It may have a part of one whose first copy was not complete, and that keeps no rows either.
        """
        copy, swap, target = (
            self.destination.copy_replacement,
            self.destination.swap_replacement,
            self._target(plan.settings, rows.schema),
        )
        other_masks = plan.former.masks != plan.settings.masks
        if target.keeps_rows and (other_masks or self.marks.has_other_masks(target.id)):
            if self.marks.has_no_copy(target.id):
                return False
            raise kept_rows_masked(rows.schema.name)
        self.require_order()
        if other_masks:
            # If this copy is interrupted, a later one that keeps rows has the masks of `settings` as its former ones.
            self.marks.masks_change(target.id)
        try:
            self._store_settings(plan.settings, target.id)
            if not require_flag(copy(target, stored_rows(rows, target, rows.moment), mark), copy):
                return False
            rows.check()
            self.require_order()
            if self.kept_rows.carry(target, storage, mark, takes_all=not plan.settings.lack) is False:
                raise _replacement_lost(rows.schema)
            if require_flag(swap(target.id, mark), swap):
                self.marks.complete(target.id)
                return True
            raise _replacement_lost(rows.schema)
        except BaseException as error:
            self._discard(rows, error)
            raise

    def _target(self, settings: CopySettings, schema: ReplicatedTableSchema) -> TableTarget:
        return settings.target(schema, self.config_ref.current)

    def _drop(self, target: TableTarget) -> None:
        # After a pause of this process the table may be a newer driver's or another process's copy, and the destination
        # may not check that.
        self.store.require_epoch()
        self.require_order()
        perform(self.destination.drop_table_for_copy, target, self.epoch)

    def _write(self, target: TableTarget, rows: SnapshotRows, mark: Watermark, cancelled: threading.Event) -> None:
        """Write the rows, and wait until the destination reports them as durable."""
        write = self.destination.write_table_rows
        try:
            durability = require_durability(write(target, stored_rows(rows, target, rows.moment), mark), write)
        except LevadaError as error:
            forget_if_useless(rows, error)
            raise
        if durability is Durability.DURABLE:
            return
        try:
            with self.turn:
                wait_durable(self.destination, [target], mark, cancelled)
        except InterruptedError:
            raise Transient("copy_cancelled", f"the copy of {rows.schema.name} was cancelled") from None

    def _why_outdated(self, table: TableId, error: Transient) -> str:
        """Forget finished ranges that cannot be used. Return why. Raise any other error."""
        if error.code != codes.COPY_OUTDATED:
            raise error
        _log.info("%s", error.message)
        self._kept.put(table, None)
        return error.message

    def _discard(self, rows: SnapshotRows, error: BaseException) -> None:
        """Drop the shadow copy after an error, unless the next attempt continues with its finished ranges."""
        forget_if_useless(rows, error)
        if rows.kept_place is not None:
            return
        try:
            perform(self.destination.drop_replacement, rows.schema.id)
        except LevadaError as failure:
            _log.warning(
                "the unfinished copy of %s stays at the destination until the next copy: %s", rows.schema.name, failure
            )

    @contextmanager
    def _rows(
        self,
        snapshot: ExportedSnapshot,
        table: TableId,
        name: QualifiedTable,
        plan: CopyPlan,
        cancelled: threading.Event,
        since: Lsn | None,
        kept: KeptCopy | None = None,
        *,
        note: str = "",
        read: SourceTable | None = None,
        wait_s: float = math.inf,
    ) -> Iterator[tuple[SnapshotRows, TableStorage]]:
        """Lock the table against DDL while its rows are read. Yield the rows and the storage that they are in.

        Raise Transient ``copy_outdated`` if ``kept`` has another basis.
        """
        config = self.config_ref.current
        read = read or self.source.read(snapshot, table, name, plan.settings)
        published, schema, policy = read.published, read.schema, config.on_unrepresentable
        if kept is not None and kept.basis != read.basis:
            raise outdated(schema, changed_part(kept.basis, read.basis))
        target = self._target(plan.settings, schema)
        keeping, why_not = None, why_not_kept(self.destination, target, since, read)
        if why_not:
            note = f"{BEGINS_AGAIN} {why_not}"
        elif since is not None:
            keeping = self._keeping(target, read.basis, since, kept, shadow=isinstance(plan, Shadow))
        limits = config.limits.ranges
        if not self.destination.capabilities.copies_in_process:
            limits = replace(limits, in_process_bytes=0)
        locks = replace(config.limits.locks, wait_s=min(wait_s, config.limits.locks.wait_s))
        with hold_table(self.sessions, published, schema, read.description, locks) as guard:
            kind = SnapshotRows if keeping is None else partial(ResumableRows, keeping=keeping)
            rows = kind(
                self.tasks,
                config.source,
                snapshot,
                rows_to_copy(published, plan.settings),
                schema,
                connections=config.copy_connections,
                policy=policy,
                cancelled=cancelled,
                guard=guard,
                note=note,
                limits=limits,
                mask_keys=config.mask_keys,
            )
            yield rows, read.description.storage

    def _keeping(
        self, target: TableTarget, basis: str, since: Lsn, kept: KeptCopy | None, *, shadow: bool
    ) -> Keeping | None:
        if self.changes is None:
            return None
        read, plain = self.changes.read, target.with_schema(at_source(target.schema))
        return Keeping(
            basis,
            since,
            kept,
            lambda record: self._kept.put(target.id, record),
            lambda first, until, rows, stopped: read(plain, first, until, rows, stopped, shadow=shadow),
        )

    def _store_settings(self, wanted: CopySettings, table: TableId) -> None:
        controls = self.store.get_table_controls(table) or TableControls()
        noted = replace(controls, made_as=wanted.to_text())
        if noted != controls:
            self.store.store_table_controls(table, noted)


def _replacement_lost(schema: ReplicatedTableSchema) -> Transient:
    return Transient(
        "replacement_lost",
        f"the new copy of {schema.name} cannot replace the table at the destination: one of them was changed or removed"
        " meanwhile",
    )
