"""The phases of a table, as values; which may follow which is told in `levada.runtime.tables.phases`."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from levada.values import Lsn


class RetryPolicy(StrEnum):
    """Who brings an errored table back."""

    NO_RETRY = "NoRetry"
    MANUAL_RETRY = "ManualRetry"
    TIMED_RETRY = "TimedRetry"


@dataclass(frozen=True, slots=True)
class Init:
    """Discovered in the publication, waits for a copy slot."""

    name: ClassVar[str] = "Init"
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class DataSync:
    """Being copied; a restart copies it again."""

    name: ClassVar[str] = "DataSync"
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """The copy at ``lsn`` (S) is committed at the destination; nothing after it is applied yet."""

    lsn: Lsn
    name: ClassVar[str] = "FinishedCopy"
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class SyncWait:
    """Waits until capture has staged past ``lsn`` (S)."""

    lsn: Lsn
    name: ClassVar[str] = "SyncWait"
    persisted: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class Catchup:
    """Staged changes are being applied up to ``lsn``."""

    lsn: Lsn
    name: ClassVar[str] = "Catchup"
    persisted: ClassVar[bool] = False


@dataclass(frozen=True, slots=True)
class SyncDone:
    """Caught up to ``lsn``."""

    lsn: Lsn
    name: ClassVar[str] = "SyncDone"
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Ready:
    """Streaming."""

    name: ClassVar[str] = "Ready"
    persisted: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class Errored:
    """Parked; its segments are kept and the other tables go on."""

    code: str
    reason: str
    solution: str
    retry_policy: RetryPolicy
    attempts: int = 1
    next_retry: datetime | None = None
    name: ClassVar[str] = "Errored"
    persisted: ClassVar[bool] = True


TableReplicationPhase = Init | DataSync | FinishedCopy | SyncWait | Catchup | SyncDone | Ready | Errored


def phase_to_json(phase: TableReplicationPhase) -> dict[str, Any]:
    """Return plain values for JSON."""
    match phase:
        case FinishedCopy(lsn) | SyncWait(lsn) | Catchup(lsn) | SyncDone(lsn):
            return {"phase": phase.name, "lsn": str(lsn)}
        case Errored():
            return {
                "phase": phase.name,
                "code": phase.code,
                "reason": phase.reason,
                "solution": phase.solution,
                "retryPolicy": phase.retry_policy.value,
                "attempts": phase.attempts,
                "nextRetry": None if phase.next_retry is None else phase.next_retry.astimezone(UTC).isoformat(),
            }
    return {"phase": phase.name}


def phase_from_json(data: dict[str, Any]) -> TableReplicationPhase:
    """Read what `phase_to_json` returned; raise ValueError for a phase that is not known."""
    name = data["phase"]
    for plain in (Init, DataSync, Ready):
        if plain.name == name:
            return plain()
    for at in (FinishedCopy, SyncWait, Catchup, SyncDone):
        if at.name == name:
            return at(Lsn.parse(data["lsn"]))
    if name == Errored.name:
        return Errored(
            code=data["code"],
            reason=data["reason"],
            solution=data["solution"],
            retry_policy=RetryPolicy(data["retryPolicy"]),
            attempts=data["attempts"],
            next_retry=None if data["nextRetry"] is None else datetime.fromisoformat(data["nextRetry"]),
        )
    raise ValueError(f"not a phase: {name!r}")
