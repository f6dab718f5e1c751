"""The history of a pipeline's figures, bounded: the older, the coarser. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeVar

from levada.status import History, Progress

SAMPLE_EVERY_S: Final = 10
"""Seconds between two samples."""
_RESOLUTIONS: Final = ((SAMPLE_EVERY_S, 3600), (60, 6 * 3600), (600, 48 * 3600))
"""Seconds that one point describes, and for how many seconds such points are kept. The finest resolution is first."""

N = TypeVar("N", int, float)


@dataclass(slots=True)
class Point:
    """The figures of some seconds from ``at`` on. Each is the largest of its samples, the rate their average."""

    at: datetime
    lag_bytes: int | None
    retained_bytes: int | None
    staged_bytes: int | None
    lag_s: float | None
    rows_per_second: float
    samples: int = 1

    def add(self, other: Point) -> None:
        """Add a sample."""
        self.lag_bytes = _larger(self.lag_bytes, other.lag_bytes)
        self.retained_bytes = _larger(self.retained_bytes, other.retained_bytes)
        self.staged_bytes = _larger(self.staged_bytes, other.staged_bytes)
        self.lag_s = _larger(self.lag_s, other.lag_s)
        self.samples += 1
        self.rows_per_second += (other.rows_per_second - self.rows_per_second) / self.samples


class Ring:
    """The newest points of one resolution."""

    def __init__(self, resolution_s: int, kept_s: int) -> None:
        self.resolution_s = resolution_s
        self.points: deque[Point] = deque(maxlen=kept_s // resolution_s)

    def add(self, sample: Point) -> None:
        """Add a sample to the newest point, or begin the next one with it.

        Points that are not before the sample are removed. They exist only if the clock was set back.
        """
        points = self.points
        while points and points[-1].at >= sample.at:
            points.pop()
        # A sample comes a moment after its time is due. Half a sample's time keeps points from growing by one.
        if points and (sample.at - points[-1].at).total_seconds() < self.resolution_s - SAMPLE_EVERY_S / 2:
            points[-1].add(sample)
        else:
            points.append(replace(sample))


class FigureHistory:
    """Keeps figures of the last two days. It has at most 1,008 points. For one thread."""

    def __init__(self) -> None:
        self._rings = tuple(Ring(resolution_s, kept_s) for resolution_s, kept_s in _RESOLUTIONS)

    def add(self, progress: Progress) -> None:
        """Add the figures of a snapshot."""
        lags = [t.lag_seconds for t in progress.tables if t.lag_seconds is not None and not t.is_parked]
        sample = Point(
            at=progress.at,
            lag_bytes=progress.slot.lag_bytes,
            retained_bytes=progress.slot.retained_bytes,
            staged_bytes=progress.staging.bytes,
            lag_s=max(lags, default=None),
            rows_per_second=progress.capture.rows_per_second,
        )
        for ring in self._rings:
            ring.add(sample)

    def document(self) -> History:
        """Return the history. Points of a coarse resolution are only those before the finer ones."""
        found: list[tuple[int, Point]] = []
        for ring in self._rings:
            oldest = found[0][1].at if found else None
            found = [(ring.resolution_s, p) for p in ring.points if oldest is None or p.at < oldest] + found
        return _columns(found)


def _columns(points: Sequence[tuple[int, Point]]) -> History:
    return History(
        at=tuple(p.at for _, p in points),
        seconds=tuple(seconds for seconds, _ in points),
        lag_bytes=tuple(p.lag_bytes for _, p in points),
        retained_bytes=tuple(p.retained_bytes for _, p in points),
        staged_bytes=tuple(p.staged_bytes for _, p in points),
        lag_seconds=tuple(p.lag_s for _, p in points),
        rows_per_second=tuple(p.rows_per_second for _, p in points),
    )


def _larger(one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return max(one, other)
