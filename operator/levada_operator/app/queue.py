"""A queue of distinct keys, like client-go's work queue. No key is processed twice at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class KeyedQueue(Generic[_K]):
    """A queue for one event loop. A key that is added again while it waits is queued once."""

    def __init__(self) -> None:
        self._waiting: dict[_K, None] = {}
        self._busy: set[_K] = set()
        self._changed = asyncio.Condition()

    async def add(self, key: _K) -> None:
        """Add a key. A key that is being processed is processed once more."""
        async with self._changed:
            self._waiting.setdefault(key)
            self._changed.notify()

    async def get(self) -> _K:
        """Wait for a key that is not being processed, and return it. The caller must call `done`."""
        async with self._changed:
            while True:
                for key in self._waiting:
                    if key not in self._busy:
                        del self._waiting[key]
                        self._busy.add(key)
                        return key
                await self._changed.wait()

    async def acquire(self, key: _K) -> None:
        """Wait until a key is not being processed, and take it ahead of the queue. The caller must call `done`."""
        async with self._changed:
            while key in self._busy:
                await self._changed.wait()
            self._waiting.pop(key, None)
            self._busy.add(key)

    async def done(self, key: _K) -> None:
        """Mark a key as processed."""
        async with self._changed:
            self._busy.discard(key)
            self._changed.notify_all()

    @property
    def length(self) -> int:
        """Number of waiting keys."""
        return len(self._waiting)
