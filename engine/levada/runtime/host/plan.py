"""The plan of a run: the tables that it would copy, what it would change, and how long that takes. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.append_publication import existing_names, read_state
from levada.postgres.estimates import TableEstimate, estimate_tables
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.publications import CoverageReport
from levada.postgres.rates import SourceRates, measure_rates
from levada.postgres.slots import inspect_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.host.approval import size_waits
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.cuts_client import stored_cuts
from levada.runtime.host.planned_modes import planned_modes
from levada.runtime.host.planned_state import (
    FormerPlace,
    LeavingTable,
    filter_statements,
    former_place,
    leaving_tables,
    missed_changes,
    withdrawn_statements,
)
from levada.runtime.host.plugins import destination_class, target_names
from levada.runtime.host.readiness import publication_coverage
from levada.runtime.host.stored_progress import stored_filters, stored_progress
from levada.runtime.host.stored_state import requested_resyncs, stored_controls
from levada.runtime.resources.machine import available_cores
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.mask_comments import with_comments
from levada.runtime.tables.places import target_name
from levada.runtime.tables.requests import (
    CopySettings,
    TableRequest,
    last_copy_settings,
    pending_request,
    settings_changed,
)
from levada.schema.masks import TableMasks
from levada.spec import Manifests
from levada.status import ErrorProgress, TablePhase
from levada.stores.interface import TableControls
from levada.values import CopiedRows, QualifiedTable, TableMode

SETTINGS_CHANGED: Final = "settings changed"
REQUESTED: Final = "requested"
SLOT_LOST: Final = "slot lost"
CHANGES_MISSED: Final = "missed changes"
_UNKNOWN: Final = TableEstimate(None, 0, "")
_UNMASKED: Final = TableMasks()
_TRIED: Final = 5
"""The number of tables of which one is read. Partition roots cannot be, and small tables take no time."""
_NOT_COPIED: Final = frozenset({TablePhase.INIT.value, TablePhase.DATA_SYNC.value})


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table of a run. ``copied`` is True if the destination has it. ``again`` is why it is copied again nevertheless:
    its settings have changed, its resync was requested, the slot is missing, or it missed changes. Empty if no copy
    begins.

    ``target`` is its name at the destination, empty if only a running destination of another package knows it. ``mode``
    is Changelog for a table without a usable key, whatever the manifest says. ``error`` is that of a parked table.
    ``former`` is the place of the last copy, if the next one has another. ``copied_rows`` are those that the next one
    takes. ``masks`` are those of the manifest and of comments at the source.
    """

    name: QualifiedTable
    target: str
    mode: str
    estimate: TableEstimate
    copied: bool
    again: str = ""
    error: ErrorProgress | None = None
    former: FormerPlace | None = None
    copied_rows: CopiedRows = CopiedRows.ALL
    masks: TableMasks = _UNMASKED

    @property
    def bytes(self) -> int:
        """The size of what a copy reads."""
        return 0 if self.copied_rows is CopiedRows.NONE else self.estimate.bytes


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run. Sizes are in bytes, times in seconds.

    ``changes`` is SQL of what is created at the source, or leaves the publication. ``copy_s`` is a lower bound of
    the time of all copies, None if the tables are too small to measure it. ``staged`` is an estimate of the changes
    that are staged meanwhile. ``staging_free`` is None for an object store. ``waits`` is True if a run needs an
    approval of the tables whose settings have changed. ``leaving`` are the tables whose state is forgotten.
    ``cuts`` is the number of cuts that tables with another place leave.
    """

    tables: tuple[PlannedTable, ...]
    changes: tuple[str, ...]
    rates: SourceRates
    connections: int
    copy_s: float | None
    staged: int | None
    staging_free: int | None
    waits: bool = False
    leaving: tuple[LeavingTable, ...] = ()
    cuts: int = 0

    @property
    def to_copy(self) -> tuple[PlannedTable, ...]:
        """The tables that are copied."""
        return tuple(table for table in self.tables if table.again or not table.copied)

    @property
    def bytes(self) -> int:
        """The size of the tables that are copied."""
        return sum(table.bytes for table in self.to_copy)

    @property
    def parked(self) -> tuple[PlannedTable, ...]:
        """The parked tables that are not copied."""
        return tuple(t for t in self.tables if t.error is not None and t.copied and not t.again)


def plan_run(manifests: Manifests, *, secrets: Path | None, work_dir: Path) -> RunPlan:
    """Return the plan of a run whose manifest has no problem, see `start_problems`. It takes about two seconds.

    Raise the error of the source or of the store.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    with SESSIONS.keeping(config.source):
        return _plan(manifests, with_comments(config), secrets, work_dir)


def _plan(manifests: Manifests, config: PipelineConfig, secrets: Path | None, work_dir: Path) -> RunPlan:
    coverage = publication_coverage(manifests, secrets=secrets)
    names = sorted({*coverage.present, *coverage.missing})
    known = stored_progress(manifests, secrets=secrets, work_dir=work_dir).tables
    copied = {table.table: table.id for table in known if table.phase not in _NOT_COPIED}
    with SESSIONS.session(config.source, "plan") as connection:
        estimates = estimate_tables(connection, names)
        changes = _changes(config, connection, coverage, copied=bool(copied))
        lost = _slot_lost(config, connection)
        published = existing_names(connection, config.publication.name, config.publication.append)
        state = read_state(connection, published, [table.id for table in known])
        modes = planned_modes(config, connection, names, upsert=destination_class(manifests).capabilities.upsert)
    controls = stored_controls(manifests, config, secrets) if copied else {}
    resyncs = requested_resyncs(manifests, config, secrets) if copied else frozenset()
    missed = {table.table: CHANGES_MISSED for table in known if missed_changes(config, table)}
    again = {
        name: _reason(config, name, controls.get(id_), id_ in resyncs) or lost or missed.get(name, "")
        for name, id_ in copied.items()
    }
    errors = {table.table: table.error for table in known if table.error is not None}
    before = {n: last for n, id_ in copied.items() if (last := last_copy_settings(controls.get(id_))) is not None}
    tables = _tables(manifests, config, names, estimates, again, modes, errors, before)
    to_copy = [table for table in tables if table.again or not table.copied]
    largest = sorted((t for t in to_copy if t.bytes), key=lambda t: -t.bytes)[:_TRIED]
    rates = measure_rates(config.source, [table.name for table in largest])
    # Each connection needs a core here and at the source, of which the number is unknown.
    connections = min(available_cores(), min(len(to_copy), config.copy_tables) * config.copy_connections)
    size = sum(table.bytes for table in to_copy)
    copy_s = None if rates.read is None else size / (rates.read * max(1, connections))
    staged = None if copy_s is None else int(rates.wal * copy_s)
    free = open_staging(config.staging).free_bytes()
    waits = _waits(manifests, tables)
    leaving = leaving_tables(config, state, known)
    changes += withdrawn_statements(config, state, known)
    changes += filter_statements(config, state, stored_filters(manifests, secrets) if copied else {}, copied)
    cuts = len(stored_cuts(manifests, secrets)) if any(table.former for table in tables) else 0
    return RunPlan(tables, changes, rates, connections, copy_s, staged, free, waits, leaving, cuts)


def _tables(
    manifests: Manifests,
    config: PipelineConfig,
    names: Sequence[QualifiedTable],
    estimates: Mapping[QualifiedTable, TableEstimate],
    again: Mapping[QualifiedTable, str],
    modes: Mapping[QualifiedTable, TableMode],
    errors: Mapping[QualifiedTable, ErrorProgress],
    before: Mapping[QualifiedTable, CopySettings],
) -> tuple[PlannedTable, ...]:
    targets = target_names(manifests)
    wanted = {name: CopySettings.of(config, name, before.get(name)) for name in names}
    return tuple(
        PlannedTable(
            name,
            target_name(targets, name, wanted[name]),
            modes[name].value,
            estimates.get(name, _UNKNOWN),
            name in again,
            again.get(name, ""),
            errors.get(name),
            former_place(manifests, before[name], wanted[name]) if again.get(name) == SETTINGS_CHANGED else None,
            wanted[name].copied_rows,
            wanted[name].masks,
        )
        for name in names
    )


def _slot_lost(config: PipelineConfig, connection: psycopg.Connection[Any]) -> str:
    """Return the reason to copy all tables again if the slot is missing or invalidated, else an empty string.

    With ``onLost: Compare`` they are compared instead.
    """
    slot = inspect_slot(connection, config.slot.name)
    copies = config.slot.resync_when_lost and not config.slot.compare_when_lost
    return SLOT_LOST if copies and (slot is None or slot.lost) else ""


def _waits(manifests: Manifests, tables: Iterable[PlannedTable]) -> bool:
    changed = [table.estimate for table in tables if table.again == SETTINGS_CHANGED]
    size = sum(its.bytes for its in changed) if all(its.current for its in changed) else None
    return bool(changed) and size_waits(manifests, size)


def _reason(config: PipelineConfig, name: QualifiedTable, controls: TableControls | None, requested: bool) -> str:
    """Return why a start copies a table again, or an empty string. ``requested`` is True after `levada resync`."""
    before = last_copy_settings(controls)
    wanted = CopySettings.of(config, name, before)
    if settings_changed(before, wanted):
        return SETTINGS_CHANGED
    request = pending_request(controls or TableControls(), before, config.table(name), wanted)
    return REQUESTED if requested or request is TableRequest.RESYNC else ""


def _changes(
    config: PipelineConfig, connection: psycopg.Connection[Any], coverage: CoverageReport, *, copied: bool
) -> tuple[str, ...]:
    """Return the SQL of what a run would create at the source. Its state and the DDL trigger are left out.

    ``copied`` is True if tables have a copy. A run does not replace a slot that they need, if onLost is Hold.
    """
    changes = list(coverage.remediation) if config.publication.managed and coverage.missing else []
    if inspect_slot(connection, config.slot.name) is None and (config.slot.resync_when_lost or not copied):
        create = sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput');")
        changes.append(create.format(sql.Literal(config.slot.name)).as_string(None))
    return tuple(changes)
