"""The share of each namespace in the time that the watches take.

The watches read one event after the other, in the event loop of all namespaces. A Pipeline of some hundred kilobytes
takes a hundredth of a second and more each time. If its tenant changes it twenty times a second, all others' changes
would wait behind hers. So the events of a namespace that has used its share are left out, and it is listed instead:
lists run by themselves, in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_BURST_S: Final = 1.0
_PER_S: Final = 0.05
"""The part of the event loop's time that one namespace may take for long."""
_WITH_CACHE: Final = 3.0
"""The time that an event takes altogether, in times of its parsing."""


class WatchShares:
    """The seconds that each namespace has used beyond its share. ``clock`` is monotonic. For one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._used: dict[str, tuple[float, float]] = {}
        """The seconds that are used, as of a time."""
        self._beyond: dict[bytes, str] = {}
        """The namespaces beyond their share, by the bytes of which each of their objects has some."""

    def charge(self, namespace: str, seconds: float) -> None:
        """Count the time that the parsing of an event has taken."""
        if not namespace:
            return
        now = self._clock()
        used = self._left(namespace, now) + seconds * _WITH_CACHE
        self._used[namespace] = used, now
        if used > _BURST_S:
            self._beyond[f'"namespace":"{namespace}"'.encode()] = namespace

    def beyond(self, event: bytes) -> str:
        """Return the namespace if the event is beyond its share, else an empty string.

        A tenant cannot write what makes another one's event be left out: it is in that one's bytes.
        """
        for mark, namespace in self._beyond.items():
            if mark in event:
                if self._left(namespace, self._clock()) > _BURST_S / 2:
                    return namespace
                del self._beyond[mark]
                return ""
        return ""

    def _left(self, namespace: str, now: float) -> float:
        used, at = self._used.get(namespace, (0.0, now))
        return max(0.0, used - (now - at) * _PER_S)
