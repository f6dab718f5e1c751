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
_OTHERS_S: Final = 10.0
"""The time for which an answer to another namespace counts."""
_OVERLOADED: Final = frozenset({429, 503, 504})


class WriteRate:
    """Additive increase and multiplicative decrease, as in TCP's congestion control.

    Times are of the monotonic clock, in seconds. The API server takes seconds for a large object. That one namespace's
    writes are slow is therefore no overload while another one's are not.
    """

    def __init__(self) -> None:
        self.per_s = _START
        self.closed_until = 0.0
        """The time until which the API server asked for no request."""
        self._cut_at = float("-inf")
        self._last: dict[str, tuple[float, bool]] = {}
        """When each namespace was answered last, and whether that was slow."""

    def answered(
        self, now: float, seconds: float, status: int = 200, retry_after_s: float = 0.0, namespace: str = ""
    ) -> None:
        """Record an answer after ``seconds``, with its HTTP status. ``retry_after_s`` is the server's Retry-After.

        Status 0 means that there was no answer.
        """
        if status in _OVERLOADED:
            self.closed_until = max(self.closed_until, now + retry_after_s)
        slow = status == 0 or seconds > _SLOW_S
        self._last.pop(namespace, None)
        self._last = {n: last for n, last in self._last.items() if now - last[0] <= _OTHERS_S} if slow else self._last
        alone = slow and any(not was_slow for _, was_slow in self._last.values())
        self._last[namespace] = now, slow
        if alone:
            return
        if slow or status in _OVERLOADED:
            if now - self._cut_at >= _PAUSE_S:
                self._cut_at = now
                self.per_s = max(SLOWEST, self.per_s / 2)
        elif seconds < _FAST_S:
            self.per_s = min(FASTEST, self.per_s + _STEP)
