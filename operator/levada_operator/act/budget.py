"""The budget of writes to the API server: a rate limit with three priorities.

Writes for a Pipeline itself are *prompt*. Writes for its tables come in thousands, so they are *bulk*: no Pipeline
waits for the tables of another. The rate of both follows how fast the API server answers. Writes of counters are
*spare*. They have a low rate, because they never end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from levada_operator.act.fair_turns import FairTurns
from levada_operator.act.write_rate import WriteRate

SPARE_PER_S: Final = 5.0
SPARE_BURST: Final = 30
"""Spare writes come together, after a sweep. This is more than what accumulates between two."""
BURST: Final = 30
_RESERVED: Final = BURST / 3
"""Tokens that spare writes leave for the others."""


class WriteBudget:
    """Two token buckets, for one event loop. ``clock`` is monotonic, in seconds.

    Every write takes a token of both. A spare write needs tokens in both.
    """

    def __init__(self, clock: Callable[[], float], *, burst: int = BURST) -> None:
        self.rate = WriteRate()
        self._clock = clock
        self._burst = float(burst)
        self._tokens = float(burst)
        self._spare = float(SPARE_BURST)
        self._at = clock()
        self.turns = FairTurns()
        self._bulk = FairTurns()

    def answered(self, seconds: float, status: int = 200, retry_after_s: float = 0.0, *, namespace: str = "") -> None:
        """Record the API server's answer to a write, as `WriteRate.answered` has it."""
        self.rate.answered(self._clock(), seconds, status, retry_after_s, namespace)

    async def take(self, namespace: str = "") -> None:
        """Wait for a token for a prompt write. Namespaces take turns, so that none waits for many writes of another."""
        async with self.turns.turn(namespace):
            while (missing := 1 - self._refilled()) > 0:
                await asyncio.sleep(self._wait_s(missing))
            self._spend()

    async def take_bulk(self, until: float, namespace: str = "") -> bool:
        """Wait for a token for a bulk write while no prompt write waits. Return False if there is none by ``until``.

        Namespaces take turns, however many Pipelines each has. ``until`` is a time of the event loop's clock.
        """
        try:
            async with asyncio.timeout_at(until), self._bulk.turn(namespace):
                while self.turns.busy or self._refilled() < 1:
                    await asyncio.sleep(self._wait_s(1))
                self._spend()
                return True
        except TimeoutError:
            return False

    def take_spare(self) -> bool:
        """Take a token for a spare write. Return False if other writes wait or few tokens are left."""
        if self.turns.busy or self._bulk.busy or self._refilled() < _RESERVED or self._spare < 1:
            return False
        self._spend()
        return True

    def _spend(self) -> None:
        self._tokens -= 1
        self._spare = max(0.0, self._spare - 1)

    def _wait_s(self, missing: float) -> float:
        return max(missing / self.rate.per_s, self.rate.closed_until - self._clock())

    def _refilled(self) -> float:
        now = self._clock()
        passed, self._at = now - self._at, now
        self._spare = min(SPARE_BURST, self._spare + passed * SPARE_PER_S)
        if now < self.rate.closed_until:
            return 0.0
        self._tokens = min(self._burst, self._tokens + passed * self.rate.per_s)
        return self._tokens
