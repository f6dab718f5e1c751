"""The source made ready: preflight, publication, tables, slot, in the order in which nothing can be lost.

Publication first, then slot, then snapshots: a change made in between is in the slot, or is in the snapshot.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import psycopg

from levada.errors import NeedsOperator, SlotLost
from levada.postgres.catalog import PublishedTable, list_tables, published_tables
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.membership import PublicationState, read_publication_state
from levada.postgres.preflight import PreflightRequest, Problem, Severity, preflight, refuse
from levada.postgres.publications import CoverageReport, ensure_coverage, leave_out_unidentified
from levada.postgres.slots import create_slot, drop_slot, inspect_slot, validate_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.lost_state import require_state
from levada.runtime.published import keep_publication, unreadable_slot
from levada.stores.interface import PipelineStore
from levada.stores.phases import Init
from levada.values import Lsn, QualifiedTable, TableId

_log = logging.getLogger(__name__)

SLOT_WORKER: Final = "slot"
"""The worker whose progress in the store no acknowledgement passes, but for what a staged segment shows."""


@dataclass(frozen=True, slots=True)
class SourceTables:
    """The tables of the source: ``published`` are selected and in the publication.

    ``publication`` covers these and all that the store knows. ``unidentified`` are selected and left out, because they
    have no replica identity. ``incomplete`` is set if the publication lacks others that cannot be added.
    """

    published: tuple[PublishedTable, ...]
    publication: PublicationState
    unidentified: tuple[QualifiedTable, ...] = ()
    incomplete: NeedsOperator | None = None


@dataclass(frozen=True, slots=True)
class SourceState:
    """The source as it was found, or made, at the start.

    ``resync``: the slot was lost, and every table is copied again.
    """

    found: SourceTables
    resync: bool

    @property
    def tables(self) -> tuple[PublishedTable, ...]:
        """Return the tables that are replicated."""
        return self.found.published


def check_source(config: PipelineConfig) -> tuple[Problem, ...]:
    """Return every problem that keeps the pipeline from running, and every warning; change nothing."""
    return preflight(config.source, _preflight_request(config))


def prepare_source(
    config: PipelineConfig,
    store: PipelineStore,
    staged: Lsn,
    found: Callable[[tuple[PublishedTable, ...]], None] = lambda tables: None,
) -> SourceState:
    """Check the source, and make the publication and the slot where they are missing.

    ``staged`` is the end of the newest segment; ``found`` is handed the tables before the slot is looked at.
    Raise NeedsOperator ``preflight_failed`` with every problem at once; SlotLost when the slot is gone, or was moved by
    somebody else, while tables depend on it and the policy is to hold. NeedsOperator ``store_empty`` when the store has
    lost the pipeline's state and the policy is to hold.
    """
    problems = check_source(config)
    for problem in problems:
        if problem.severity is Severity.WARNING:
            _log.warning("%s [%s]", problem.message, problem.code)
    refuse(problems)
    with config.source.connect(application="start") as connection:
        slot = inspect_slot(connection, config.slot.name)
        require_state(config, store, slot, staged, worker=SLOT_WORKER)
        tables = discover(config, connection, store.get_table_replication_states())
        _require_tables(config, tables)
        found(tables.published)
        install_ddl_trigger(connection)
        resync = _ensure_slot(config, connection, store, staged, unreadable_slot(connection, store, tables.publication))
        keep_publication(store, tables.publication)
        return SourceState(tables, resync)


def discover(config: PipelineConfig, connection: psycopg.Connection[Any], known: Collection[TableId]) -> SourceTables:
    """Return the tables of the source, after the publication was made to cover them if it is managed.

    ``known`` are the tables of which the store has state.
    """
    name = config.publication.name
    unidentified: tuple[QualifiedTable, ...] = ()
    incomplete = None
    if config.publication.managed:
        selected = {t for t in list_tables(connection) if config.selects(t)}
        required, unidentified = leave_out_unidentified(connection, name, selected)
        if required:
            incomplete = _incomplete(config, ensure_coverage(connection, name, required, manage=True))
    published = _published(config, connection)
    tables = {*known, *(t.id for t in published)}
    state = read_publication_state(connection, name, tables)
    return SourceTables(published, state, unidentified, incomplete)


def _published(config: PipelineConfig, connection: psycopg.Connection[Any]) -> tuple[PublishedTable, ...]:
    try:
        tables = published_tables(connection, config.publication.name)
    except NeedsOperator as error:
        if error.code != "publication_missing":
            raise
        return ()
    return tuple(t for t in tables if config.selects(t.name))


def _incomplete(config: PipelineConfig, report: CoverageReport) -> NeedsOperator | None:
    if report.satisfied or report.manageable:
        return None
    return NeedsOperator(
        "publication_incomplete",
        f"publication {config.publication.name} lacks {', '.join(map(str, report.missing))}:"
        f" {'; '.join(report.blockers)}",
        hint="; ".join(report.remediation),
    )


def _require_tables(config: PipelineConfig, tables: SourceTables) -> None:
    if tables.incomplete is not None:
        raise tables.incomplete
    if not tables.published:
        raise NeedsOperator(
            "no_tables_selected",
            f"spec.tables selects no table of publication {config.publication.name} in database"
            f" {config.source.database}",
            hint="list what is published: SELECT * FROM pg_publication_tables;",
        )


def _ensure_slot(
    config: PipelineConfig,
    connection: psycopg.Connection[Any],
    store: PipelineStore,
    staged: Lsn,
    unreadable: SlotLost | None,
) -> bool:
    """Make the slot if it is not there; return whether what was copied before it is void."""
    begun = sum(not isinstance(phase, Init) for phase in store.get_table_replication_states().values())
    status = inspect_slot(connection, config.slot.name)
    known = store.get_replication_progress(SLOT_WORKER)
    if status is not None and unreadable is not None:
        trouble = f"cannot be read: {unreadable.message}"
    elif status is not None and not status.lost:
        validate_slot(status, config.source.database)
        confirmed = status.confirmed_flush_lsn or Lsn(0)
        if not begun or known is None or confirmed <= max(known, staged):
            return False
        trouble = f"is at {confirmed}, though it was never told more than {max(known, staged)}: somebody moved it"
    else:
        trouble = "is missing" if status is None else "is invalidated"
    if begun and not config.slot.resync_when_lost:
        raise SlotLost(
            "slot_lost",
            f"slot {config.slot.name} {trouble}; {begun} tables depend on it, and changes are gone",
            hint="copy them again: levada resync MANIFEST --all (or set spec.source.slot.onLost: Resync)",
        )
    if status is not None:
        with contextlib.suppress(SlotLost):
            validate_slot(status, config.source.database)
        drop_slot(connection, config.slot.name)
    lsn = create_slot(connection, config.slot.name, failover=config.slot.failover)
    store.delete_replication_progress(SLOT_WORKER)
    store.upsert_replication_progress(SLOT_WORKER, lsn)
    _log.info("created slot %s at %s", config.slot.name, lsn)
    return bool(begun)


def _preflight_request(config: PipelineConfig) -> PreflightRequest:
    return PreflightRequest(
        slot=config.slot.name,
        publication=config.publication.name,
        managed=config.publication.managed,
        selects=config.selects,
        copy_tables=config.copy_tables,
        excluded_columns=lambda table: config.table(table).excluded_columns,
    )
