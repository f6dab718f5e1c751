"""A TableSync's status, from what the driver tells of its table."""

from __future__ import annotations

from typing import Any, Final

from levada_operator.decide.conditions import Condition, conditions_json
from levada_operator.decide.phase import CATCHING_UP, TablePhase
from levada_operator.decide.rounding import (
    count_text,
    rounded_bytes,
    rounded_rows,
    rounded_seconds,
    seconds_text,
)
from levada_operator.observe.objects import TableSyncObject
from levada_operator.observe.observed import Observed
from levada_operator.observe.progress import CopyReport, ErrorReport, ResyncReport, TableReport

_KEPT: Final = ("destinationTable", "mode", "appliedLsn", "retryNonce", "resyncNonce")
"""Fields that stay while the driver does not report the table."""


def table_status(
    observed: Observed, table_sync: TableSyncObject, report: TableReport | None, conditions: tuple[Condition, ...]
) -> dict[str, Any]:
    """Return the whole status. ``report`` is None for a table that the driver does not tell of."""
    before, table = table_sync.status, table_sync.spec.get("table", {})
    copy = _copy(report.copy if report else None, before.get("copy"))
    lag = rounded_seconds(report.lag_seconds) if report else None
    status: dict[str, Any] = {
        "observedGeneration": table_sync.generation,
        "phase": table_phase(observed, table_sync, report).value,
        "display": {
            "table": f"{table.get('schema', 'public')}.{table.get('name', '')}",
            "copied": f"{copy['percent']}%" if copy else "",
            "rows": count_text(copy["rows"]) if copy else "",
            "lag": seconds_text(lag),
            "left": seconds_text(copy.get("secondsLeft")) if copy else "",
        },
        "conditions": conditions_json(conditions, before.get("conditions", ()), table_sync.generation, observed.now),
    }
    if copy:
        status["copy"] = copy
    if report is None:
        return status | {k: before[k] for k in _KEPT if k in before}
    told = {
        "destinationTable": report.destination_table,
        "mode": report.mode,
        "note": report.note,
        "appliedLsn": report.applied_lsn,
        "lagSeconds": lag,
    }
    status |= {key: value for key, value in told.items() if value not in (None, "")}
    # 0 is what every table begins with.
    nonces = {"retryNonce": report.retry_nonce, "resyncNonce": report.resync_nonce}
    status |= {name: nonce for name, nonce in nonces.items() if nonce}
    if report.resync is not None:
        status["resync"] = _resync(report.resync)
    if report.error is not None:
        status["error"] = _error(report.error)
    return status


def table_phase(observed: Observed, table_sync: TableSyncObject, report: TableReport | None) -> TablePhase:
    """Return the engine's phase, or what the operator makes of its silence."""
    if report is not None and report.phase == TablePhase.ERRORED:
        return TablePhase.ERRORED
    if table_sync.spec.get("suspend"):
        return TablePhase.SUSPENDED
    if report is None:
        known = table_sync.status.get("phase")
        if observed.progress is None and known:
            return TablePhase(known)
        return TablePhase.REMOVED if settled(observed) else TablePhase.PENDING
    return TablePhase(report.phase) if report.phase in set(TablePhase) else TablePhase.PENDING


def settled(observed: Observed) -> bool:
    """Tell whether the driver's list of tables is whole: one that starts has none yet, and that means nothing."""
    progress = observed.fresh
    return progress is not None and progress.state == "Running" and progress.connected and bool(progress.tables)


def table_ready(observed: Observed, table_sync: TableSyncObject, report: TableReport | None) -> Condition:
    """Return the condition Ready."""
    of, phase = "Ready", table_phase(observed, table_sync, report)
    if phase is TablePhase.ERRORED and report is not None and report.error is not None:
        return Condition(of, False, "Errored", _message(report.error))
    if phase is TablePhase.SUSPENDED:
        return Condition(of, False, "Suspended")
    if phase is TablePhase.REMOVED:
        return Condition(of, False, "NotSelected", "the Pipeline does not replicate this table")
    if phase is TablePhase.PENDING:
        return Condition(of, None, "NotReported")
    if phase is TablePhase.READY:
        return Condition(of, True, "Streaming")
    return Condition(of, False, "CatchingUp" if phase in CATCHING_UP else "InitialCopy")


def _copy(copy: CopyReport | None, before: dict[str, Any] | None) -> dict[str, Any] | None:
    if copy is None:
        return before
    if copy.percent >= 100 and not copy.rows and before:
        # A driver that found the copy finished does not know how large it was.
        return before | {"percent": 100}
    told = {
        "rows": rounded_rows(copy.rows),
        "bytes": rounded_bytes(copy.bytes),
        "percent": int(copy.percent),
        "secondsLeft": rounded_seconds(copy.seconds_left) if copy.percent < 100 else None,
    }
    return {key: value for key, value in told.items() if value is not None}


def _resync(resync: ResyncReport) -> dict[str, Any]:
    told: dict[str, Any] = {"step": resync.step}
    if (copy := _copy(resync.copy, None)) is not None:
        told["copy"] = copy
    if resync.error is not None:
        told["message"] = _message(resync.error)
    return told


def _error(error: ErrorReport) -> dict[str, Any]:
    told = {
        "code": error.code,
        "reason": error.reason,
        "solution": error.solution,
        "retryPolicy": error.retry_policy,
        "attempts": error.attempts,
    }
    return told | ({"nextRetry": error.next_retry} if error.next_retry else {})


def _message(error: ErrorReport) -> str:
    return f"{error.reason} [{error.code}]" + (f"; {error.solution}" if error.solution else "")
