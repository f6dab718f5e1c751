"""The rate of writes, which follows how fast the API server answers. Pure."""

from __future__ import annotations

from typing import Final

SLOWEST: Final = 5.0
"""The lowest rate, in writes a second."""
_START: Final = 10.0
FASTEST: Final = 80.0
"""The highest rate, in writes a second."""
_STEP: Final = 0.5
"""Writes a second that each fast answer adds."""
_FAST_S: Final = 0.5
_SLOW_S: Final = 2.0
_PAUSE_S: Final = 1.0
"""The time between two cuts of the rate, because one overload shows in many answers."""
_OVERLOADED: Final = frozenset({429, 503, 504})


class WriteRate:
    """Additive increase and multiplicative decrease, as in TCP's congestion control.

    Times are of the monotonic clock, in seconds.
    """

    def __init__(self) -> None:
        self.per_s = _START
        self.closed_until = 0.0
        """The time until which the API server asked for no request."""
        self._cut_at = float("-inf")

    def answered(self, now: float, seconds: float, status: int = 200, retry_after_s: float = 0.0) -> None:
        """Record an answer after ``seconds``, with its HTTP status. ``retry_after_s`` is the server's Retry-After.

        Status 0 means that there was no answer.
        """
        if status in _OVERLOADED:
            self.closed_until = max(self.closed_until, now + retry_after_s)
        if status == 0 or status in _OVERLOADED or seconds > _SLOW_S:
            if now - self._cut_at >= _PAUSE_S:
                self._cut_at = now
                self.per_s = max(SLOWEST, self.per_s / 2)
        elif seconds < _FAST_S:
            self.per_s = min(FASTEST, self.per_s + _STEP)
