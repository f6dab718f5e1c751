"""Staged segments until nobody needs them, and what capture may acknowledge because of that."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from levada.errors import LevadaError
from levada.runtime.source.record import SourceRecord
from levada.runtime.tables.registry import Roster
from levada.runtime.tables.retries import mends_itself
from levada.segments.ledger import Ledger
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.values import Lsn

_log = logging.getLogger(__name__)

_EVERY_S: Final = 2.0


class Retention:
    """Removes segments. ``release`` is called with the LSN up to which every table has applied.

    ``keep_ledger`` makes the ledger durable before the newest manifest is removed.
    """

    def __init__(
        self,
        roster: Roster,
        log: SegmentLog,
        record: SourceRecord,
        release: Callable[[Lsn], None],
        keep_ledger: Callable[[Ledger], None] = lambda ledger: None,
    ) -> None:
        self._roster = roster
        self._log = log
        self._record = record
        self._release = release
        self._keep_ledger = keep_ledger
        self._next = 0.0
        self._gone: deque[Manifest] = deque()
        """Those that nobody needs and that are not removed yet."""

    def remove(self, now: float) -> None:
        """Give up what nobody needs; before nothing shows it any more, remember how far the slot may have been told.

        Does so every two seconds at most; ``now`` is of the monotonic clock. What the staging area does not remove now
        is tried again.
        """
        if now < self._next:
            return
        self._next = now + _EVERY_S
        self._gone += self._roster.backlog.take_removable()
        everywhere = self._roster.backlog.everywhere(self._roster.staged_lsn)
        if not self._log.staging.durable:
            self._record.remember(everywhere, None)
        elif self._gone:
            newest = max(self._gone, key=lambda m: m.end_lsn)
            if newest.end_lsn > self._roster.backlog.end:
                # No manifest has the ledger any more once these are removed.
                self._keep_ledger(self._roster.backlog.ledger)
            self._record.remember(newest.end_lsn, newest.last)
        try:
            self._remove_segments()
        except LevadaError as error:
            if not mends_itself(error):
                raise
            _log.warning("%d segments wait to be removed: %s", len(self._gone), error.message)
        self._release(everywhere)

    def _remove_segments(self) -> None:
        while self._gone:
            self._log.remove(self._gone[0])
            self._gone.popleft()
