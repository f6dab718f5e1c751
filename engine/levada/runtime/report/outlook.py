"""The outlook: in how many seconds what is behind will have caught up, by its trend over the last minutes. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from typing import Final

from levada.status import CatchUpProgress, CatchUpState
from levada.values import TableId

_WINDOW_S: Final = 300.0
_SAMPLE_EVERY_S: Final = 5.0
_ENOUGH_S: Final = 60.0
"""The shortest time between the first and the last sample for a trend. A batch makes the lag fall at one moment."""
_LEAST_SLOPE: Final = 1 / (30 * 86_400)
"""The share of an amount that must vanish in each second. One that takes longer than a month does not catch up."""
SMALL_WAL: Final = 16 << 20
"""Bytes of WAL that count as nothing: a segment's fill, a heartbeat, a page."""


class Trend:
    """The samples of an amount that should go to zero. Times are in seconds, of the monotonic clock."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, float]] = deque()

    def add(self, now: float, amount: float, small: float) -> CatchUpProgress | None:
        """Add a sample, and return when the amount reaches zero by the trend since it became more than ``small``.

        An amount of at most ``small`` has caught up. Return None in the first minute after it had. Samples are kept at
        most every five seconds, and for five minutes.
        """
        samples = self._samples
        if amount <= small:
            samples.clear()
            return CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0)
        if not samples or now - samples[-1][0] >= _SAMPLE_EVERY_S:
            samples.append((now, amount))
        while now - samples[0][0] > _WINDOW_S:
            samples.popleft()
        if samples[-1][0] - samples[0][0] < _ENOUGH_S:
            return None
        slope = _slope(samples)
        if slope >= -_LEAST_SLOPE * amount:
            return CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE)
        return CatchUpProgress(CatchUpState.CATCHING_UP, amount / -slope)

    def age(self, now: float) -> float:
        """Return the seconds since the first sample that counts, but for the time between two samples."""
        return now - self._samples[0][0] - _SAMPLE_EVERY_S if self._samples else 0.0


class Outlook:
    """The trends of the WAL that is not received yet, and of each table's lag."""

    def __init__(self) -> None:
        self._stream = Trend()
        self._tables: dict[TableId, Trend] = {}

    def of_stream(self, now: float, unread_bytes: int | None) -> CatchUpProgress | None:
        """Add the WAL that was not received yet, and return when capture will have caught up with it. None if unknown.

        The slot's lag is no measure of that, because it does not fall while a large transaction arrives.
        """
        if unread_bytes is None:
            return None
        return self._stream.add(now, unread_bytes, SMALL_WAL)

    def of_table(
        self, table: TableId, now: float, lag_s: float | None, small_s: float, batch_s: float = 0.0
    ) -> CatchUpProgress | None:
        """Add a table's lag, and return when the table will have caught up. None if unknown.

        The lag is None for a table that is copied, suspended or parked, whose former trend says nothing. ``batch_s`` is
        for how many seconds its batch has been running. The lag cannot fall before the batch ends.
        """
        if lag_s is None:
            self._tables.pop(table, None)
            return None
        trend = self._tables.setdefault(table, Trend())
        found = trend.add(now, lag_s, small_s)
        if found is not None and found.state is CatchUpState.NOT_AT_THIS_RATE and trend.age(now) <= batch_s:
            return None
        return found

    def keep(self, tables: Collection[TableId]) -> None:
        """Forget the tables that are no longer replicated."""
        for table in self._tables.keys() - set(tables):
            del self._tables[table]


def latest(parts: Collection[CatchUpProgress | None]) -> CatchUpProgress | None:
    """Return the outlook of the whole: that of its part which catches up last. None if that of a part is unknown."""
    known = [part for part in parts if part is not None]
    for part in known:
        if part.state == CatchUpState.NOT_AT_THIS_RATE:
            return part
    if len(known) < len(parts):
        return None
    return max(known, key=lambda part: part.seconds_left or 0.0, default=None)


def _slope(samples: Collection[tuple[float, float]]) -> float:
    """Return the slope of the line of least squares."""
    count = len(samples)
    mean_x = sum(x for x, _ in samples) / count
    mean_y = sum(y for _, y in samples) / count
    spread = sum((x - mean_x) ** 2 for x, _ in samples)
    return sum((x - mean_x) * (y - mean_y) for x, y in samples) / spread
