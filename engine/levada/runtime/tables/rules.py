"""Rules that decide which phase, copy, batch or maintenance comes next. Pure: no store, thread or clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Final

from levada import codes
from levada.apply.backlog import Pending
from levada.apply.schedule import apply_due
from levada.runtime.config import PipelineConfig, RetryLimits
from levada.runtime.tables.phases import STREAMING, at_restart
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.resync import copies_running
from levada.status import RetryPolicy
from levada.stores.phases import Catchup, Errored, FinishedCopy, Init, Ready, SyncDone, SyncWait, TableReplicationPhase
from levada.values import Lsn

_COMPARED: Final = frozenset({codes.COMPARISON_PENDING, codes.ROW_FILTER_CHANGED})


def next_phase(phase: TableReplicationPhase, position: Lsn, staged: Lsn) -> TableReplicationPhase | None:
    """Return the next phase if its condition is met, None if the table waits for a job or for WAL.

    ``position`` is the LSN below which nothing of the table is left to apply. ``staged`` is the LSN below which
    everything is staged.
    """
    match phase:
        case FinishedCopy(lsn):
            return SyncWait(lsn)
        case SyncWait(lsn) if staged >= lsn:
            return Catchup(staged)
        case Catchup(lsn) if position >= lsn:
            return SyncDone(position)
        case SyncDone(lsn) if position >= lsn:
            return Ready()
    return None


def retry_is_due(phase: TableReplicationPhase, now: datetime, limits: RetryLimits) -> bool:
    """Return True if the table is parked with an automatic retry that is due.

    A time that no delay of ``limits`` reaches is that of a clock that was ahead then, and is due.
    """
    if not isinstance(phase, Errored) or phase.retry_policy is not RetryPolicy.TIMED_RETRY:
        return False
    longest = timedelta(seconds=limits.max_delay_s)
    return phase.next_retry is not None and not now < phase.next_retry <= now + longest


def needs_resync(phase: TableReplicationPhase) -> bool:
    """Return True if the table is parked because it missed changes. Only a resync repairs it."""
    return isinstance(phase, Errored) and phase.retry_policy is RetryPolicy.NO_RETRY


def awaits_comparison(phase: TableReplicationPhase | None) -> bool:
    """Return True if the table missed changes, and is compared with the source and repaired before it goes on."""
    return isinstance(phase, Errored) and is_compared(phase.code, phase.retry_policy)


def is_compared(code: str, policy: str) -> bool:
    """Return True for the error of a table that `awaits_comparison`. Its retry is automatic, but at no time."""
    return code in _COMPARED and policy == RetryPolicy.TIMED_RETRY


def continues(phase: TableReplicationPhase) -> bool:
    """Return True if a start continues the table from the slot, and does not copy it."""
    return not needs_resync(phase) and not isinstance(at_restart(phase), Init)


GROUP: Final = 32
"""The highest number of tables whose copies share a snapshot."""


def copies_to_start(
    tables: Iterable[TableRecord],
    at_once: int,
    sessions: int,
    may_begin: Callable[[TableRecord], bool] = lambda record: True,
    may_share: Callable[[TableRecord], bool] = lambda record: False,
    group: int = GROUP,
) -> list[list[TableRecord]]:
    """Return the tables whose first copies begin now. ``sessions`` is the number of replication sessions so far.

    The tables of each list share a snapshot, and ``may_share`` returns False for a table that may not. They are at most
    ``group``, and only as many as wait for each of the copies that run at a time.

    At most ``at_once`` copies run at a time, shadow copies included. ``may_begin`` returns False for a table whose copy
    has to wait. Copies that are made again by themselves come last, the smallest first.
    """
    known = list(tables)
    free = at_once - copies_running(known)
    idle = [r for r in known if not r.busy and not r.suspended and not r.resync.has_copy]
    waiting = [r for r in idle if isinstance(r.phase, Init) and sessions >= r.copy.after_session and may_begin(r)]
    waiting.sort(key=lambda r: (bool(r.own.code), r.own.bytes or 0))
    size = min(group, -(-len(waiting) // max(1, at_once)))
    groups: list[list[TableRecord]] = []
    for record in waiting:
        last = groups[-1] if groups else []
        if last and len(last) < size and may_share(last[0]) and may_share(record):
            last.append(record)
        elif len(groups) < free:
            groups.append([record])
        else:
            break
    return groups


def wants_apply(record: TableRecord, pending: Pending) -> bool:
    """Return True if the table has staged changes, and neither a job nor its phase keeps them from being applied."""
    if record.busy or record.suspended or record.phase.name not in STREAMING:
        return False
    return not isinstance(record.phase, FinishedCopy) and pending.segments > 0


def keeps_others(record: TableRecord, pending: Pending) -> bool:
    """Return True if the other tables wait for this one, for a destination that writes all tables in one call.

    They wait while a job has it, and while its staged changes are retried automatically. Otherwise a reader would see
    transactions without their part in it. They do not wait for the retry of a copy, nor for a table that needs a
    person.
    """
    if record.busy or record.suspended:
        return record.busy is not None
    phase = record.phase
    retried = isinstance(phase, Errored) and phase.retry_policy is RetryPolicy.TIMED_RETRY
    return (retried and pending.segments > 0) or isinstance(phase, FinishedCopy)


def apply_is_due(
    record: TableRecord, pending: Pending, config: PipelineConfig, now: float, round_s: float = 0.0
) -> bool:
    """Return True if the table's next batch is due. Before Ready, and before the LSN of a hold or cut, it always is.

    ``now`` is of the monotonic clock, in seconds. ``round_s`` is that of `apply_due`.
    """
    if not isinstance(record.phase, Ready) or record.hold.until is not None or record.tag.until is not None:
        return True
    waited = now - (record.apply.pending_since or 0.0)
    return apply_due(waited, record.apply.last_apply_s, config.freshness_s, pending.rows, config.batch_rows, round_s)


def maintenance_is_due(record: TableRecord, config: PipelineConfig, now: float) -> bool:
    """Return True if the table's maintenance is due. ``now`` is of the monotonic clock, in seconds.

    A table without changes has maintenance too, which detects the changes of other writers.
    """
    idle = not record.busy and not record.suspended and isinstance(record.phase, Ready)
    return idle and now - record.apply.maintained_at >= config.maintenance_s
