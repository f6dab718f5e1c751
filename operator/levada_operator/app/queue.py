"""A queue of keys: a key that is woken again while it waits is there once, and never handled twice at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class KeyedQueue(Generic[_K]):
    """For one event loop."""

    def __init__(self) -> None:
        self._waiting: dict[_K, None] = {}
        self._busy: set[_K] = set()
        self._changed = asyncio.Condition()

    async def add(self, key: _K) -> None:
        """Have a key handled, once more if it is being handled."""
        async with self._changed:
            self._waiting.setdefault(key)
            self._changed.notify()

    async def get(self) -> _K:
        """Wait for a key and return it; `done` must follow."""
        async with self._changed:
            while True:
                for key in self._waiting:
                    if key not in self._busy:
                        del self._waiting[key]
                        self._busy.add(key)
                        return key
                await self._changed.wait()

    async def acquire(self, key: _K) -> None:
        """Wait until a key is not being handled, and take it out of turn; `done` must follow."""
        async with self._changed:
            while key in self._busy:
                await self._changed.wait()
            self._waiting.pop(key, None)
            self._busy.add(key)

    async def done(self, key: _K) -> None:
        """Give a key back."""
        async with self._changed:
            self._busy.discard(key)
            self._changed.notify_all()

    @property
    def length(self) -> int:
        """How many keys wait."""
        return len(self._waiting)
