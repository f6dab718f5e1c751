"""The budget of writes to the API server: so many a second in all, what is awaited first, counters last.

What concerns a Pipeline itself is *prompt*. What concerns its tables comes in thousands, so it is *bulk*: no Pipeline
must wait for another's tables to be told of. Counters are *spare*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

WRITES_PER_S: Final = 5.0
BURST: Final = 20
_RESERVED: Final = BURST / 2
"""What counters leave for everything else."""


class WriteBudget:
    """A token bucket, for one event loop. ``clock`` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float], *, rate: float = WRITES_PER_S, burst: int = BURST) -> None:
        self._clock = clock
        self._rate = rate
        self._burst = float(burst)
        self._tokens = float(burst)
        self._at = clock()
        self._turn = asyncio.Lock()
        self._bulk_turn = asyncio.Lock()

    async def take(self) -> None:
        """Wait until there is room for a prompt write; who waits first writes first."""
        async with self._turn:
            while (missing := 1 - self._refilled()) > 0:
                await asyncio.sleep(missing / self._rate)
            self._tokens -= 1

    async def take_bulk(self, until: float) -> bool:
        """Wait for room that nothing prompt asks for; False if there is none until then, by the event loop's clock."""
        try:
            async with asyncio.timeout_at(until), self._bulk_turn:
                while self._turn.locked() or self._refilled() < 1:
                    await asyncio.sleep(1 / self._rate)
                self._tokens -= 1
                return True
        except TimeoutError:
            return False

    def take_spare(self) -> bool:
        """Take room for a write that can wait; False if there is none to spare."""
        if self._turn.locked() or self._bulk_turn.locked() or self._refilled() < _RESERVED:
            return False
        self._tokens -= 1
        return True

    def _refilled(self) -> float:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens
