"""The budget of writes to the API server: a rate limit with three priorities.

Writes for a Pipeline itself are *prompt*. Writes for its tables come in thousands, so they are *bulk*: no Pipeline
waits for the tables of another. Writes of counters are *spare*.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

WRITES_PER_S: Final = 5.0
BURST: Final = 20
_RESERVED: Final = BURST / 2
"""Tokens that spare writes leave for the others."""


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
        """Wait for a token for a prompt write, in order of arrival."""
        async with self._turn:
            while (missing := 1 - self._refilled()) > 0:
                await asyncio.sleep(missing / self._rate)
            self._tokens -= 1

    async def take_bulk(self, until: float) -> bool:
        """Wait for a token for a bulk write while no prompt write waits. Return False if there is none by ``until``.

        ``until`` is a time of the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(until), self._bulk_turn:
                while self._turn.locked() or self._refilled() < 1:
                    await asyncio.sleep(1 / self._rate)
                self._tokens -= 1
                return True
        except TimeoutError:
            return False

    def take_spare(self) -> bool:
        """Take a token for a spare write. Return False if other writes wait or few tokens are left."""
        if self._turn.locked() or self._bulk_turn.locked() or self._refilled() < _RESERVED:
            return False
        self._tokens -= 1
        return True

    def _refilled(self) -> float:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        return self._tokens
