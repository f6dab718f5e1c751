"""The phase of each table, and the time since when no driver has reported."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from levada.status import PipelineState, TableProgress
from levada.values import QualifiedTable
from levada_operator.decide.phase import TableSyncPhase
from levada_operator.observe.mappings import mapping_in
from levada_operator.observe.objects import TableSyncObject, read_time
from levada_operator.observe.observed import STALE_AFTER, Observed


def tables_known(observed: Observed) -> bool:
    """Return True if the driver's list of tables is complete. A driver that is starting reports none yet."""
    progress = observed.fresh_progress
    if progress is None or not progress.tables:
        return False
    return progress.state == PipelineState.RUNNING and progress.capture.connected


def table_phase(observed: Observed, table_sync: TableSyncObject | None, report: TableProgress | None) -> TableSyncPhase:
    """Return the engine's phase, unless the operator determines another. ``table_sync`` is None before it exists."""
    if report is not None and report.phase == TableSyncPhase.ERRORED:
        return TableSyncPhase.ERRORED
    if (table_sync is not None and table_sync.spec.get("suspend")) or _suspended(observed):
        return TableSyncPhase.SUSPENDED
    if report is not None:
        known = _known(report.phase)
    elif observed.progress is not None or table_sync is None or "phase" not in table_sync.status:
        return TableSyncPhase.REMOVED if tables_known(observed) else TableSyncPhase.PENDING
    else:
        known = _known(table_sync.status["phase"])
    return TableSyncPhase.STALE if known is TableSyncPhase.READY and _stale(observed, report) else known


def table_phases(observed: Observed) -> Iterator[tuple[TableProgress, TableSyncPhase]]:
    """Yield each table that the driver last reported, with its phase."""
    table_syncs = {table_of(t): t for t in observed.table_syncs}
    for report in observed.progress.tables if observed.progress is not None else ():
        yield report, table_phase(observed, table_syncs.get(QualifiedTable(report.schema, report.name)), report)


def table_of(table_sync: TableSyncObject) -> QualifiedTable:
    """Return the table of a TableSync, whose spec may be invalid."""
    table = mapping_in(table_sync.spec, "table")
    return QualifiedTable(str(table.get("schema", "public")), str(table.get("name", "")))


def unreported_since(observed: Observed) -> datetime | None:
    """Return since when no driver has reported, or None while one does. The lag at the source is then unknown."""
    if observed.fresh_progress is not None:
        return None
    if observed.report is not None:
        return observed.report.fetched_at
    # An operator that has just started has not fetched the progress of a ready driver yet.
    asks = observed.driver is not None and observed.driver.ready
    for last in observed.pipeline.status.get("conditions", ()):
        if last["type"] == "Replicating" and last["status"] != "True":
            since = read_time(last["lastTransitionTime"])
            # either way: a condition's time of the future is replaced
            return None if asks and observed.now - since < STALE_AFTER else since
    return None if asks else observed.now


def _known(phase: str) -> TableSyncPhase:
    """Return the phase. One that only another version knows is Pending."""
    return TableSyncPhase(phase) if phase in set(TableSyncPhase) else TableSyncPhase.PENDING


def _stale(observed: Observed, report: TableProgress | None) -> bool:
    if unreported_since(observed) is not None:
        return True
    progress = observed.fresh_progress
    # A stream that reconnects within seconds must not change the status of thousands of tables.
    trails = report is not None and (report.lag_seconds or 0) >= STALE_AFTER.total_seconds()
    return trails and progress is not None and (not progress.capture.connected or progress.store.error is not None)


def _suspended(observed: Observed) -> bool:
    return bool(observed.pipeline.spec.get("suspend")) and observed.driver is None
