"""The phase of each table, and the time since when no driver has reported."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from levada.values import QualifiedTable
from levada_operator.decide.phase import TablePhase
from levada_operator.observe.objects import TableSyncObject, read_time
from levada_operator.observe.observed import STALE_AFTER, Observed
from levada_operator.observe.progress import TableReport


def tables_known(observed: Observed) -> bool:
    """Return True if the driver's list of tables is complete. A driver that is starting reports none yet."""
    progress = observed.fresh_progress
    return progress is not None and progress.state == "Running" and progress.connected and bool(progress.tables)


def table_phase(observed: Observed, table_sync: TableSyncObject | None, report: TableReport | None) -> TablePhase:
    """Return the engine's phase, unless the operator determines another. ``table_sync`` is None before it exists."""
    if report is not None and report.phase == TablePhase.ERRORED:
        return TablePhase.ERRORED
    if (table_sync is not None and table_sync.spec.get("suspend")) or _suspended(observed):
        return TablePhase.SUSPENDED
    if report is not None:
        known = _known(report.phase)
    elif observed.progress is not None or table_sync is None or "phase" not in table_sync.status:
        return TablePhase.REMOVED if tables_known(observed) else TablePhase.PENDING
    else:
        known = _known(table_sync.status["phase"])
    return TablePhase.STALE if known is TablePhase.READY and _stale(observed, report) else known


def table_phases(observed: Observed) -> Iterator[tuple[TableReport, TablePhase]]:
    """Yield each table that the driver last reported, with its phase."""
    table_syncs = {table_of(t): t for t in observed.table_syncs}
    for report in observed.progress.tables if observed.progress is not None else ():
        yield report, table_phase(observed, table_syncs.get(QualifiedTable(report.schema, report.name)), report)


def table_of(table_sync: TableSyncObject) -> QualifiedTable:
    """Return the table of a TableSync."""
    table = table_sync.spec.get("table", {})
    return QualifiedTable(table.get("schema", "public"), table.get("name", ""))


def unreported_since(observed: Observed) -> datetime | None:
    """Return since when no driver has reported, or None while one does. The lag at the source is then unknown."""
    if observed.fresh_progress is not None:
        return None
    if observed.progress is not None:
        return observed.progress.fetched_at
    # An operator that has just started has not fetched the progress of a ready driver yet.
    asks = observed.driver is not None and observed.driver.ready
    for last in observed.pipeline.status.get("conditions", ()):
        if last["type"] == "Replicating" and last["status"] != "True":
            since = read_time(last["lastTransitionTime"])
            return None if asks and observed.now - since < STALE_AFTER else since
    return None if asks else observed.now


def _known(phase: str) -> TablePhase:
    """Return the phase. One that only another version knows is Pending."""
    return TablePhase(phase) if phase in set(TablePhase) else TablePhase.PENDING


def _stale(observed: Observed, report: TableReport | None) -> bool:
    if unreported_since(observed) is not None:
        return True
    progress = observed.fresh_progress
    # A stream that reconnects within seconds must not change the status of thousands of tables.
    trails = report is not None and (report.lag_seconds or 0) >= STALE_AFTER.total_seconds()
    return progress is not None and not progress.connected and trails


def _suspended(observed: Observed) -> bool:
    return bool(observed.pipeline.spec.get("suspend")) and observed.driver is None
