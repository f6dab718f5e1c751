"""Snapshots of progress for tests, made by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from levada.status import (
    CaptureProgress,
    CopyProgress,
    CutPhase,
    CutProgress,
    CutsProgress,
    ErrorProgress,
    GuardAction,
    GuardMeasure,
    GuardPolicy,
    GuardProgress,
    MemoryProgress,
    PassedLimit,
    PipelineState,
    Progress,
    ProofProgress,
    SlotProgress,
    StagingProgress,
    TableProgress,
    VerifiedProgress,
)
from levada.values import Lsn, TableId

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


def seconds(count: float) -> datetime:
    """Return a time that many seconds after noon."""
    return NOON + timedelta(seconds=count)


def error(**changes: Any) -> ErrorProgress:
    """Return an error that needs a manual retry."""
    fields: dict[str, Any] = {
        "code": "no_replica_identity",
        "reason": "public.orders has no key",
        "solution": "ALTER TABLE public.orders REPLICA IDENTITY FULL",
        "retry_policy": "ManualRetry",
        "attempts": 3,
    }
    return ErrorProgress(**{**fields, **changes})


def copying(**changes: Any) -> CopyProgress:
    """Return a copy that is at its half."""
    fields: dict[str, Any] = {
        "rows": 500,
        "bytes": 64_000,
        "total_rows": 1000,
        "total_bytes": 128_000,
        "percent": 50.0,
        "rows_per_second": 100.0,
        "seconds_left": 5.0,
    }
    return CopyProgress(**{**fields, **changes})


def table(name: str = "orders", **changes: Any) -> TableProgress:
    """Return a table that streams and has applied all."""
    fields: dict[str, Any] = {
        "id": TableId(16_384 + len(name)),
        "schema": "public",
        "name": name,
        "phase": "Ready",
        "mode": "Upsert",
        "note": "",
        "copy": None,
        "applied_lsn": Lsn(2000),
        "lag_seconds": 0.0,
        "pending_segments": 0,
        "pending_rows": 0,
        "staged_bytes": 0,
        "rows_applied": 100,
        "last_apply_seconds": 0.25,
        "last_commit_at": NOON,
        "unrepresentable": 0,
        "error": None,
    }
    return TableProgress(**{**fields, **changes})


def slot(**changes: Any) -> SlotProgress:
    """Return a healthy slot with nothing unread."""
    fields: dict[str, Any] = {
        "name": "levada_shop",
        "lag_bytes": 0,
        "retained_bytes": 4096,
        "wal_status": "reserved",
        "safe_wal_bytes": 1 << 30,
        "active": True,
        "sampled_at": NOON,
    }
    return SlotProgress(**{**fields, **changes})


def capture(**changes: Any) -> CaptureProgress:
    """Return a stream that has received, staged and acknowledged the same."""
    fields: dict[str, Any] = {
        "connected": True,
        "received_lsn": Lsn(2000),
        "staged_lsn": Lsn(2000),
        "acknowledged_lsn": Lsn(2000),
        "rows": 100,
        "transactions": 10,
        "rows_per_second": 12.0,
        "error": None,
    }
    return CaptureProgress(**{**fields, **changes})


def guard() -> GuardProgress:
    """Return a guard with one passed limit, for which a table was parked."""
    measure, policy = GuardMeasure.STAGED, GuardPolicy.PARK_SLOWEST
    passed = PassedLimit(measure=measure, policy=policy, limit=2**30, value=2**31, since=NOON)
    return GuardProgress(policy, True, (passed,), (GuardAction(measure, policy, NOON, "orders is parked"),))


def cuts() -> CutsProgress:
    """Return cuts with a complete one, and one that lacks a table."""
    last = CutProgress(
        name="levada_cut_20260131T110000Z",
        phase=CutPhase.COMPLETE,
        lsn=Lsn(1000),
        at=seconds(-3600),
        committed_at=seconds(-3601),
        tables=3,
        tagged=3,
        scheduled=True,
    )
    pending = CutProgress(
        name="mönthly",
        phase=CutPhase.PENDING,
        lsn=Lsn(2000),
        at=NOON,
        tables=3,
        tagged=1,
        left_out=("public.orders: suspended",),
    )
    return CutsProgress(every_seconds=3600, kept=2, last_complete=last, pending=pending)


def verified(**changes: Any) -> VerifiedProgress:
    """Return a verification that found two keys."""
    fields = {"at": NOON, "lsn": Lsn(255), "rows": 1000, "equal": False, "differences": 2}
    return VerifiedProgress(**{**fields, **changes})


def proof(**changes: Any) -> ProofProgress:
    """Return a comparison by ranges whose second pass is under way."""
    fields = {"oldest": NOON - timedelta(days=7), "began": NOON, "rows": 90, "source_seconds": 1.5, "differences": 3,
              "at": NOON, "range_rows": 40, "range_seconds": 0.5}  # fmt: skip
    return ProofProgress(**{**fields, **changes})


def progress(*tables: TableProgress, **changes: Any) -> Progress:
    """Return a pipeline that runs."""
    fields: dict[str, Any] = {
        "pipeline": "shop",
        "epoch": 3,
        "state": PipelineState.RUNNING,
        "started_at": NOON - timedelta(hours=1),
        "at": NOON,
        "slot": slot(),
        "capture": capture(),
        "staging": StagingProgress(durable=True, segments=2, bytes=2048, free_bytes=4096),
        "memory": MemoryProgress(budget_bytes=1 << 30, used_bytes=1 << 20, waiting=True),
        "tables": tables or (table(),),
    }
    return Progress(**{**fields, **changes})
