"""Turns of which each group, however much it has to do, has one at a time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairTurns:
    """Lets ``slots`` in at a time, in order of arrival, and of each group one. Use it within one event loop."""

    def __init__(self, slots: int = 1) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._groups: dict[Hashable, asyncio.Lock] = {}
        self._inside: Counter[Hashable] = Counter()

    @asynccontextmanager
    async def turn(self, group: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        self._inside[group] += 1
        try:
            async with self._groups.setdefault(group, asyncio.Lock()), self._slots:
                yield
        finally:
            self._inside[group] -= 1
            if not self._inside[group]:
                # Groups come and go, and a process runs for months.
                del self._inside[group], self._groups[group]

    @property
    def busy(self) -> bool:
        """True while a turn is held or waited for."""
        return bool(self._inside)
