"""What the slot may be told: never more than what a restart would find again."""

from __future__ import annotations

import threading

from levada.postgres.stream import ReplicationStream
from levada.values import Lsn


class Acknowledger:
    """Tells the open stream what is safe. Durable staging: what is staged; scratch: what every table has applied.

    Methods may be called from any thread.
    """

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self._lock = threading.Lock()
        self._stream: ReplicationStream | None = None
        self._staged = Lsn(0)
        self._applied = Lsn(0)
        self._told: Lsn | None = None

    @property
    def told(self) -> Lsn | None:
        """Return the last position that was acknowledged; None before the first."""
        return self._told

    def attach(self, stream: ReplicationStream, confirmed: Lsn, staged: Lsn) -> None:
        """Acknowledge on this stream; ``confirmed`` is what the slot knows, ``staged`` what is in segments."""
        with self._lock:
            self._stream = stream
            self._staged = max(self._staged, staged)
            self._told = max(self._told or Lsn(0), confirmed)
            self._tell(self._staged if self._durable else self._applied)

    def detach(self) -> None:
        """Forget the stream."""
        with self._lock:
            self._stream = None

    def staged(self, lsn: Lsn) -> None:
        """Everything that commits below ``lsn`` is in a segment."""
        with self._lock:
            self._staged = max(self._staged, lsn)
            if self._durable:
                self._tell(lsn)

    def idle(self, lsn: Lsn) -> None:
        """Between the last segment and ``lsn`` there is nothing."""
        with self._lock:
            if self._durable or self._applied >= self._staged:
                self._tell(lsn)

    def applied(self, lsn: Lsn) -> None:
        """Every table has applied all that commits below ``lsn``."""
        with self._lock:
            self._applied = max(self._applied, lsn)
            if not self._durable:
                self._tell(self._applied)

    def _tell(self, lsn: Lsn) -> None:
        if self._stream is not None and lsn > (self._told or 0):
            self._told = lsn
            self._stream.acknowledge(lsn)
