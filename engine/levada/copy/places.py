"""Places of worker processes, whose number is limited."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_POLL_S: Final = 0.1


class Places:
    """At most ``limit`` places, without a limit with None. Thread-safe."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        self._taken = 0

    @property
    def taken(self) -> int:
        """The number of places that are taken."""
        return self._taken

    @property
    def free(self) -> int | None:
        """The number of places that are free, or None without a limit."""
        return None if self._limit is None else self._limit - self._taken

    @contextmanager
    def place(self, needed: Callable[[], bool], *, waits: bool = True) -> Iterator[bool]:
        """Yield True in a place, or False if it is not ``needed`` any more.

        Without ``waits`` a place is taken although there is none.
        """
        if not self._take(needed, waits=waits):
            yield False
            return
        try:
            yield True
        finally:
            with self._changed:
                self._taken -= 1
                self._changed.notify()

    def _take(self, needed: Callable[[], bool], *, waits: bool) -> bool:
        with self._changed:
            while waits and self._limit is not None and self._taken >= self._limit:
                if not needed():
                    return False
                self._changed.wait(_POLL_S)
            self._taken += 1
            return True
