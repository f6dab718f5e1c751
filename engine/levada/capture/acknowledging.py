"""Decides which LSN may be confirmed to the slot: never past what a restart can recover."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from levada.errors import Transient
from levada.postgres.stream import ReplicationStream
from levada.values import Lsn, Witness

_log = logging.getLogger(__name__)

_STAGED_S: Final = 2.0
"""The interval at which staged segments are acknowledged, in seconds."""


class Acknowledger:
    """Confirms to the open stream what is safe: what is staged, or on scratch staging what every table has applied.

    ``remember`` keeps a position, and the last transaction below it, before the slot gets it. So a slot that is further
    was moved by another consumer, also where segments are lost. It is called every ``remember_s`` seconds at most while
    nothing is staged, otherwise every two seconds at most. Methods may be called from any thread.
    """

    def __init__(
        self,
        *,
        durable: bool,
        remember: Callable[[Lsn, Witness | None], object],
        remember_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._durable = durable
        self._remember = remember
        self._remember_s = remember_s
        self._clock = clock
        self._next_remember = self._next_staged = clock()
        self._lock = threading.Lock()
        self._stream: ReplicationStream | None = None
        self._staged = Lsn(0)
        self._applied = Lsn(0)
        self._told: Lsn | None = None

    @property
    def told(self) -> Lsn | None:
        """Return the last position that was acknowledged; None before the first."""
        return self._told

    def attach(self, stream: ReplicationStream, confirmed: Lsn, staged: Lsn, witness: Witness | None) -> None:
        """Acknowledge on this stream.

        ``confirmed`` is the slot's position, ``staged`` the end of the segments, ``witness`` the last transaction
        below that.
        """
        with self._lock:
            self._stream = stream
            self._staged = max(self._staged, staged)
            self._told = max(self._told or Lsn(0), confirmed)
            safe = self._staged if self._durable else self._applied
            if safe > self._told:
                self._remember(safe, witness if safe == staged else None)
                self._tell(safe)

    def finish(self, lsn: Lsn, witness: Witness | None) -> None:
        """Acknowledge what is staged before the stream is closed. ``witness`` is the last transaction below ``lsn``."""
        with self._lock:
            self._next_staged = self._clock()
            self._acknowledge_staged(lsn, witness)

    def detach(self) -> None:
        """Forget the stream."""
        with self._lock:
            self._stream = None

    def staged(self, lsn: Lsn, witness: Witness | None) -> None:
        """Take note that everything below ``lsn`` is in a segment. ``witness`` is the last transaction there."""
        with self._lock:
            self._staged = max(self._staged, lsn)
            self._acknowledge_staged(lsn, witness)

    def idle(self, lsn: Lsn, witness: Witness | None) -> None:
        """Acknowledge ``lsn``, as there is nothing between the last segment and it, once that is due.

        ``witness`` is the last transaction below it.
        """
        with self._lock:
            safe = self._durable or self._applied >= self._staged
            if not safe or lsn <= (self._told or 0) or self._clock() < self._next_remember:
                return
            self._next_remember = self._clock() + self._remember_s
            self._remember(lsn, witness)
            self._tell(lsn)

    def _acknowledge_staged(self, lsn: Lsn, witness: Witness | None) -> None:
        if not self._durable or lsn <= (self._told or 0) or self._clock() < self._next_staged:
            return
        self._next_staged = self._clock() + min(_STAGED_S, self._remember_s)
        try:
            self._remember(lsn, witness)
        except Transient as error:
            # The segments show the position as well, and the source must not keep its WAL because the store is away.
            _log.warning("the position %s is acknowledged, and is not in the store: %s", lsn, error.message)
        self._tell(lsn)

    def applied(self, lsn: Lsn) -> None:
        """Every table has applied all that commits below ``lsn``, and the caller remembers it."""
        with self._lock:
            self._applied = max(self._applied, lsn)
            if not self._durable:
                self._tell(self._applied)

    def _tell(self, lsn: Lsn) -> None:
        if self._stream is not None and lsn > (self._told or 0):
            self._told = lsn
            self._stream.acknowledge(lsn)
