"""A limit on the share of a core that repeated work takes, whatever it costs. Pure."""

from __future__ import annotations


class Pace:
    """Spaces out work whose cost grows with the number of tables. Times are of the monotonic clock, in seconds.

    ``share`` is the highest share of a core that the work may take, above 0 and at most 1. Only CPU seconds count. If
    waiting did, a store that is silent for a minute would stop the work for many more.
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

    def done(self, started: float, cpu_s: float) -> None:
        """Record that the work was done from this time on, and took so many CPU seconds."""
        self._next = started + cpu_s / self._share
