"""The plan of a run: the tables that it would copy, what it would change, and how long that takes. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.estimates import TableEstimate, estimate_tables
from levada.postgres.publications import CoverageReport
from levada.postgres.rates import SourceRates, measure_rates
from levada.postgres.slots import inspect_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import pipeline_config
from levada.runtime.host.plugins import target_names
from levada.runtime.host.readiness import publication_coverage
from levada.runtime.host.stored_progress import stored_progress
from levada.runtime.resources.machine import available_cores
from levada.runtime.resources.staging import open_staging
from levada.runtime.tables.places import target_name
from levada.runtime.tables.requests import CopySettings
from levada.spec import Manifests
from levada.status import TablePhase
from levada.values import QualifiedTable

_UNKNOWN: Final = TableEstimate(None, 0, "")
_TRIED: Final = 5
"""The number of tables of which one is read. Partition roots cannot be, and small tables take no time."""
_NOT_COPIED: Final = frozenset({TablePhase.INIT.value, TablePhase.DATA_SYNC.value})


@dataclass(frozen=True, slots=True)
class PlannedTable:
    """A table of a run. ``copied`` is True if the destination has it, so that no copy begins.

    ``target`` is its name at the destination, empty if only a running destination of another package knows it.
    """

    name: QualifiedTable
    target: str
    mode: str
    estimate: TableEstimate
    copied: bool


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The plan of a run. Sizes are in bytes, times in seconds.

    ``changes`` is SQL of what is created at the source. ``copy_s`` is a lower bound of the time of all copies, None if
    the tables are too small to measure it. ``staged`` is an estimate of the changes that are staged meanwhile.
    ``staging_free`` is None for an object store.
    """

    tables: tuple[PlannedTable, ...]
    changes: tuple[str, ...]
    rates: SourceRates
    connections: int
    copy_s: float | None
    staged: int | None
    staging_free: int | None

    @property
    def to_copy(self) -> tuple[PlannedTable, ...]:
        """The tables that are copied."""
        return tuple(table for table in self.tables if not table.copied)

    @property
    def bytes(self) -> int:
        """The size of the tables that are copied."""
        return sum(table.estimate.bytes for table in self.to_copy)


def plan_run(manifests: Manifests, *, secrets: Path | None, work_dir: Path) -> RunPlan:
    """Return the plan of a run whose manifest has no problem, see `start_problems`. It takes about two seconds.

    Raise the error of the source or of the store.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    coverage = publication_coverage(manifests, secrets=secrets)
    names = sorted({*coverage.present, *coverage.missing})
    with config.source.connect(application="plan") as connection:
        estimates = estimate_tables(connection, names)
        changes = _changes(config, connection, coverage)
    known = stored_progress(manifests, secrets=secrets, work_dir=work_dir).tables
    copied = {table.table for table in known if table.phase not in _NOT_COPIED}
    tables = _tables(manifests, config, names, estimates, copied)
    to_copy = [table for table in tables if not table.copied]
    largest = sorted(to_copy, key=lambda t: -t.estimate.bytes)[:_TRIED]
    rates = measure_rates(config.source, [table.name for table in largest])
    # Each connection needs a core here and at the source, of which the number is unknown.
    connections = min(available_cores(), min(len(to_copy), config.copy_tables) * config.copy_connections)
    size = sum(table.estimate.bytes for table in to_copy)
    copy_s = None if rates.read is None else size / (rates.read * max(1, connections))
    staged = None if copy_s is None else int(rates.wal * copy_s)
    return RunPlan(tables, changes, rates, connections, copy_s, staged, open_staging(config.staging).free_bytes())


def _tables(
    manifests: Manifests,
    config: PipelineConfig,
    names: Iterable[QualifiedTable],
    estimates: Mapping[QualifiedTable, TableEstimate],
    copied: set[QualifiedTable],
) -> tuple[PlannedTable, ...]:
    targets = target_names(manifests)
    return tuple(
        PlannedTable(
            name,
            target_name(targets, name, CopySettings.of(config, name)),
            config.table(name).mode.value,
            estimates.get(name, _UNKNOWN),
            name in copied,
        )
        for name in names
    )


def _changes(config: PipelineConfig, connection: psycopg.Connection[Any], coverage: CoverageReport) -> tuple[str, ...]:
    """Return the SQL of what a run would create at the source. Its state and the DDL trigger are left out."""
    changes = list(coverage.remediation) if config.publication.managed and coverage.missing else []
    if inspect_slot(connection, config.slot.name) is None:
        create = sql.SQL("SELECT pg_create_logical_replication_slot({}, 'pgoutput');")
        changes.append(create.format(sql.Literal(config.slot.name)).as_string(None))
    return tuple(changes)
