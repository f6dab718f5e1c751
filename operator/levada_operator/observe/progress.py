"""The response of a driver's ``GET /v1/progress`` as frozen values.

The driver may run another version: missing fields are unknown, and additional fields are ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from levada_operator.observe.objects import read_time


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error reported by the engine."""

    code: str
    reason: str
    solution: str
    retry_policy: str
    attempts: int
    next_retry: str | None

    @property
    def text(self) -> str:
        """The reason, the code and the solution in one line."""
        return f"{self.reason} [{self.code}]" + (f"; {self.solution}" if self.solution else "")


@dataclass(frozen=True, slots=True)
class CopyReport:
    """The progress of a table's copy. ``percent`` is of the bytes, 0 to 100."""

    rows: int
    bytes: int
    percent: float
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class ResyncReport:
    """The progress of a resync into a shadow copy. ``copy`` is None before the copy begins."""

    step: str
    copy: CopyReport | None
    error: ErrorReport | None


@dataclass(frozen=True, slots=True)
class TableReport:
    """The progress of one table."""

    schema: str
    name: str
    phase: str
    mode: str
    note: str
    copy: CopyReport | None
    applied_lsn: str | None
    lag_seconds: float | None
    error: ErrorReport | None
    copy_order: str = ""
    """Identifies the dedicated copy that the driver requests. Empty if it requests none."""
    resync: ResyncReport | None = None
    retry_nonce: int = 0
    resync_nonce: int = 0
    """The nonces that the engine last handled."""
    destination_table: str = ""
    """The table's name at the destination. Empty if it does not exist there."""


@dataclass(frozen=True, slots=True)
class SlotReport:
    """A sample of the slot, sizes in bytes. ``sampled_at`` is None if there is no slot or no sample yet."""

    name: str
    lag_bytes: int | None
    retained_bytes: int | None
    wal_status: str | None
    safe_wal_bytes: int | None
    active: bool | None
    sampled_at: datetime | None


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """The progress of the pipeline.

    ``fetched_at`` is by the operator's clock. ``position`` has the received, staged and acknowledged LSNs. It changes
    whenever replication advances.
    """

    epoch: int
    state: str
    started_at: str | None
    fetched_at: datetime
    connected: bool
    position: tuple[str | None, ...]
    slot: SlotReport
    tables: tuple[TableReport, ...]
    error: ErrorReport | None
    capture_error: ErrorReport | None


def read_progress(document: Mapping[str, Any], fetched_at: datetime) -> ProgressReport | None:
    """Parse a progress document. Return None if the engine has not started yet, or if it is no progress document."""
    if "slot" not in document:
        return None
    capture = document.get("capture") or {}
    return ProgressReport(
        epoch=int(document.get("epoch") or 0),
        state=str(document.get("state", "")),
        started_at=document.get("startedAt"),
        fetched_at=fetched_at,
        connected=bool(capture.get("connected")),
        position=tuple(capture.get(k) for k in ("receivedLsn", "stagedLsn", "acknowledgedLsn")),
        slot=read_slot(document["slot"]),
        tables=tuple(_table(t) for t in document.get("tables") or ()),
        error=_error(document.get("error")),
        capture_error=_error(capture.get("error")),
    )


def read_slot(document: Mapping[str, Any]) -> SlotReport:
    """Parse a sample of the slot. ``levada lag -o json`` prints the same format."""
    at = document.get("sampledAt")
    return SlotReport(
        name=str(document.get("name", "")),
        lag_bytes=document.get("lagBytes"),
        retained_bytes=document.get("retainedBytes"),
        wal_status=document.get("walStatus"),
        safe_wal_bytes=document.get("safeWalBytes"),
        active=document.get("active"),
        sampled_at=read_time(at) if at else None,
    )


def _table(document: Mapping[str, Any]) -> TableReport:
    return TableReport(
        schema=str(document["schema"]),
        name=str(document["name"]),
        phase=str(document["phase"]),
        mode=str(document.get("mode") or ""),
        note=str(document.get("note") or ""),
        copy=_copy(document.get("copy")),
        applied_lsn=document.get("appliedLsn"),
        lag_seconds=document.get("lagSeconds"),
        error=_error(document.get("error")),
        copy_order=str(document.get("copyOrder") or ""),
        resync=_resync(document.get("resync")),
        retry_nonce=int(document.get("retryNonce") or 0),
        resync_nonce=int(document.get("resyncNonce") or 0),
        destination_table=str(document.get("destinationTable") or ""),
    )


def _copy(document: Mapping[str, Any] | None) -> CopyReport | None:
    if document is None:
        return None
    return CopyReport(
        rows=int(document.get("rows") or 0),
        bytes=int(document.get("bytes") or 0),
        percent=float(document.get("percent") or 0),
        seconds_left=document.get("secondsLeft"),
    )


def _resync(document: Mapping[str, Any] | None) -> ResyncReport | None:
    if document is None:
        return None
    return ResyncReport(str(document.get("step", "")), _copy(document.get("copy")), _error(document.get("error")))


def _error(document: Mapping[str, Any] | None) -> ErrorReport | None:
    if document is None:
        return None
    return ErrorReport(
        code=str(document.get("code", "")),
        reason=str(document.get("reason", "")),
        solution=str(document.get("solution", "")),
        retry_policy=str(document.get("retryPolicy", "")),
        attempts=int(document.get("attempts") or 0),
        next_retry=document.get("nextRetry"),
    )
