"""Preparation of the source: preflight, publication, tables and slot, in an order in which no change is lost.

The publication comes first, then the slot, then the snapshots of the tables. A change made in between is in the slot or
in the snapshot.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada import codes
from levada.capture.history import plan_session
from levada.capture.session import CaptureSettings
from levada.capture.worker import verify_history
from levada.errors import LevadaError, NeedsOperator, SlotLost, Transient
from levada.postgres.append_publication import PublicationNames, list_streamed, read_append, read_state
from levada.postgres.catalog import StreamedTable, list_tables
from levada.postgres.ddl import install_ddl_trigger, remove_ddl_trigger
from levada.postgres.failures import RESYNC_ALL
from levada.postgres.generated_columns import settle_generated
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.preflight import PreflightRequest, preflight, refuse
from levada.postgres.problems import Problem, Severity, of_restart
from levada.postgres.publication_owners import mark_publication, read_publication_owner
from levada.postgres.publications import CoverageReport, ensure_coverage, extend_publication, inspect_coverage
from levada.postgres.read_only import read_only_named
from levada.postgres.server import read_server
from levada.postgres.slots import drop_slot, end_abandoned_slots, inspect_slot, validate_slot
from levada.postgres.table_locks import locks_named, publication_locked, read_table_locks, table_locked
from levada.postgres.unselected import NamedTables
from levada.postgres.withdrawals import inherited_members, unidentified_members, withdraw
from levada.postgres.written_tables import list_written_tables
from levada.printable import counted, listed
from levada.runtime.config import PipelineConfig
from levada.runtime.source.appended import Appended, settle_appended
from levada.runtime.source.lost_state import require_state
from levada.runtime.source.ownership import claim_source
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.row_filters import Settled, settle_filters
from levada.runtime.source.slips import require_no_slip
from levada.runtime.source.slot_creation import Waiting, create_guarded_slot
from levada.runtime.source.table_sizes import TableSizes
from levada.runtime.tables.append_record import publication_names, record_append
from levada.runtime.tables.comparisons import Comparisons, held_parts
from levada.runtime.tables.deselected import withdraw_deselected
from levada.runtime.tables.guard_record import explain_missing_slot, slot_exists
from levada.runtime.tables.phases import at_restart
from levada.runtime.tables.publication_gaps import (
    has_publication_record,
    record_missing_publication,
    save_publication,
    unreadable_slot,
)
from levada.runtime.tables.rules import needs_resync
from levada.runtime.tables.source_tables import SourceTables
from levada.runtime.tables.table_names import table_names
from levada.runtime.tables.unverified_tables import UnverifiedTables
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore
from levada.stores.phases import Init
from levada.stores.slot_owners import other_pipelines
from levada.values import PipelineOwner, QualifiedTable, TableId, TableMode

_log = logging.getLogger(__name__)

_SLOT_WAIT_S: Final = 60.0
_COVER_ATTEMPTS: Final = 3
_LOCK_S: Final = 1.0
"""Seconds to wait for the lock of a table that is added to the publication. Discovery tries again soon."""
_MOST_ADDED: Final = 10
"""The number of tables whose SQL a hint has."""
_REPORTED_WITH_TABLES: Final = frozenset({codes.IDENTITY_MISSING, codes.PUBLICATION_INCOMPLETE})
"""Codes of tables that are left out. They are logged when they are."""


@dataclass(frozen=True, slots=True)
class SourceState:
    """The source after its preparation.

    If ``resync`` is True, every table begins with a copy, and no staged segment is needed.
    """

    found: SourceTables
    resync: bool

    @property
    def tables(self) -> tuple[StreamedTable, ...]:
        """Return the tables that are replicated."""
        return self.found.published


def check_source(config: PipelineConfig, *, begun: bool = False) -> tuple[Problem, ...]:
    """Return every problem that keeps the pipeline from running, and every warning. Nothing is changed.

    ``begun`` is True if the store has tables of the pipeline. An error of one table does not keep it from running then.
    """
    problems = preflight(config.source, _preflight_request(config))
    return of_restart(problems) if begun else problems


def prepare_source(
    config: PipelineConfig,
    store: PipelineStore,
    record: SourceRecord,
    log: SegmentLog,
    found: Callable[[tuple[StreamedTable, ...]], None] = lambda tables: None,
    lost: SlotLost | None = None,
    *,
    owner: PipelineOwner | None = None,
    waiting: Waiting = lambda error: None,
    sizes: TableSizes | None = None,
) -> SourceState:
    """Check the source, and create the publication and the slot if they are missing.

    ``found`` is called with the tables before the slot is verified. ``lost`` is the error that ended a running pipeline
    whose ``slot.onLost`` is Resync. ``owner`` is the owner that this process runs as. ``waiting`` gets what the
    creation of the slot waits for. ``sizes`` is that of later discoveries.

    Raise NeedsOperator ``preflight_failed`` with all problems, and ``not_the_owner`` if the slot or the publication
    belongs to another owner. Problems of single tables are left out if the store has tables. If ``slot.onLost`` is
    Hold, raise SlotLost when the slot or the history of the source is lost while tables depend on it, and NeedsOperator
    ``store_empty`` when the store has lost the pipeline's state.
    """
    begun = bool(store.get_table_replication_states())
    problems = check_source(config, begun=begun)
    for problem in problems:
        if problem.severity is Severity.WARNING and problem.code not in _REPORTED_WITH_TABLES:
            _log.warning("%s [%s]", problem.message, problem.code)
    refuse(problems)
    with SESSIONS.session(config.source, "start") as connection:
        if owner is not None:
            claim_source(config, store, connection, owner)
        store.require_epoch()
        end_abandoned_slots(connection, config.name)
        slot = inspect_slot(connection, config.slot.name)
        require_state(config, store, slot, log.end(), recorded=record.known or has_publication_record(store))
        tables = discover(config, connection, store, owner, sizes or TableSizes())
        if tables.incomplete is not None and not begun:
            raise tables.incomplete
        _require_tables(config, tables, table_names(store).values())
        if owner is not None and config.publication.managed:
            # Replaces the comment of a former owner.
            for publication in config.publication.names:
                mark_publication(connection, publication, owner, check=store.require_epoch)
        found(tables.published)
        _prepare_trigger(config, connection)
        lost = lost or unreadable_slot(connection, store, tables.publication)
        resync = _ensure_slot(config, connection, store, record, log, lost, tables, waiting)
        save_publication(store, tables.publication)
        if resync and config.publication.managed:
            record_append(store, read_append(connection, config.publication.append), before_slot=True)
        return SourceState(tables, resync)


def _prepare_trigger(config: PipelineConfig, connection: psycopg.Connection[Any]) -> None:
    if config.ddl_trigger:
        install_ddl_trigger(connection)
        return
    try:
        if not other_pipelines(connection, config.slot.name, config.publication.name):
            remove_ddl_trigger(connection)
    except LevadaError as error:
        _log.info("the DDL trigger, which spec.source.ddlTrigger declines, stays: %s", error.message)


def discover(
    config: PipelineConfig,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    owner: PipelineOwner | None,
    sizes: TableSizes,
) -> SourceTables:
    """Return the tables of the source. Add the selected tables to the publication first, if it is managed.

    A managed publication without an owner's comment gets that of ``owner``. This also covers a publication that was
    created again under a running engine. Raise StaleEpoch if the publication needs a change and another process has
    taken over the pipeline, and Transient ``table_locked`` if sessions lock one table after the other meanwhile.
    """
    with locks_named(connection, config.is_selected), read_only_named(connection):
        return _discover(config, connection, store, owner, sizes)


def _discover(
    config: PipelineConfig,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    owner: PipelineOwner | None,
    sizes: TableSizes,
) -> SourceTables:
    name = config.publication.name
    unidentified: tuple[QualifiedTable, ...] = ()
    incomplete = locked = report = None
    filters, appended = Settled(), Appended()
    possible = list_tables(connection) if config.publication.managed or config.include else []
    require_no_slip(config, possible, table_names(store).values())
    if config.publication.managed:
        unwanted = {*unidentified_members(connection, name), *inherited_members(connection, name, config.is_selected)}
        refused = withdraw(connection, name, sorted(unwanted), check=store.require_epoch)
        for error in (*refused, *withdraw_deselected(config, connection, store, owner)):
            _log.warning("%s [%s]", error.message, error.code)
        selected = {t for t in possible if config.is_selected(t)}
        report = inspect_coverage(connection, name, selected, listed=True)
        selected = {*report.present, *report.missing}
        unidentified = report.unidentified
        # Those with a row filter are published with it, each in a transaction of its own.
        lacking = {t for t in report.missing if t not in unidentified}
        if missing := {t for t in lacking if config.row_filter(t) is None}:
            locked, report = _cover(connection, name, missing, report, store.require_epoch)
            incomplete = _incomplete(config, report or inspect_coverage(connection, name, missing, listed=True))
        elif lacking:
            report = ensure_coverage(connection, name, missing, manage=True, check=store.require_epoch, listed=True)
        filters = settle_filters(config, connection, store, selected.difference(unidentified), _LOCK_S)
        incomplete, locked = incomplete or filters.refused, locked or filters.locked
        appended = settle_appended(config, connection, store, owner, unidentified)
        unidentified = tuple(t for t in unidentified if t not in appended.tables)
        incomplete, locked = incomplete or appended.refused, locked or appended.locked
        filters = filters.with_unfiltered(appended.unfiltered)
        if lacking != missing:
            report = None
        publications, generated = config.publication.names, config.publication.generated_columns
        try:
            incomplete = incomplete or settle_generated(connection, publications, generated, store.require_epoch)
            if owner is not None and read_publication_owner(connection, name) is None:
                mark_publication(connection, name, owner, check=store.require_epoch)
        except Transient as error:
            if error.code not in (codes.LOCK_TIMEOUT, codes.TABLE_LOCKED):
                raise
            locked = locked or error
    names = publication_names(config, store)
    published = tuple(t for t in _published(config, connection, names) if t.id not in filters.unfiltered)
    tables = {*store.get_table_replication_states(), *(t.id for t in published)}
    state = read_state(connection, names, tables)
    report = report or inspect_coverage(
        connection, name, {t.name for t in published if t.id not in state.appended}, listed=True
    )
    read = sizes.read(connection, [t.id for t in published])
    return SourceTables(published, state, unidentified, incomplete, locked, report.refusing, read, appended.waits)


def _cover(
    connection: psycopg.Connection[Any],
    publication: str,
    required: AbstractSet[QualifiedTable],
    report: CoverageReport,
    check: Callable[[], None],
) -> tuple[Transient | None, CoverageReport | None]:
    """Add the required tables, which it lacks, to the publication.

    ``report`` was read before. Return the error of what others have locked, tables or the publication, and the report
    from after the change if the required tables are all that ``report`` has as missing, and none was locked.
    """
    missing = required
    for attempt in range(1, _COVER_ATTEMPTS + 1):
        locks = [lock for lock in read_table_locks(connection) if lock.prevents(missing)] if missing else []
        if (changing := publication_locked(connection, publication)) is not None:
            return changing, None
        free = required - {name for lock in locks for name in (lock.table, lock.root)}
        try:
            if attempt == 1 and free == {*report.missing}:
                return None, extend_publication(
                    connection, publication, report, check=check, lock_timeout_s=_LOCK_S, listed=True
                )
            ensure_coverage(
                connection, publication, free, manage=True, check=check, lock_timeout_s=_LOCK_S, listed=True
            )
        except Transient as error:
            # Another session has locked one of them, or the publication, since.
            if error.code != codes.LOCK_TIMEOUT:
                raise
            if attempt == _COVER_ATTEMPTS:
                return publication_locked(connection, publication) or error, None
            missing = set(inspect_coverage(connection, publication, required, listed=True).missing)
        else:
            break
    return (table_locked(f"publication {publication} lacks tables for now", locks) if locks else None), None


def covered_tables(config: PipelineConfig, connection: psycopg.Connection[Any]) -> set[QualifiedTable]:
    """Return the tables that a start would replicate. Nothing is changed."""
    if not config.publication.managed:
        return {t.name for t in _published(config, connection, PublicationNames(config.publication.name))}
    selected = {t for t in list_tables(connection) if config.is_selected(t)}
    report = inspect_coverage(connection, config.publication.name, selected, listed=True)
    selected = {*report.present, *report.missing}
    appended = {t for t in report.unidentified if config.appends(t)}
    return selected.difference(report.blocked) | appended


def _published(
    config: PipelineConfig, connection: psycopg.Connection[Any], names: PublicationNames
) -> tuple[StreamedTable, ...]:
    try:
        tables = list_streamed(connection, names)
    except NeedsOperator as error:
        if error.code != codes.PUBLICATION_MISSING:
            raise
        return ()
    written = list_written_tables(connection)
    return tuple(t for t in tables if config.is_selected(t.name) and t.name not in written)


def _incomplete(config: PipelineConfig, report: CoverageReport) -> NeedsOperator | None:
    if report.manageable:
        return None
    few = len(report.missing) <= _MOST_ADDED
    add = (
        f"as a superuser: {' '.join(report.remediation)}" if few else "levada check MANIFEST has the SQL that adds them"
    )
    return NeedsOperator(
        "publication_incomplete",
        f"publication {config.publication.name} lacks {listed(report.missing)}: {listed(report.blockers)}",
        hint=f"{add} Or exclude such tables in spec.tables",
    )


def _require_tables(config: PipelineConfig, tables: SourceTables, known: Iterable[QualifiedTable]) -> None:
    """Raise an error if no table is selected, unless tables of the pipeline were renamed or dropped at the source."""
    if not tables.published and tables.locked is not None:
        raise tables.locked
    if not tables.published and not any(map(config.is_selected, known)):
        raise NeedsOperator(
            "no_tables_selected",
            f"spec.tables selects no table of publication {config.publication.name} in database"
            f" {config.source.database}",
            hint="list the published tables: SELECT * FROM pg_publication_tables;",
        )


def _ensure_slot(
    config: PipelineConfig,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    record: SourceRecord,
    log: SegmentLog,
    lost: SlotLost | None,
    found: SourceTables,
    waiting: Waiting,
) -> bool:
    """Verify the server and the slot, or create the slot if no table depends on it.

    Return True if every table begins with a copy, or with a comparison. A table that is no longer published does not
    depend on the slot, because it cannot be copied again and is parked or forgotten later. A table that only a resync
    repairs does not depend on it either, because it has missed changes already.
    """
    begun = {t: Init() for t, phase in store.get_table_replication_states().items() if not isinstance(phase, Init)}
    if begun and lost is None:
        try:
            _verify(config, store, record, log, begun)
            slot_exists(store)
            return False
        except SlotLost as error:
            if error.code == codes.PUBLICATION_MISSING:
                record_missing_publication(store)
            lost = explain_missing_slot(store, error)
    if lost is not None and not config.slot.resync_when_lost:
        phases, published = store.get_table_replication_states(), {t.id for t in found.published}
        begun = {t: init for t, init in begun.items() if not needs_resync(phases[t])}
        if depend := [t for t in begun if t in published and not isinstance(at_restart(phases[t]), Init)]:
            raise SlotLost(
                lost.code,
                f"{lost.message}. Its changes are needed by {counted(len(depend), 'table')}",
                hint=f"copy them again: {RESYNC_ALL} (or set spec.source.slot.onLost: Resync). To write only the rows"
                " that differ, set spec.source.slot.onLost: Compare",
            )
    parts = {t.id: t.name for t in found.published if config.table(t.name).held_when_lost}
    held = {} if lost is None else held_parts(store, lost, parts)
    comparisons = Comparisons.after(store, lost, held) if lost is not None and config.slot.compare_when_lost else None
    # First, so that a process that ends here leaves no table that would continue from the new slot.
    store.update_table_replication_states({**begun, **held} if comparisons is None else comparisons.phases)
    status = inspect_slot(connection, config.slot.name)
    if status is not None:
        with contextlib.suppress(SlotLost):
            validate_slot(status, config.source.database)
    if lost is None and status is not None and not status.lost and status.confirmed_flush_lsn is not None:
        position = status.confirmed_flush_lsn
    else:
        # A slot that has no position is still created by the session of a process that was killed, or is no longer
        # the pipeline's. It is gone when that session ends, and nothing can be read from it before.
        unfinished = status is not None and status.confirmed_flush_lsn is None
        drop_slot(connection, config.slot.name, terminate=unfinished, check=store.require_epoch)
        position = create_guarded_slot(config, connection, waiting)
        _log.info("created slot %s at %s", config.slot.name, position)
    known = record.known_source(log).highest
    compared = comparisons is not None and comparisons.begin(store, found.publication, known, position)
    record.begin(read_server(config.source, config.slot.name).identity, position, compared=compared)
    slot_exists(store)
    return True


def _verify(
    config: PipelineConfig, store: PipelineStore, record: SourceRecord, log: SegmentLog, tables: Collection[TableId]
) -> None:
    """Raise SlotLost unless this is the server, with the history, that the tables were copied from.

    After a restart of the server its history is verified only up to a position. The tables are recorded as unverified
    until their own positions are known to lie below it, see `UnverifiedTables`.
    """
    if not record.known:
        raise SlotLost("slot_lost", f"the store has no record of slot {config.slot.name}", hint=RESYNC_ALL)
    known = record.known_source(log)
    server = read_server(config.source, config.slot.name)
    plan = plan_session(known, server, config.slot.name, config.source.database)
    if plan.verify_from is not None:
        settings = CaptureSettings(config.source, config.slot.name, config.publication.name)
        never = threading.Event()
        _wait_for_slot(lambda: verify_history(settings, known, plan.verify_from or plan.start, never))
    if server.identity != record.state.identity:
        # First, so that an engine that ends here does not take the new server for verified at its next start.
        UnverifiedTables(store).add(tables, plan.verified_to)
    record.verified(server.identity)


def _wait_for_slot(verify: Callable[[], None]) -> None:
    """Call ``verify``, again with back-off while another process uses the slot, for up to a minute.

    The WAL sender of a killed engine ends after ``wal_sender_timeout``, a minute by default.
    """
    deadline, delay_s = time.monotonic() + _SLOT_WAIT_S, 1.0
    while True:
        try:
            return verify()
        except Transient as error:
            if error.code != codes.SLOT_ACTIVE or time.monotonic() > deadline:
                raise
            _log.warning("%s, next try in %.0f s", error.message, delay_s)
        time.sleep(delay_s)
        delay_s *= 2


def _preflight_request(config: PipelineConfig) -> PreflightRequest:
    return PreflightRequest(
        slot=config.slot.name,
        publication=config.publication.name,
        managed=config.publication.managed,
        selects=config.is_selected,
        copy_tables=config.copy_tables,
        copy_connections=config.copy_connections,
        choice=config.choice,
        row_filter=config.row_filter,
        appends=config.appends,
        copied_part=lambda table: its.copy_where if (its := config.table(table)).copies_part else None,
        is_upserted=lambda table: config.table(table).mode is TableMode.UPSERT,
        ddl_trigger=config.ddl_trigger,
        named=NamedTables(config.include, config.exclude, tuple(config.tables)),
        generated_columns=config.publication.generated_columns,
    )
