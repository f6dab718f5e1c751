"""Turns confirmations, which come in any order, into the one LSN that may be acknowledged to the slot. Pure."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from levada.values import Lsn


@dataclass(frozen=True, slots=True, eq=False)
class Ack:
    """Confirms one change, or one batch, once its effect is durable.

    Acks may be confirmed from any thread, in any order, and more than once. An ack belongs to its stream. If it is
    dropped, or confirmed only after the stream was closed, the next stream sends the change again.
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
    """Creates acks in the stream's order, and computes the highest LSN below which every change is confirmed.

    The position only moves to the end of a transaction, because acknowledging a part of one would lose the rest.
    ``moved`` is called with each new position, in ascending order, from the thread that confirmed.
    """

    def __init__(self, start: Lsn, moved: Callable[[Lsn], None]) -> None:
        self._position = start
        self._moved = moved
        self._entries: deque[_Entry] = deque()
        self._lock = threading.Lock()

    @property
    def position(self) -> Lsn:
        """Return the LSN below which every change is confirmed."""
        return self._position

    def change(self, end_lsn: Lsn | None = None) -> Ack:
        """Register the next change, or batch, and return its ack.

        ``end_lsn`` is the end of the COMMIT record if the change is the last of its transaction, otherwise None.
        """
        entry = _Entry(end_lsn, confirmed=False)
        with self._lock:
            self._entries.append(entry)
        return Ack(lambda: self._confirm(entry))

    def progress(self, lsn: Lsn) -> None:
        """Register that no further change commits below ``lsn``.

        It needs no ack. Do not call it inside a transaction.
        """
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
