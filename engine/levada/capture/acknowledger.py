"""Decides which LSN may be confirmed to the slot: never past what a restart can recover."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from levada.capture.host import CaptureHost, Clock
from levada.capture.message_stream import MessageStream
from levada.errors import Transient
from levada.threads import marked_thread
from levada.values import Lsn, Witness

_log = logging.getLogger(__name__)

_STAGED_INTERVAL_S: Final = 2.0
"""The minimum interval between two acknowledgements of staged segments, in seconds."""
_PERSIST_TIMEOUT_S: Final = 10.0
"""The time, in seconds, after which a staged position is acknowledged although the store has not persisted it."""


class Acknowledger:
    """Acknowledges to the open stream the LSN up to which a restart loses nothing.

    It is the end of the staged segments, or the LSN that every table has applied if staging is not durable.
    The host persists each LSN before the slot receives it. A slot that is ahead of the persisted LSN was therefore
    moved by another consumer, even if staged segments were lost. While no segment is staged, an LSN is persisted at
    most once in ``idle_interval_s`` seconds. Otherwise it is persisted at most once in two seconds. All methods may be
    called from any thread.
    """

    def __init__(
        self,
        host: CaptureHost,
        *,
        durable: bool,
        idle_interval_s: float,
        clock: Clock = time.monotonic,
    ) -> None:
        self._durable = durable
        self._host = host
        self._idle_interval_s = idle_interval_s
        self._clock = clock
        self._next_idle = self._next_staged = self._persisting_since = clock()
        self._persister: threading.Thread | None = None
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._stream: MessageStream | None = None
        self._staged = Lsn(0)
        self._applied = Lsn(0)
        self._acknowledged: Lsn | None = None

    @property
    def acknowledged(self) -> Lsn | None:
        """Return the last LSN that was acknowledged, or None before the first."""
        return self._acknowledged

    def attach(self, stream: MessageStream, confirmed: Lsn, staged: Lsn, witness: Witness | None) -> None:
        """Start to acknowledge on a new stream.

        ``confirmed`` is the slot's ``confirmed_flush_lsn``. ``staged`` is the end of the staged segments, and
        ``witness`` is the last transaction below it.
        """
        with self._lock:
            self._stream = stream
            self._staged = max(self._staged, staged)
            self._acknowledged = max(self._acknowledged or Lsn(0), confirmed)
            safe = self._staged if self._durable else self._applied
            if safe > self._acknowledged:
                self._host.persist_ack(safe, witness if safe == staged else None)()
                self._acknowledge(safe)

    def finish(self, lsn: Lsn, witness: Witness | None) -> None:
        """Acknowledge the staged segments up to ``lsn`` before the stream is closed.

        ``witness`` is the last transaction below ``lsn``. Wait until the LSN is persisted, and raise the store's error.
        """
        self.close()
        with self._lock:
            self._next_staged = self._clock()
            self._acknowledge_staged(lsn, witness)
        self.close()
        if self._error is not None:
            raise self._error

    def close(self) -> None:
        """Wait for the thread that persists an LSN, so that it cannot overwrite the LSN of a later capture."""
        persister = self._persister
        if persister is not None:
            persister.join()

    def detach(self) -> None:
        """Stop acknowledging, because the stream is closed."""
        with self._lock:
            self._stream = None

    def staged(self, lsn: Lsn, witness: Witness | None) -> None:
        """Register that all changes below ``lsn`` are staged. ``witness`` is the last transaction below it."""
        with self._lock:
            self._staged = max(self._staged, lsn)
            self._acknowledge_staged(lsn, witness)

    def idle(self, lsn: Lsn, witness: Witness | None) -> None:
        """Acknowledge ``lsn`` if there is no change between the last segment and it, and the interval has passed.

        ``witness`` is the last transaction below ``lsn``.
        """
        with self._lock:
            safe = self._durable or self._applied >= self._staged
            if not safe or lsn <= (self._acknowledged or 0) or self._clock() < self._next_idle:
                return
            self._next_idle = self._clock() + self._idle_interval_s
            self._host.persist_ack(lsn, witness)()
            self._acknowledge(lsn)

    def _acknowledge_staged(self, lsn: Lsn, witness: Witness | None) -> None:
        """Persist ``lsn`` and then acknowledge it, in a thread, so that an unavailable store does not block capture.

        The staged segments are evidence of the position too. So after `_PERSIST_TIMEOUT_S` the LSN is acknowledged
        without the store. Otherwise an outage of the store would make the source retain WAL.
        """
        if self._error is not None:
            raise self._error
        if not self._durable or lsn <= (self._acknowledged or 0):
            return
        now = self._clock()
        if self._persister is not None:
            if now - self._persisting_since > _PERSIST_TIMEOUT_S:
                self._acknowledge(lsn)
        elif now >= self._next_staged:
            self._next_staged = now + min(_STAGED_INTERVAL_S, self._idle_interval_s)
            self._persisting_since = now
            persist = self._host.persist_ack(lsn, witness)
            self._persister = marked_thread(self._persist, "levada-position", lsn, persist)
            self._persister.start()

    def _persist(self, lsn: Lsn, persist: Callable[[], object]) -> None:  # runs in the persister thread
        failure: BaseException | None = None
        try:
            persist()
        except Transient as error:
            _log.warning("acknowledging %s although the store could not persist it: %s", lsn, error.message)
        except BaseException as error:
            # A custom store may raise any exception. Capture's thread raises it.
            failure = error
        with self._lock:
            self._persister, self._error = None, failure
            if failure is None:
                self._acknowledge(lsn)

    def applied(self, lsn: Lsn) -> None:
        """Register that every table has applied all commits below ``lsn``, and that the caller has persisted this LSN.

        The LSN is acknowledged if staging is not durable.
        """
        with self._lock:
            self._applied = max(self._applied, lsn)
            if not self._durable:
                self._acknowledge(self._applied)

    def _acknowledge(self, lsn: Lsn) -> None:
        if self._stream is not None and lsn > (self._acknowledged or 0):
            self._acknowledged = lsn
            self._stream.acknowledge(lsn)
