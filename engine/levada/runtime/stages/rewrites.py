"""The look at the storage of all tables, in a thread of its own. `levada.runtime.tables.storage_journal` judges it."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from levada.postgres.storage import read_storage
from levada.runtime.config_ref import ConfigRef
from levada.runtime.stages.messages import Report, StorageSeen
from levada.values import SnapshotId, TableId

if TYPE_CHECKING:
    pass

_log = logging.getLogger(__name__)

_LOOK_S: Final = 10.0
_NEWEST: Final = SnapshotId(2**64 - 1)


class StorageLooks:
    """Looks at the storage of all tables every 10 seconds, in a thread of its own, and after `soon`."""

    def __init__(
        self, config_ref: ConfigRef, tables: Callable[[], list[TableId]], inbox: queue.SimpleQueue[Report]
    ) -> None:
        self._config_ref = config_ref
        self._tables = tables
        self._inbox = inbox
        self._next = 0.0
        self._soon = threading.Event()
        self._looking = False
        self._pool = ThreadPoolExecutor(1, "levada-rewrites")

    def soon(self) -> None:
        """Look as soon as no other look is under way. From any thread."""
        self._soon.set()

    def start(self, now: float) -> None:
        """Look if it is time. ``now`` is of the monotonic clock. For the supervisor's thread."""
        if self._looking or (now < self._next and not self._soon.is_set()):
            return
        self._soon.clear()
        self._looking, self._next = True, now + _LOOK_S
        self._pool.submit(self._run, self._tables())

    def ended(self) -> None:
        """Take note that a look has been reported."""
        self._looking = False

    def close(self) -> None:
        """Wait for a look that is under way."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, tables: list[TableId]) -> None:  # in a pool
        try:
            with self._config_ref.current.source.connect(application="rewrites") as connection:
                self._inbox.put(StorageSeen(read_storage(connection, tables)))
        except Exception as error:
            _log.warning("looking for rewritten tables failed: %s", error)
            self._inbox.put(StorageSeen(None))
