"""The look for tables that came or went at the source, in a thread of its own, one look at a time."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from levada.runtime.config import PipelineConfig
from levada.runtime.live import LiveConfig
from levada.runtime.reports import Discovered, Report

if TYPE_CHECKING:
    from levada.postgres.catalog import PublishedTable

_log = logging.getLogger(__name__)


class Discovery:
    """Looks every ``discovery_s`` seconds, and after `soon`. The methods belong to the supervisor's thread."""

    def __init__(
        self,
        live: LiveConfig,
        look: Callable[[PipelineConfig], tuple[PublishedTable, ...]],
        inbox: queue.SimpleQueue[Report],
    ) -> None:
        self._live = live
        self._look = look
        self._inbox = inbox
        self._next = float("inf")
        self._looking = False
        self._pool = ThreadPoolExecutor(1, "levada-discovery")

    def later(self, now: float) -> None:
        """Look after the usual time; ``now`` is of the monotonic clock."""
        self._next = now + self._live.now.discovery_s

    def soon(self) -> None:
        """Look as soon as no other look is under way."""
        self._next = 0.0

    def start(self, now: float) -> None:
        """Look if it is time."""
        if now >= self._next and not self._looking:
            self._looking = True
            self.later(now)
            self._pool.submit(self._run, self._live.now)

    def _run(self, config: PipelineConfig) -> None:  # in a pool
        try:
            self._inbox.put(Discovered(config, self._look(config)))
        except Exception as error:
            _log.warning("looking for new tables failed: %s", error)
            self._inbox.put(Discovered(config, None))

    def ended(self, report: Discovered) -> bool:
        """Tell whether what was seen is of any use: seen at all, and by the selectors that hold now."""
        self._looking = False
        return report.tables is not None and report.config.selects == self._live.now.selects

    def close(self) -> None:
        """Wait for a look that is under way."""
        self._pool.shutdown(cancel_futures=True)
