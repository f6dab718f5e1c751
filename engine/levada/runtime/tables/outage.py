"""A destination that is away as a whole: which parked table tries it again, and when. Pure.

Each table with changes fails once. After that one parked table at a time tries whether the destination is back, so the
cost of an outage does not grow with the number of tables. Once a table was written, all of them are due. Once one was
read, those are due that could not be read.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from levada.runtime.config import RetryLimits
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.retries import AWAY, is_away
from levada.runtime.tables.rules import retry_is_due
from levada.status import RetryPolicy
from levada.stores.phases import Errored
from levada.values import TableId

_MOST_S: Final = 60.0
"""The longest time between two tries of a destination that is away."""


@dataclass(slots=True)
class _Calls:
    """The reads or the writes of all tables."""

    failed_at: float = float("-inf")
    succeeded_at: float = float("-inf")

    @property
    def fail(self) -> bool:
        """True from a failure until the next success."""
        return self.failed_at > self.succeeded_at


class Outage:
    """Whether the destination is away, as its answers to all tables show. Times are of the monotonic clock, in seconds.

    A destination that writes all tables in one commit (``together``) is tried by all of them, which is one batch.
    """

    def __init__(self, *, together: bool = False) -> None:
        self._together = together
        self._reads, self._writes = _Calls(), _Calls()
        self._tries = 0
        self._next_try = float("-inf")
        self._chosen: TableId | None = None

    @property
    def lasts(self) -> bool:
        """True from a failure of the whole destination until a table is written, or read if only a read failed."""
        return self._reads.fail or self._writes.fail

    @property
    def written_at(self) -> float:
        """The time at which a table was last written or copied."""
        return self._writes.succeeded_at

    def failed(self, error: BaseException, limits: RetryLimits, now: float, *, reading: bool = False) -> None:
        """Record that a table could not be read or written. An error of this table alone changes nothing."""
        if not is_away(error):
            return
        if not self.lasts:
            self._tries, self._next_try, self._chosen = 1, now + _delay(1, limits), None
        (self._reads if reading else self._writes).failed_at = now

    def written(self, now: float) -> None:
        """Record that a table was written or copied."""
        self._writes.succeeded_at = self._reads.succeeded_at = now

    def answered(self, now: float, *, writes_follow: bool) -> None:
        """Record that a table was read, and whether it has changes to write."""
        self._reads.succeeded_at = now
        if not writes_follow:
            # Its last write arrived, and only the answer was lost. It cannot show whether writes succeed again.
            self._next_try = now

    def choose(self, tables: Iterable[TableRecord], limits: RetryLimits, now: float) -> None:
        """Choose the table that tries the destination next, if that is due: the one that failed longest ago."""
        if not self.lasts or now < self._next_try:
            return
        waiting = [r for r in tables if _waits(r) and not r.busy and not r.suspended]
        # A table that failed before this process began has no time.
        first = min(waiting, key=lambda r: r.retries.failed_at or float("-inf"), default=None)
        self._chosen = None if first is None else first.id
        self._tries += 1
        self._next_try = now + _delay(self._tries, limits)

    def retry_is_due(self, record: TableRecord, now: datetime, limits: RetryLimits) -> bool:
        """Return True if a parked table is retried by itself now, which is of the clock of its phase."""
        if self._together or not _waits(record):
            return retry_is_due(record.phase, now, limits)
        state = record.retries
        calls = self._reads if state.reading else self._writes
        if calls.fail:
            return record.id == self._chosen
        # It failed with the others, so it is due when they are written. One that failed alone has its own delay.
        back = state.failed_at is not None and not state.alone and calls.succeeded_at > state.failed_at
        return back or retry_is_due(record.phase, now, limits)

    def retried(self, table: TableId) -> None:
        """Record that a table is retried."""
        if table == self._chosen:
            self._chosen = None


def _waits(record: TableRecord) -> bool:
    phase = record.phase
    return isinstance(phase, Errored) and phase.code in AWAY and phase.retry_policy is RetryPolicy.TIMED_RETRY


def _delay(tries: int, limits: RetryLimits) -> float:
    return min(_MOST_S, limits.delay(tries))
