"""Verifies tables of a running pipeline, in the threads of the callers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from psycopg import sql

from levada import codes
from levada.copy.guard import GUARDS, hold_table
from levada.copy.range_reader import RangeReader
from levada.destinations.interface import Destination, TableMode
from levada.destinations.key_ranges import WHOLE
from levada.destinations.verification import FixedTable
from levada.errors import DestinationChanged, LevadaError, NeedsOperator, Transient
from levada.postgres.append_publication import read_state
from levada.postgres.catalog import PublishedTable, read_table_description
from levada.postgres.description import TableDescription
from levada.postgres.generated_columns import as_streamed
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.slots import ExportedSnapshot, copy_slot_name, export_snapshot
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.append_record import publication_names
from levada.runtime.tables.hold_state import Held
from levada.runtime.tables.publication_gaps import ROW_OPERATIONS, published_table, record_membership
from levada.runtime.tables.requests import last_copy_settings, table_target
from levada.runtime.tables.verification_record import verified_progress
from levada.runtime.verifications.messages import (
    CatalogChanged,
    HoldAt,
    HoldReleased,
    HoldWanted,
    ShadowHoldAt,
    Verified,
)
from levada.runtime.verifications.moment import Moment, Release
from levada.runtime.verifications.repair import TableRepair
from levada.runtime.verifications.transaction_wait import TransactionWait
from levada.runtime.verifications.turn import Turns
from levada.schema import IdentityKind, ReplicatedTableSchema, TableTarget
from levada.schema.masking import with_masks
from levada.schema.stored_types import AS_RESOLVED
from levada.schema.table import NEWEST_VERSION
from levada.status import VerifiedProgress
from levada.stores.interface import PipelineStore
from levada.stores.phases import Errored
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId, resync_command
from levada.verify.report import NotRepaired, TableReport, difference
from levada.verify.source_table import SourceTable
from levada.verify.table import Compared, Scope, VerifyOptions, compare, scope_of

_log = logging.getLogger(__name__)

_RETRY_S: Final = 2.0
MAX_HELD_S: Final = 60.0
"""The longest time in seconds for which a table is held until its moment is reached.

PostgreSQL makes a snapshot only when all running transactions have ended. A long one would keep the table from applying
its changes for as long as it lasts.
"""
_APPENDED: Final = (
    "UPDATEs and DELETEs, which are not streamed of a table without a replica identity. Their rows are differences"
)
AGAIN: Final = frozenset(
    {
        codes.TABLE_CHANGED,
        codes.COPY_YIELDED,
        codes.LOCK_TIMEOUT,
        codes.VERIFY_NOT_REACHED,
        codes.SOURCE_UNVERIFIED,
        codes.COMMIT_CONFLICT,
        codes.SERIALIZATION_CONFLICT,
    }
)
"""Codes of errors after which a verification begins again with another snapshot."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """Verifies tables of one pipeline, one at a time. Thread-safe."""

    config_ref: ConfigRef
    store: PipelineStore
    destination: Destination
    inbox: Inbox
    epoch: int
    stopping: threading.Event
    max_held_s: float = field(default=MAX_HELD_S)
    turns: Turns = field(default_factory=Turns)

    def run(self, name: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        """Compare one table with the source, after the verification that runs, and return the result.

        A verification of the schedule is ended instead. Raise NeedsOperator ``verify_unsupported`` for a table that
        cannot be compared, Transient ``verify_not_ready`` before the end of its copy, and the errors of the source and
        of the destination. Raise NotRepaired, which has the differences, for a table that cannot be repaired. Raise
        Transient ``verify_cancelled`` if ``cancelled`` is set or the pipeline stops.
        """

        with self.turns.wait(self._interrupt(name, cancelled)):
            return self.run_in_turn(name, options, cancelled)

    def run_in_turn(self, name: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> TableReport:
        """Compare one table as `run` does, for a caller that has the turn."""
        if not self.destination.capabilities.verifies:
            raise unsupported(name, f"the destination {self.destination.name} has no checksums of its tables")
        attempts = self.config_ref.current.limits.verifications.attempts
        for attempt in range(1, attempts + 1):
            try:
                return self._attempt(name, options, cancelled, last=attempt == attempts)
            except Transient as error:
                if error.code not in AGAIN or attempt == attempts:
                    raise
                _log.info("verifying %s again: %s", name, error.message)
                if cancelled.wait(_RETRY_S):
                    raise _cancelled(name) from None
        raise AssertionError

    def run_shadow(self, table: TableId, name: QualifiedTable, cancelled: threading.Event) -> TableReport:
        """Compare a shadow copy with the source. Return the result.

        Nothing is applied to the shadow copy until `ShadowHoldAt` is sent. It then applies the changes below that
        LSN, and no more until this method has returned. Raise the errors of `run`, and Transient ``table_changed`` if
        there is no shadow copy any more.
        """

        check = self._interrupt(name, cancelled)
        if not self.destination.capabilities.verifies:
            raise unsupported(name, f"the destination {self.destination.name} has no checksums of its tables")
        with self.turns.wait(check), ExitStack() as opened:
            config = self.config_ref.current
            self._await_transactions(config, TransactionWait(config.source, name, check))
            slot = copy_slot_name(config.name, table)
            snapshot = opened.enter_context(export_snapshot(config.source, slot, check))
            published, description, schema = self._read(snapshot, table, name)
            target = table_target(self.store, config, schema)
            self._require_comparable(target)
            guards = opened.enter_context(IdleReaders(config.source, GUARDS))
            guard = opened.enter_context(hold_table(guards, published, schema, description, config.limits.locks))
            self.inbox.ask(ShadowHoldAt(table, snapshot.lsn)).wait(check)
            lake = self.destination.fixed_replacement(target)
            if lake is None:
                raise Transient("table_changed", f"the shadow copy of {name} was removed during its verification")
            opened.callback(lake.close)
            policy, connections = config.on_unrepresentable, config.copy_connections
            keys = config.mask_keys
            source = SourceTable(config.source, snapshot, published, connections, policy, guard, cancelled, keys)
            known = self.store.get_table_schema(table, SnapshotId(max(0, snapshot.lsn - 1))) or schema
            scope = scope_of(schema, known, lake, target)
            found = compare(source, lake, schema, scope, snapshot.lsn, VerifyOptions())
            guard.release()
            return found.report

    def _attempt(
        self, name: QualifiedTable, options: VerifyOptions, cancelled: threading.Event, *, last: bool
    ) -> TableReport:
        with self.moment(name, options, cancelled) as moment:
            if options.load is not None or not (last or moment.held.parked):
                self.require_columns(moment)
            able = options.repair and self.why_unrepairable(moment) is None
            found = self._compare(moment, moment.lake, replace(options, repair=able))
            # A parked one that is equal may be that of a repair that did not end. If it is not, it stays parked.
            if options.repair and (moment.held.parked or not found.report.equal):
                if found.damage is not None:
                    # A repair may not end.
                    self._record(moment, found, cancelled)
                try:
                    self._require_repairable(moment)
                    repairs = TableRepair(self.config_ref, self.store, self.destination, self.epoch, self._compare)
                    found = repairs.run(moment, found, options)
                except NeedsOperator as error:
                    raise NotRepaired(error, self._record(moment, found, cancelled)) from error
            moment.source.guard.release()
            return self._record(moment, found, cancelled)

    def _record(self, moment: Moment, found: Compared, cancelled: threading.Event) -> TableReport:
        """Let the result be stored, and a damaged table be parked. Return the report with the code of its error.

        A parked table differs by the changes that it has not applied, which says nothing about its other rows. Raise
        Transient ``table_changed`` if the table was copied again meanwhile.
        """
        held, name, error = moment.held, moment.schema.name, self._error(moment, found)
        if error is None and found.comparisons.comparison.between != WHOLE:
            # A range that is equal says nothing about the other rows.
            return found.report
        self._report(held, name, verified_progress(found.report), error, cancelled)
        return replace(found.report, parked=held.parked or (error.code if found.damage and error else ""))

    def _error(self, moment: Moment, found: Compared) -> LevadaError | None:
        """Return the error because of which the table is not Ready after a comparison, None if it may be."""
        name, report, damage = moment.schema.name, found.report, found.damage
        if report.equal or report.repaired_equal or (moment.held.parked and damage is None):
            return None
        if moment.schema.identity is IdentityKind.MISSING and damage is None and report.only_extra:
            # They were deleted at the source, which is not streamed.
            return None
        hint = f"copy it again: {resync_command(name)}"
        if self.why_unrepairable(moment) is None:
            hint = f"write its rows again: levada verify MANIFEST --table {name.argument} --repair. Or {hint}"
        if damage is not None:
            return DestinationChanged(damage.code, damage.message, hint=hint)
        return NeedsOperator("rows_differ", f"{name} differs from the source: {difference(report)}", hint=hint)

    def _report(
        self,
        held: Held,
        name: QualifiedTable,
        result: VerifiedProgress | None,
        error: LevadaError | None,
        cancelled: threading.Event,
    ) -> None:
        self.inbox.ask(Verified(held, result, error)).wait(self._interrupt(name, cancelled))

    def _compare(
        self, moment: Moment, lake: FixedTable, options: VerifyOptions, former: Compared | None = None
    ) -> Compared:
        scope = self.scope(moment, lake)
        if moment.schema.identity is IdentityKind.MISSING:
            scope = replace(scope, not_compared=(*scope.not_compared, _APPENDED))
        return compare(moment.source, lake, moment.schema, scope, moment.lsn, options, former)

    def scope(self, moment: Moment, lake: FixedTable) -> Scope:
        """Return what is compared. Raise NeedsOperator ``verify_unsupported`` if that is nothing."""
        scope = scope_of(moment.schema, self._known(moment), lake, moment.target)
        if not scope.columns:
            raise unsupported(moment.schema.name, "it has no columns in common with the table at the destination")
        return scope

    def _known(self, moment: Moment) -> ReplicatedTableSchema:
        """Return the version of the table that the stream had reached at the moment's LSN."""
        known = self.store.get_table_schema(moment.schema.id, SnapshotId(max(0, moment.lsn - 1)))
        return known or moment.schema

    def _is_behind(self, moment: Moment) -> bool:
        """Return True if the stream had not reached a change of the table's columns at the moment's LSN."""
        return _columns(self._known(moment)) != _columns(moment.schema)

    def require_columns(self, moment: Moment) -> None:
        """Raise Transient ``verify_not_reached`` if the stream had not reached a change of the columns."""
        if self._is_behind(moment):
            self.inbox.put(CatalogChanged())
            raise Transient(
                "verify_not_reached",
                f"the stream has not reached a change of the columns of {moment.schema.name} yet",
                hint="verify it when the pipeline is not far behind: levada status MANIFEST",
            )

    def _require_repairable(self, moment: Moment) -> None:
        name = moment.schema.name
        if (why := self.why_unrepairable(moment)) is not None:
            raise NeedsOperator("verify_unrepairable", f"{name} cannot be repaired: {why}", hint=resync_command(name))

    def why_unrepairable(self, moment: Moment) -> str | None:
        """Return why the table cannot be repaired, None if it can."""
        if not self.destination.capabilities.repairs:
            return f"the destination {self.destination.name} cannot write single rows again"
        if moment.held.needs_resync:
            return "it missed changes, which are no longer staged"
        if moment.lake.is_history or not moment.schema.key:
            return "its rows have no key"
        return "the stream has not reached a change of its columns" if self._is_behind(moment) else None

    @contextmanager
    def moment(self, name: QualifiedTable, options: VerifyOptions, cancelled: threading.Event) -> Iterator[Moment]:
        """Bring a table to one LSN on both sides, for a caller that has the turn. Raise the errors of `run`.

        The table is held for the block if ``options.repair`` is set.
        """
        config, check = self.config_ref.current, self._interrupt(name, cancelled)
        wait = TransactionWait(config.source, name, check, options.patience_s, options.told)
        self._await_transactions(config, wait)
        held = self._hold(name, cancelled)
        repaired = threading.Event()
        release = Release(lambda: self.inbox.put(HoldReleased(held.table, repaired.is_set())), self.max_held_s)
        versions = ExitStack()
        try:
            if options.load is not None and held.parked:
                # Nothing brings it to an LSN, and its missing changes are not those of a range.
                raise Transient(
                    "verify_not_ready",
                    f"table {name} is parked, so its ranges are not compared",
                    hint="levada status MANIFEST",
                )
            with export_snapshot(config.source, copy_slot_name(config.name, held.table), check) as snapshot:
                if release.done:
                    raise self._not_reached(name)
                records = options.repair and held.is_compared
                published, description, schema = self._read(snapshot, held.table, name, records=records)
                target = table_target(self.store, config, schema)
                self._require_comparable(target)
                with (
                    IdleReaders(config.source, GUARDS) as guards,
                    hold_table(guards, published, schema, description, config.limits.locks) as guard,
                ):
                    self._reach(held.table, name, snapshot.lsn, release, cancelled)
                    lake = self._fixed(held, target, cancelled)
                    versions.callback(lake.close)
                    if not (release.keep() if options.repair else release.now()):
                        # It was released before, so that it may have applied more.
                        raise self._not_reached(name)
                    policy, keys, load = config.on_unrepresentable, config.mask_keys, options.load
                    connections = config.copy_connections if load is None else 1
                    source, wanted = config.source, cancelled
                    yield Moment(
                        SourceTable(source, snapshot, published, connections, policy, guard, wanted, keys, load),
                        schema,
                        target,
                        lake,
                        snapshot.lsn,
                        held,
                        RangeReader(config.source, snapshot, schema, published.row_filter, policy, config.mask_keys),
                        versions,
                        repaired,
                    )
        finally:
            versions.close()
            release.now()

    def _fixed(self, held: Held, target: TableTarget, cancelled: threading.Event) -> FixedTable:
        """Return the table at the destination. One that is missing or cannot be opened is parked."""
        name = target.schema.name
        try:
            lake = self.destination.fixed(target)
            if lake is None:
                raise self._without_copy(held.table, name)
        except DestinationChanged as error:
            self._report(held, name, None, error, cancelled)
            raise
        return lake

    def _without_copy(self, table: TableId, name: QualifiedTable) -> DestinationChanged:
        """Return the error of a table that the destination does not have: that with which it is parked, if it is."""
        phase = self.store.get_table_replication_state(table)
        if isinstance(phase, Errored):
            message = f"the destination has no copy of {name}, which is parked: {phase.reason}"
            return DestinationChanged(phase.code, message, hint=phase.solution)
        return DestinationChanged(
            "destination_table_missing",
            f"the destination no longer has table {name}",
            hint=f"copy it again: {resync_command(name)}",
        )

    def _hold(self, name: QualifiedTable, cancelled: threading.Event) -> Held:
        wanted = self.inbox.ask(HoldWanted(name))
        try:
            return wanted.wait(self._interrupt(name, cancelled))
        except LevadaError:
            wanted.decline(self.inbox)
            raise

    def _reach(
        self, table: TableId, name: QualifiedTable, lsn: Lsn, release: Release, cancelled: threading.Event
    ) -> None:
        check, until = self._interrupt(name, cancelled), time.monotonic() + self.max_held_s

        def wait() -> None:
            check()
            if time.monotonic() >= until:
                raise self._not_reached(name)

        try:
            self.inbox.ask(HoldAt(table, lsn)).wait(wait)
        except Transient as error:
            if error.code == codes.TABLE_CHANGED and release.done:
                # It has not changed. It was held for as long as it may be before its LSN was known.
                raise self._not_reached(name) from None
            raise

    def _await_transactions(self, config: PipelineConfig, wait: TransactionWait) -> None:
        """Wait until the transactions that run now have ended, so that a held table need not wait for them."""
        with export_snapshot(config.source, copy_slot_name(config.name, TableId(0)), wait.interrupt):
            pass

    def _interrupt(self, name: QualifiedTable, cancelled: threading.Event) -> Callable[[], None]:
        """Return a function that raises if the verification was cancelled or the pipeline stops."""

        def check() -> None:
            if cancelled.is_set() or self.stopping.is_set():
                raise _cancelled(name)

        return check

    def _not_reached(self, name: QualifiedTable) -> Transient:
        return Transient(
            "verify_not_reached",
            f"{name} did not reach the LSN of its verification within {self.max_held_s:.0f} s",
            hint="verify it when the pipeline is not far behind and no long transaction runs: levada status MANIFEST",
        )

    def _read(
        self, snapshot: ExportedSnapshot, table: TableId, name: QualifiedTable, *, records: bool = False
    ) -> tuple[PublishedTable, TableDescription, ReplicatedTableSchema]:
        """Read what the snapshot sees of a table. ``records``: the table goes on with its membership after it."""
        config = self.config_ref.current
        settings = last_copy_settings(self.store.get_table_controls(table))
        with config.source.connect(application="verify") as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(snapshot.name))
            SourceRecord(self.store).require_verified(connection)
            names = publication_names(config, self.store)
            published = published_table(connection, names, table, name)
            state = read_state(connection, names, [table])
            membership = None if table in state.appended else state.members.get(table)
            if membership is not None and ROW_OPERATIONS.difference(membership.publication.operations):
                raise unsupported(name, "its publication does not publish all of INSERT, UPDATE and DELETE")
            if records and table in state.members:
                record_membership(self.store, table, state.members[table].to_text())
            description = read_table_description(connection, table)
            description = as_streamed(connection, names.main, description, published.column_attnums)
            schema = description.schema(
                columns=published.column_attnums,
                exclude=() if settings is None else settings.excluded_columns,
                policy=config.on_unrepresentable,
                types=AS_RESOLVED if settings is None else settings.stored_types,
            )
        if settings is not None:
            former = self.store.get_table_schema(table, NEWEST_VERSION)
            schema = with_masks(schema, settings.masks, former, config.mask_keys)
        return published, description, schema

    def _require_comparable(self, target: TableTarget) -> None:
        settings = last_copy_settings(self.store.get_table_controls(target.id))
        if settings is not None and (why := settings.lack):
            raise unsupported(target.schema.name, why)
        if target.schema.key and self.destination.effective_mode(target) is TableMode.CHANGELOG:
            raise unsupported(
                target.schema.name, "its mode is Changelog, which keeps every change and not only the last rows"
            )


def _columns(schema: ReplicatedTableSchema) -> list[tuple[object, ...]]:
    return [(c.attnum, c.name, c.type) for c in schema.columns]


def unsupported(name: QualifiedTable, why: str) -> NeedsOperator:
    """Return the error of a table that cannot be compared."""
    return NeedsOperator("verify_unsupported", f"{name} cannot be compared with the source: {why}")


def _cancelled(name: QualifiedTable) -> Transient:
    return Transient("verify_cancelled", f"the verification of {name} was cancelled")
