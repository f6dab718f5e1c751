"""Confirmations in any order to one position that may be acknowledged: the end of an unbroken prefix. Pure."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from levada.values import Lsn


@dataclass(frozen=True, slots=True, eq=False)
class Ack:
    """Confirms one change, or one batch, once its effect is durable. From any thread, in any order, more than once.

    An ack belongs to its stream. A change whose ack is dropped, or confirmed after its stream was closed, comes again
    in the next stream.
    """

    _confirm: Callable[[], None]

    def confirm(self) -> None:
        """Report that the effect is durable."""
        self._confirm()


@dataclass(slots=True, eq=False)
class _Entry:
    releases: Lsn | None
    confirmed: bool


class AckTracker:
    """Hands out acks in the stream's order, and tells the highest LSN before which nothing is unconfirmed.

    Only an entry at the end of a transaction releases an LSN: acknowledging part of one would lose the rest. ``moved``
    is called with each new position, in ascending order, from the thread that confirmed.
    """

    def __init__(self, start: Lsn, moved: Callable[[Lsn], None]) -> None:
        self._position = start
        self._moved = moved
        self._entries: deque[_Entry] = deque()
        self._lock = threading.Lock()

    @property
    def position(self) -> Lsn:
        """Return the LSN up to which everything is confirmed."""
        return self._position

    def change(self, end_lsn: Lsn | None = None) -> Ack:
        """Register the next change, or batch; ``end_lsn`` is the end of the COMMIT if it is a transaction's last."""
        entry = _Entry(end_lsn, confirmed=False)
        with self._lock:
            self._entries.append(entry)
        return Ack(lambda: self._confirm(entry))

    def progress(self, lsn: Lsn) -> None:
        """Register that nothing more comes below ``lsn``, outside of a transaction; itself it is confirmed."""
        with self._lock:
            self._entries.append(_Entry(lsn, confirmed=True))
            self._advance()

    def _confirm(self, entry: _Entry) -> None:
        with self._lock:
            entry.confirmed = True
            self._advance()

    def _advance(self) -> None:
        position = self._position
        while self._entries and self._entries[0].confirmed:
            releases = self._entries.popleft().releases
            if releases is not None:
                position = max(position, releases)
        if position != self._position:
            self._position = position
            self._moved(position)
