"""A limit on the share of the time that repeated work takes, whatever it costs. Pure."""

from __future__ import annotations


class Pace:
    """Spaces out work whose cost grows with the number of tables. Times are of the monotonic clock, in seconds.

    ``share`` is the highest share of the time that the work may take, above 0 and at most 1.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._next = 0.0

    def due(self, now: float) -> bool:
        """Return True if the work may be done now."""
        return now >= self._next

    def wait_s(self, now: float) -> float:
        """Return the seconds until the work may be done, 0 if it may be done now."""
        return max(0.0, self._next - now)

    def done(self, started: float, ended: float) -> None:
        """Record that the work was done between these times."""
        self._next = started + (ended - started) / self._share
