"""A TableSync's status, from the driver's report about its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from levada.printable import counted
from levada.status import (
    CopyProgress,
    ErrorProgress,
    ProofProgress,
    ResyncProgress,
    ResyncStep,
    RetryPolicy,
    TableProgress,
    VerifiedProgress,
    utc_text,
)
from levada.values import CopiedRows
from levada_operator.decide.conditions import Condition, conditions_json, stored_condition, timestamp
from levada_operator.decide.phase import CATCHING_UP, COPYING, TableSyncPhase
from levada_operator.decide.rounding import (
    count_text,
    rounded_bytes,
    rounded_rows,
    rounded_seconds,
    seconds_text,
)
from levada_operator.decide.table_phase import table_of, table_phase, unreported_since
from levada_operator.names import copy_name, exec_prefix
from levada_operator.observe.creation import CreationFailure, creation_text
from levada_operator.observe.objects import ObjectKey, TableSyncObject
from levada_operator.observe.observed import Observed
from levada_operator.observe.progress import error_text

_KEPT_UNREPORTED: Final = (
    "destinationTable",
    "mode",
    "copiedRows",
    "appliedLsn",
    "retryNonce",
    "resyncNonce",
    "verifyNonce",
    "verified",
    "proof",
    "sourceBytes",
)
"""Fields that keep their value while the driver does not report the table."""


def table_status(
    observed: Observed, table_sync: TableSyncObject, report: TableProgress | None, conditions: Sequence[Condition]
) -> dict[str, Any]:
    """Return the complete status. ``report`` is None for a table that the driver does not report."""
    before, table = table_sync.status, table_of(table_sync)
    phase = table_phase(observed, table_sync, report)
    copy = _copy(phase, report.copy if report else None, before.get("copy"))
    shown = _resync_copy(report) or copy
    lag = _lag(observed, phase, report)
    status: dict[str, Any] = {
        "observedGeneration": table_sync.generation,
        "phase": phase.value,
        "display": {
            "table": f"{table.schema}.{table.name}",
            "copied": _copied(shown, before.get("copiedRows", "") if report is None else report.copied_rows),
            "rows": count_text(shown.get("rows", 0)) if shown else "",
            "lag": seconds_text(lag),
            "left": (seconds_text(shown.get("secondsLeft")) if shown else "") or _left(phase, report),
        },
        "conditions": conditions_json(conditions, before.get("conditions", ()), table_sync.generation, observed.now),
    }
    if copy:
        status["copy"] = copy
    if report is None:
        kept = {k: before[k] for k in _KEPT_UNREPORTED if k in before}
        return status | kept | ({"lagSeconds": lag} if lag is not None else {})
    fields = {
        "destinationTable": report.destination_table,
        "mode": str(report.mode),
        "note": report.note,
        "copiedRows": str(report.copied_rows),
        "appliedLsn": None if report.applied_lsn is None else str(report.applied_lsn),
        "lagSeconds": lag,
        "sourceBytes": before.get("sourceBytes") if report.source_bytes is None else rounded_bytes(report.source_bytes),
    }
    status |= {key: value for key, value in fields.items() if value not in (None, "")}
    # Nonces are 0 for a new table, and omitted then.
    nonces = {"retryNonce": report.retry_nonce, "resyncNonce": report.resync_nonce}
    nonces["verifyNonce"] = report.verify_nonce
    status |= {name: nonce for name, nonce in nonces.items() if nonce}
    if report.verified is not None:
        status["verified"] = _verified(report.verified)
    if report.proof is not None:
        status["proof"] = _proof(report.proof)
    if report.resync is not None:
        status["resync"] = _resync(report.resync)
    if report.error is not None:
        status["error"] = _error(report.error)
    if report.copied_again is not None:
        status["copiedAgain"] = {"code": report.copied_again.code, "reason": report.copied_again.reason}
    return status


def table_ready(
    observed: Observed, table_sync: TableSyncObject, report: TableProgress | None, accepted: Condition
) -> Condition:
    """Return the condition Ready. ``accepted`` is the TableSync's condition Accepted."""
    of, phase = "Ready", table_phase(observed, table_sync, report)
    if phase is TableSyncPhase.ERRORED and report is not None and report.error is not None:
        return Condition(of, False, "TableDiffers" if report.differs else "Errored", error_text(report.error))
    if phase is TableSyncPhase.SUSPENDED:
        return Condition(of, False, "Suspended")
    if report is not None and (failure := _copy_refused(observed, report)) is not None:
        return Condition(of, False, "PodRefused", creation_text(failure, observed.pipeline.namespace))
    if phase is TableSyncPhase.REMOVED:
        return Condition(of, False, "NotSelected", "the Pipeline does not replicate this table")
    if phase is TableSyncPhase.PENDING:
        return Condition(of, None, "NotReported")
    if phase is TableSyncPhase.STALE:
        ask = f"kubectl describe pipeline {observed.pipeline.name} -n {observed.pipeline.namespace}"
        return Condition(of, False, "NotReplicating", f"no changes are read from the source or applied; see: {ask}")
    if phase is TableSyncPhase.READY:
        return Condition(of, True, "Streaming")
    if phase is TableSyncPhase.INIT and accepted.status is False:
        return Condition(of, False, "NotAccepted", "the table is not copied before this TableSync is accepted")
    return Condition(of, False, "CatchingUp" if phase in CATCHING_UP else "InitialCopy")


def of_generation(
    ready: Condition, table_sync: TableSyncObject, accepted: Condition, update: str, *, waits: bool
) -> Condition:
    """Return the condition Ready for the newest generation of a TableSync, or as one that trails it.

    ``update`` is why the driver does not run the accepted manifest yet, or empty. ``waits`` is True if the change waits
    for an approval.
    """
    stored = {c["type"]: c.get("observedGeneration") for c in table_sync.status.get("conditions", ())}
    if accepted.status is False or waits:
        return replace(ready, trails=True)
    if not update or stored.get("Ready") == table_sync.generation:
        return ready
    if ready.status:
        ready = Condition("Ready", False, "Updating", update)
    return replace(ready, trails=True)


def table_stalled(ready: Condition, accepted: Condition, report: TableProgress | None) -> list[Condition]:
    """Return the condition Stalled for a table that only a person can help, else nothing."""
    if accepted.status is False and accepted.reason != "NoPipeline":
        return [Condition("Stalled", True, accepted.reason, accepted.message)]
    error = None if report is None else report.error
    failed = ready.reason in ("Errored", "TableDiffers")
    if failed and error is not None and error.retry_policy != RetryPolicy.TIMED_RETRY:
        return [Condition("Stalled", True, ready.reason, ready.message)]
    return []


def table_verified(observed: Observed, table_sync: TableSyncObject, report: TableProgress | None) -> Condition:
    """Return the condition Verified: True if the last comparison with the source found no difference.

    Without a report, return the stored condition.
    """
    of = "Verified"
    if report is None:
        return stored_condition(of, table_sync.status)
    found = report.verified
    if found is not None and not found.equal:
        what = counted(found.differences, "key") if found.differences or not found.problem else "the table"
        problem = f": {found.problem}" if found.problem else ""
        message = f"at {found.lsn} {what} differed from the source{problem}"
        in_pod = exec_prefix(observed.pipeline.namespace, observed.pipeline.name)
        ask = f"{in_pod} levada verify --table {report.table.argument}"
        return Condition(of, False, "Different", f"{message}; see: {ask}")
    if report.verify_error is not None:
        return Condition(of, None, "NotComparable", error_text(report.verify_error))
    if found is None:
        return Condition(of, None, "NotCompared")
    return Condition(of, True, "Repaired" if found.repaired else "Equal")


def _copied(copy: dict[str, Any] | None, rows: str) -> str:
    """Return how much of the table is copied, and whether that is a part of its rows."""
    if rows == CopiedRows.NONE:
        return "no rows"
    done = f"{copy.get('percent', 0)}%" if copy else ""
    return f"{done} of a part" if done and rows == CopiedRows.PART else done


def _left(phase: TableSyncPhase, report: TableProgress | None) -> str:
    """Return the time until the table has caught up. Empty if it has, or if that is not known."""
    if report is None or report.catch_up is None or phase not in (TableSyncPhase.READY, *CATCHING_UP):
        return ""
    left = report.catch_up.seconds_left
    return "never" if left is None else seconds_text(rounded_seconds(left)) if left else ""


def _copy_refused(observed: Observed, report: TableProgress) -> CreationFailure | None:
    """Return the failure to create the pod of the table's dedicated copy, or None if there is none."""
    job = copy_name(observed.pipeline.name, report.schema, report.name, report.copy_order)
    return observed.creation_failures.get(ObjectKey("Job", job)) if report.copy_order else None


def _lag(observed: Observed, phase: TableSyncPhase, report: TableProgress | None) -> int | None:
    """Return the age of the oldest change that may be missing at the destination. It grows while no driver reports."""
    since = unreported_since(observed)
    if since is None or phase not in (TableSyncPhase.STALE, TableSyncPhase.SUSPENDED):
        return rounded_seconds(report.lag_seconds) if report else None
    silent_s = (observed.now - since).total_seconds()
    return rounded_seconds(silent_s + ((report.lag_seconds or 0.0) if report else 0.0))


def _resync_copy(report: TableProgress | None) -> dict[str, Any] | None:
    """Return the progress of a shadow copy, or None if none is waiting or being copied. The table stays readable."""
    if report is None or report.resync is None or report.resync.step not in (ResyncStep.WAITING, ResyncStep.COPYING):
        return None
    return _copy(TableSyncPhase.DATA_SYNC, report.resync.copy, None)


def _copy(phase: TableSyncPhase, copy: CopyProgress | None, before: dict[str, Any] | None) -> dict[str, Any] | None:
    if copy is None and phase in COPYING:
        # The size of the previous copy does not apply to one that has not begun.
        return {"rows": 0, "bytes": 0, "percent": 0}
    if copy is None:
        return before
    if phase not in COPYING and copy.percent >= 100 and not copy.rows and before:
        # A driver that started after the copy finished does not know its size.
        return before | {"percent": 100}
    fields: dict[str, Any] = {
        "rows": rounded_rows(copy.rows),
        "bytes": rounded_bytes(copy.bytes),
        "percent": int(copy.percent),
        "rowsPerSecond": rounded_rows(int(copy.rows_per_second)) or None,
        "secondsLeft": rounded_seconds(copy.seconds_left) if copy.percent < 100 else None,
    }
    if copy.ranges and phase is not TableSyncPhase.READY:
        fields |= {
            "ranges": copy.ranges,
            "rangesFinished": copy.ranges_finished,
            "resumable": copy.resumable,
            "note": copy.note or None,
        }
    return {key: value for key, value in fields.items() if value is not None}


def _proof(proof: ProofProgress) -> dict[str, Any]:
    """Return what changes once in a pass, because each write of a status is a write of the API server."""
    times = {} if proof.oldest is None else {"oldest": timestamp(proof.oldest)}
    return {**times, "differences": proof.differences, **({"problem": proof.problem} if proof.problem else {})}


def _verified(verified: VerifiedProgress) -> dict[str, Any]:
    return {
        "at": timestamp(verified.at),
        "lsn": str(verified.lsn),
        "rows": verified.rows,
        "equal": verified.equal,
        "differences": verified.differences,
    }


def _resync(resync: ResyncProgress) -> dict[str, Any]:
    fields: dict[str, Any] = {"step": str(resync.step)}
    if resync.copy is not None:
        fields["copy"] = _copy(TableSyncPhase.DATA_SYNC, resync.copy, None)
    if resync.error is not None:
        fields["message"] = error_text(resync.error)
    return fields


def _error(error: ErrorProgress) -> dict[str, Any]:
    fields = {
        "code": error.code,
        "reason": error.reason,
        "solution": error.solution,
        "retryPolicy": str(error.retry_policy),
        "attempts": error.attempts,
    }
    return fields | ({"nextRetry": utc_text(error.next_retry)} if error.next_retry else {})
