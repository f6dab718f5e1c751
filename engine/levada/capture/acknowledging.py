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
_PATIENCE_S: Final = 10.0
"""The time after which a position is acknowledged although it could not be kept, in seconds."""


class Acknowledger:
    """Confirms to the open stream what is safe: what is staged, or on scratch staging what every table has applied.

    ``remember`` returns a function that keeps a position, and the last transaction below it. That is called before the
    slot gets the position. So a slot that is further was moved by another consumer, also where segments are lost. It
    is called every ``remember_s`` seconds at most while nothing is staged, otherwise every two seconds at most. Methods
    may be called from any thread.
    """

    def __init__(
        self,
        *,
        durable: bool,
        remember: Callable[[Lsn, Witness | None], Callable[[], object]],
        remember_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._durable = durable
        self._remember = remember
        self._remember_s = remember_s
        self._clock = clock
        self._next_remember = self._next_staged = self._keeping_since = clock()
        self._keeper: threading.Thread | None = None
        self._refused: Exception | None = None
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
                self._remember(safe, witness if safe == staged else None)()
                self._tell(safe)

    def finish(self, lsn: Lsn, witness: Witness | None) -> None:
        """Acknowledge what is staged before the stream is closed. ``witness`` is the last transaction below ``lsn``."""
        self.close()
        with self._lock:
            self._next_staged = self._clock()
            self._acknowledge_staged(lsn, witness)
        self.close()
        if self._refused is not None:
            raise self._refused

    def close(self) -> None:
        """Wait until no position is being kept: a late one must not follow what another capture keeps."""
        keeper = self._keeper
        if keeper is not None:
            keeper.join()

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
            self._remember(lsn, witness)()
            self._tell(lsn)

    def _acknowledge_staged(self, lsn: Lsn, witness: Witness | None) -> None:
        """Keep the position and acknowledge it then, in a thread: a store that is away must not keep capture waiting.

        The segments show the position as well, so after a while it is acknowledged all the same. Otherwise the source
        would keep its WAL because of the store.
        """
        if self._refused is not None:
            raise self._refused
        if not self._durable or lsn <= (self._told or 0):
            return
        now = self._clock()
        if self._keeper is not None:
            if now - self._keeping_since > _PATIENCE_S:
                self._tell(lsn)
        elif now >= self._next_staged:
            self._next_staged = now + min(_STAGED_S, self._remember_s)
            self._keeping_since = now
            keep = self._remember(lsn, witness)
            self._keeper = threading.Thread(target=self._keep, args=(lsn, keep), name="levada-position", daemon=True)
            self._keeper.start()

    def _keep(self, lsn: Lsn, keep: Callable[[], object]) -> None:  # in a thread of its own
        refused: Exception | None = None
        try:
            keep()
        except Transient as error:
            _log.warning("the position %s is acknowledged, and is not in the store: %s", lsn, error.message)
        except Exception as error:
            # Raised in capture's thread. A store of a user's own may raise anything.
            refused = error
        with self._lock:
            self._keeper, self._refused = None, refused
            if refused is None:
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
