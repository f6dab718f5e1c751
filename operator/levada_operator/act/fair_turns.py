"""Turns of which each group, however much it has to do, has one at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairTurns:
    """Lets ``slots`` in at a time, in order of arrival, and of each group one. Use it within one event loop."""

    def __init__(self, slots: int = 1) -> None:
        self._slots = asyncio.Semaphore(slots)
        self._groups: dict[Hashable, asyncio.Lock] = {}
        self._inside = 0

    @asynccontextmanager
    async def turn(self, group: Hashable) -> AsyncIterator[None]:
        """Wait for a turn, and hold it."""
        self._inside += 1
        try:
            async with self._groups.setdefault(group, asyncio.Lock()), self._slots:
                yield
        finally:
            self._inside -= 1

    @property
    def busy(self) -> bool:
        """True while a turn is held or waited for."""
        return self._inside > 0
