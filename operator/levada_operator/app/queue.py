"""A queue of distinct keys, like client-go's work queue. No key is processed twice at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

_K = TypeVar("_K", bound=Hashable)


class KeyedQueue(Generic[_K]):
    """A queue for one event loop. A key that is added again while it waits is queued once.

    Keys are taken from each group in turn, and at most ``most`` of a group are processed at the same time.
    """

    def __init__(self, group: Callable[[_K], Hashable] = lambda key: key, most: int = 1 << 30) -> None:
        self._group = group
        self._most = most
        self._waiting: dict[Hashable, dict[_K, None]] = {}
        self._busy: set[_K] = set()
        self._running: Counter[Hashable] = Counter()
        self._changed = asyncio.Condition()

    async def add(self, key: _K) -> None:
        """Add a key. A key that is being processed is processed once more."""
        async with self._changed:
            self._waiting.setdefault(self._group(key), {}).setdefault(key)
            self._changed.notify()

    async def get(self) -> _K:
        """Wait for a key that is not being processed, and return it. The caller must call `done`."""
        async with self._changed:
            while True:
                for group, keys in self._waiting.items():
                    if self._running[group] >= self._most:
                        continue
                    if (key := next((k for k in keys if k not in self._busy), None)) is not None:
                        return self._taken(group, key)
                await self._changed.wait()

    def _taken(self, group: Hashable, key: _K) -> _K:
        keys = self._waiting.pop(group)
        del keys[key]
        if keys:
            # The next time, all other groups come first.
            self._waiting[group] = keys
        self._busy.add(key)
        self._running[group] += 1
        return key

    async def done(self, key: _K) -> None:
        """Mark a key as processed."""
        async with self._changed:
            self._busy.discard(key)
            group = self._group(key)
            self._running[group] -= 1
            if not self._running[group]:
                del self._running[group]
            self._changed.notify_all()

    @property
    def length(self) -> int:
        """Number of keys that wait or are being processed."""
        return len(self._busy.union(*self._waiting.values()))
