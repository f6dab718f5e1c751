"""Staged segments until nobody needs them, and what capture may acknowledge because of that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from levada.runtime.roster import Roster
from levada.runtime.source import SLOT_WORKER
from levada.segments.log import SegmentLog
from levada.stores.interface import PipelineStore
from levada.values import Lsn

_EVERY_S: Final = 2.0


class Retention:
    """Removes segments; ``release`` is told the LSN up to which every table has applied."""

    def __init__(self, roster: Roster, log: SegmentLog, store: PipelineStore, release: Callable[[Lsn], None]) -> None:
        self._roster = roster
        self._log = log
        self._store = store
        self._release = release
        self._next = 0.0
        self._remembered = Lsn(0)

    def remove(self, now: float) -> None:
        """Give up what nobody needs; before nothing shows it any more, remember how far the slot may have been told.

        Does so every two seconds at most; ``now`` is of the monotonic clock.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_S
        gone = self._roster.backlog.take_removable()
        everywhere = self._roster.backlog.everywhere(self._roster.staged_lsn)
        position = everywhere if not self._log.staging.durable else max((m.end_lsn for m in gone), default=Lsn(0))
        if position > self._remembered:
            self._remembered = self._store.upsert_replication_progress(SLOT_WORKER, position)
        for manifest in gone:
            self._log.remove(manifest)
        self._release(everywhere)
