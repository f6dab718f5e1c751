"""Snapshots of a pipeline's progress, which `/v1/progress`, `/metrics`, the CLI and the operator read.

They answer three questions: will a disk fill up (``slot.retainedBytes``, ``staging``), is the data correct
(``tables[].error``, ``state``), and when is it complete (``tables[].copy.secondsLeft``, ``tables[].lagSeconds``).
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
    """The state of the pipeline's process."""

    STARTING = "Starting"
    RUNNING = "Running"
    STOPPING = "Stopping"
    STOPPED = "Stopped"
    FAILED = "Failed"


@dataclass(frozen=True, slots=True)
class ErrorProgress:
    """An error as a user sees it. ``next_retry`` is None if the retry must be requested."""

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
    """A shadow copy. Its table stays readable and receives changes meanwhile.

    ``step`` is Waiting, Copying, CatchingUp or GivenUp. It is GivenUp after an ``error`` that is not retried. In any
    other step, ``error`` is that of the last attempt. ``pending_rows`` counts the changes since the copy's snapshot
    that are not applied to the shadow copy yet.
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
    """One table. ``lag_seconds`` is the age of its oldest change that is not at the destination, or 0.

    While the replication stream is interrupted, the lag is at least the time since then, because the changes at the
    source are unknown.

    ``rows_applied`` counts row changes since the process started. ``staged_bytes`` is the size of the staged changes
    that are not applied yet.
    """

    id: TableId
    table: QualifiedTable
    phase: str
    mode: str
    """The mode of the destination's table: Upsert or Changelog."""
    note: str
    """The reason why the mode differs from the configured one, or why the source refuses changes of the table."""
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
    """The token of the order for a dedicated copy, empty without one."""
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
    """The slot as of ``sampled_at``. Sizes are in bytes. Values that the server does not report are None."""

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
    """Capture. Positions are None before the stream is open. ``rows`` counts since the process started."""

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
    """The staging area. If it is not ``durable``, the slot is acknowledged only up to what every table has applied."""

    durable: bool
    segments: int
    bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"durable": self.durable, "segments": self.segments, "bytes": self.bytes}


@dataclass(frozen=True, slots=True)
class ManifestProgress:
    """The parts of the manifest's file that a running engine has not applied.

    With an ``error``, the engine keeps the earlier manifest. ``waiting`` has the fields that need a restart, each with
    the class of its change.
    """

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
    """The error of the store's last call. The call is retried."""
    verified_lsn: Lsn | None = None
    """The LSN up to which the tables were compared with the source's catalog. It is not in the JSON."""

    @property
    def ready(self) -> bool:
        """Return True if the pipeline runs and every table is Ready."""
        return self.state is PipelineState.RUNNING and all(t.phase == "Ready" for t in self.tables)

    @property
    def tables_by_phase(self) -> dict[str, int]:
        """The number of tables per phase. Phases without tables are left out."""
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
    """Return True if every table is Ready and has applied all changes below ``target``. False without tables."""
    return bool(progress.tables) and all(
        t.phase == "Ready" and t.applied_lsn is not None and t.applied_lsn >= target for t in progress.tables
    )


def _lsn(lsn: Lsn | None) -> str | None:
    return None if lsn is None else str(lsn)


def _time(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat(timespec="milliseconds")
