"""A snapshot of how far the pipeline has come: what `/v1/progress`, `/metrics`, the CLI and the operator read.

Answers the three questions in one place: will it fill my disk (``slot.retainedBytes``, ``staging``), is it right
(``tables[].error``, ``state``), when will it be done (``tables[].copy.secondsLeft``, ``tables[].lagSeconds``).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from levada.copy.progress import CopyProgress as CopyProgress
from levada.runtime.job import Job
from levada.values import Lsn, QualifiedTable, TableId

PROGRESS_VERSION: Final = 1


class PipelineState(StrEnum):
    """What the process as a whole is doing."""

    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ErrorProgress:
    """An error as a user sees it. ``next_retry`` is None where somebody must ask for the retry."""

    code: str
    reason: str
    solution: str
    retry_policy: str
    attempts: int
    next_retry: datetime | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "code": self.code,
            "reason": self.reason,
            "solution": self.solution,
            "retryPolicy": self.retry_policy,
            "attempts": self.attempts,
            "nextRetry": _time(self.next_retry),
        }


@dataclass(frozen=True, slots=True)
class ResyncProgress:
    """A copy that is made beside its table, which goes on meanwhile.

    ``step`` is Waiting, Copying or CatchingUp, and GivenUp after an ``error`` that nothing mends; otherwise the error
    is that of the last try. ``pending_rows`` were staged since the copy's snapshot and wait to be applied to it.
    """

    step: str
    copy: CopyProgress | None
    pending_rows: int
    error: ErrorProgress | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "step": self.step,
            "copy": None if self.copy is None else self.copy.to_json(),
            "pendingRows": self.pending_rows,
            "error": None if self.error is None else self.error.to_json(),
        }


@dataclass(frozen=True, slots=True)
class TableProgress:
    """One table. ``lag_seconds`` is the age of the oldest change that is not at the destination, 0 without one.

    While no changes can be read, it is at least the time since then: what waits at the source is not known.

    ``rows_applied`` counts row changes since this process began; ``staged_bytes`` waits for this table's apply.
    """

    id: TableId
    table: QualifiedTable
    phase: str
    mode: str
    """What the destination's table holds: Upsert or Changelog."""
    note: str
    """Why the mode is not the one asked for, or why the source refuses changes of the table, else empty."""
    copy: CopyProgress | None
    applied_lsn: Lsn | None
    lag_seconds: float | None
    pending_segments: int
    pending_rows: int
    staged_bytes: int
    rows_applied: int
    last_apply_seconds: float | None
    last_commit_at: datetime | None
    unrepresentable: int
    """Values that became NULL under `onUnrepresentable: Null` since this process began."""
    error: ErrorProgress | None
    suspended: bool = False
    retry_nonce: int = 0
    """The value of `retryNonce` that was acted on last."""
    resync_nonce: int = 0
    """The value of `resyncNonce` that was acted on last."""
    resync: ResyncProgress | None = None
    copy_order: str = ""
    """What tells the copy apart that another process is to make, or makes; empty for none."""
    job: Job | None = None
    """The job that has the table now."""
    job_since: datetime | None = None
    destination_table: str = ""
    """The table's name at the destination, empty if the destination has none for it."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "id": int(self.id),
            "schema": self.table.schema,
            "name": self.table.name,
            "phase": self.phase,
            "destinationTable": self.destination_table,
            "mode": self.mode,
            "note": self.note,
            "copy": None if self.copy is None else self.copy.to_json(),
            "appliedLsn": None if self.applied_lsn is None else str(self.applied_lsn),
            "lagSeconds": None if self.lag_seconds is None else round(self.lag_seconds, 3),
            "pendingSegments": self.pending_segments,
            "pendingRows": self.pending_rows,
            "stagedBytes": self.staged_bytes,
            "rowsApplied": self.rows_applied,
            "lastApplySeconds": None if self.last_apply_seconds is None else round(self.last_apply_seconds, 3),
            "lastCommitAt": _time(self.last_commit_at),
            "unrepresentable": self.unrepresentable,
            "suspended": self.suspended,
            "retryNonce": self.retry_nonce,
            "resyncNonce": self.resync_nonce,
            "resync": None if self.resync is None else self.resync.to_json(),
            "copyOrder": self.copy_order,
            "job": "" if self.job is None else self.job.value,
            "jobSince": _time(self.job_since),
            "error": None if self.error is None else self.error.to_json(),
        }


@dataclass(frozen=True, slots=True)
class SlotProgress:
    """The slot, as sampled at ``sampled_at``. All sizes in bytes; None where the server does not tell."""

    name: str
    lag_bytes: int | None
    retained_bytes: int | None
    wal_status: str | None
    safe_wal_bytes: int | None
    active: bool | None
    sampled_at: datetime | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "name": self.name,
            "lagBytes": self.lag_bytes,
            "retainedBytes": self.retained_bytes,
            "walStatus": self.wal_status,
            "safeWalBytes": self.safe_wal_bytes,
            "active": self.active,
            "sampledAt": _time(self.sampled_at),
        }


@dataclass(frozen=True, slots=True)
class CaptureProgress:
    """Reading the WAL. Positions are None before the stream is open; ``rows`` counts since this process began."""

    connected: bool
    received_lsn: Lsn | None
    staged_lsn: Lsn | None
    acknowledged_lsn: Lsn | None
    rows: int
    transactions: int
    rows_per_second: float
    error: ErrorProgress | None

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "connected": self.connected,
            "receivedLsn": _lsn(self.received_lsn),
            "stagedLsn": _lsn(self.staged_lsn),
            "acknowledgedLsn": _lsn(self.acknowledged_lsn),
            "rows": self.rows,
            "transactions": self.transactions,
            "rowsPerSecond": round(self.rows_per_second, 1),
            "error": None if self.error is None else self.error.to_json(),
        }


@dataclass(frozen=True, slots=True)
class StagingProgress:
    """The staging area. Not durable: the slot is acknowledged only for what every table has applied."""

    durable: bool
    segments: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"durable": self.durable, "segments": self.segments, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class ManifestProgress:
    """What of the manifest's file is not taken up, though the engine runs: ``error``, and the earlier one goes on, or
    fields that wait for a restart, with the class of their change."""

    error: ErrorProgress | None = None
    waiting: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "error": None if self.error is None else self.error.to_json(),
            "waiting": [{"field": field, "change": change} for field, change in self.waiting],
        }


@dataclass(frozen=True, slots=True)
class Progress:
    """The whole pipeline at one moment."""

    pipeline: str
    epoch: int
    state: PipelineState
    started_at: datetime
    at: datetime
    slot: SlotProgress
    capture: CaptureProgress
    staging: StagingProgress
    tables: tuple[TableProgress, ...]
    error: ErrorProgress | None = None
    manifest: ManifestProgress = ManifestProgress()
    store_error: ErrorProgress | None = None
    """Why the store is waited for. It is tried again."""
    verified_lsn: Lsn | None = None
    """Up to where in the WAL the tables were compared with the source's catalog. Not in the JSON."""

    @property
    def ready(self) -> bool:
        """Tell whether every table is streaming."""
        return self.state is PipelineState.RUNNING and all(t.phase == "Ready" for t in self.tables)

    @property
    def tables_by_phase(self) -> dict[str, int]:
        """How many tables each phase has; phases without tables are left out."""
        counts: dict[str, int] = {}
        for table in self.tables:
            counts[table.phase] = counts.get(table.phase, 0) + 1
        return counts

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "version": PROGRESS_VERSION,
            "pipeline": self.pipeline,
            "epoch": self.epoch,
            "state": self.state.value,
            "ready": self.ready,
            "startedAt": _time(self.started_at),
            "at": _time(self.at),
            "slot": self.slot.to_json(),
            "capture": self.capture.to_json(),
            "staging": self.staging.to_json(),
            "manifest": self.manifest.to_json(),
            "store": {"error": None if self.store_error is None else self.store_error.to_json()},
            "tablesByPhase": self.tables_by_phase,
            "tables": [t.to_json() for t in self.tables],
            "error": None if self.error is None else self.error.to_json(),
        }


def reached(progress: Progress, target: Lsn) -> bool:
    """Return True if every table is Ready and nothing below ``target`` is left to apply."""
    return bool(progress.tables) and all(
        t.phase == "Ready" and t.applied_lsn is not None and t.applied_lsn >= target for t in progress.tables
    )


def _lsn(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds")
