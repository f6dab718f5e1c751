"""A table at one LSN on both sides, and the release of the table, which a verification holds meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from levada.copy.range_reader import RangeReader
from levada.destinations.verification import FixedTable
from levada.runtime.tables.hold_state import Held
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.values import Lsn
from levada.verify.source_table import SourceTable


@dataclass(frozen=True, slots=True)
class Moment:
    """A table at one LSN: in the source's snapshot, and at the destination."""

    source: SourceTable
    schema: ReplicatedTableSchema
    target: TableTarget
    lake: FixedTable
    lsn: Lsn
    held: Held
    reader: RangeReader
    """Reads whole rows of the source under the snapshot."""
    versions: ExitStack
    """Closes each version of the table at the destination."""
    repaired: threading.Event
    """Set once the table was repaired."""


class Release:
    """Releases a table once, at the latest after ``limit_s`` seconds."""

    def __init__(self, release: Callable[[], None], limit_s: float) -> None:
        self._release = release
        self._lock = threading.Lock()
        self.done = False
        self._timer = threading.Timer(limit_s, self.now)
        self._timer.daemon = True
        self._timer.start()

    def keep(self) -> bool:
        """Hold the table without a limit. Return False if it was released before."""
        with self._lock:
            self._timer.cancel()
            return not self.done

    def now(self) -> bool:
        """Release the table. Return False if it was released before."""
        with self._lock:
            first, self.done = not self.done, True
        if first:
            self._timer.cancel()
            self._release()
        return first
