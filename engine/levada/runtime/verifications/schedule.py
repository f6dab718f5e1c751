"""The rule for the next verification that the manifest asks for. Pure: no store, no thread, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from levada.runtime.config import PipelineConfig
from levada.runtime.tables.rules import is_compared
from levada.status import PipelineState, Progress, ResyncStep, TablePhase, TableProgress
from levada.values import age_of

RETRY: Final = timedelta(hours=1)
"""The time after which the schedule verifies a table again whose verification failed."""
REQUEST_RETRY: Final = timedelta(minutes=10)
"""The time after which a request is carried out again whose verification an earlier process began and did not end.

Without it, a verification that ends the process would end each further one at its start.
"""


@dataclass(frozen=True, slots=True)
class Due:
    """A table that is verified now. ``requested`` is True if its ``verifyNonce`` asks for it."""

    table: TableProgress
    requested: bool
    nonce: int


def next_verification(progress: Progress, config: PipelineConfig, now: datetime) -> Due | None:
    """Return the table that is verified now, None if none is due.

    Only tables that are Ready are verified, and those that were found to differ. A request is carried out immediately.
    The schedule verifies one table after the other, spread over its period, and waits while a table trails by more than
    batching causes.
    """
    if progress.state != PipelineState.RUNNING:
        return None
    # The progress may be older than a configuration that suspends a table and requests its verification.
    able = [t for t in progress.tables if is_able(t) and not config.table(t.table).suspended]
    for table in able:
        nonce = config.table(table.table).verify_nonce
        if nonce not in (0, table.verify_nonce) and not _was_interrupted(table, progress, now):
            return Due(table, True, nonce)
    periods = {
        t.table: timedelta(seconds=every_s) for t in progress.tables if (every_s := config.verify_of(t.table).every_s)
    }
    if not periods or any(trails(t, config) for t in progress.tables):
        return None
    due = [t for t in able if t.table in periods and _due_at(t, periods[t.table], now) <= now]
    turn = timedelta(seconds=1 / sum(1 / period.total_seconds() for period in periods.values()))
    if _waits_for_turn(progress.tables, turn, now):
        # A table whose time has just come is spread already, and another one's turn does not make it late.
        due = [t for t in due if _attempted_at(t, now) and age_of(_due_at(t, periods[t.table], now), now) < turn]
    if not due:
        return None
    first = min(due, key=lambda t: (_attempted_at(t, now) or datetime.min.replace(tzinfo=now.tzinfo), t.table))
    return Due(first, False, config.table(first.table).verify_nonce)


def lacks_end(progress: Progress, ended: datetime | None, now: datetime) -> bool:
    """Return True if the end of the last verification is not in the progress yet."""
    return ended is not None and progress.at <= ended <= now


def pending_comparisons(progress: Progress, config: PipelineConfig) -> list[TableProgress]:
    """Return the tables that missed changes, and are compared with the source before they go on."""
    if progress.state != PipelineState.RUNNING:
        return []
    tables = (t for t in progress.tables if t.error is not None and is_compared(t.error.code, t.error.retry_policy))
    return [t for t in tables if not (t.suspended or t.resync or config.table(t.table).suspended)]


def is_able(table: TableProgress) -> bool:
    """Return True if the table is at a state that can be compared: it is Ready, or was found to differ."""
    if table.suspended or table.is_parked or not (table.differs or table.phase == TablePhase.READY):
        return False
    return table.resync is None or table.resync.step == ResyncStep.GIVEN_UP


def trails(table: TableProgress, config: PipelineConfig) -> bool:
    """Return True if the table is behind, and is not kept there by a person or an error."""
    follows = not (table.suspended or table.is_parked)
    return follows and table.lag_seconds is not None and table.lag_seconds > 2 * config.freshness_s


def _was_interrupted(table: TableProgress, progress: Progress, now: datetime) -> bool:
    tried = table.verify_tried
    return tried is not None and tried < progress.started_at and age_of(tried, now) < REQUEST_RETRY


def _waits_for_turn(tables: Iterable[TableProgress], turn: timedelta, now: datetime) -> bool:
    """Return True if the last verification began less than ``turn`` ago, a table's share of the periods."""
    began = [t.verify_tried for t in tables if t.verify_tried is not None and t.verify_tried <= now]
    return bool(began) and age_of(max(began), now) < turn


def _attempted_at(table: TableProgress, now: datetime) -> datetime | None:
    """Return the time of the last comparison or attempt, None without one. A time in the future is none."""
    ended = None if table.verified is None else table.verified.at
    times = [at for at in (ended, table.verify_tried) if at is not None and at <= now]
    return max(times, default=None)


def _due_at(table: TableProgress, period: timedelta, now: datetime) -> datetime:
    last = _attempted_at(table, now)
    if last is None:
        return now
    tried, verified = table.verify_tried, table.verified
    failed = verified is None or (tried is not None and not tried <= verified.at <= now)
    return last + (min(period, RETRY) if failed else period)
