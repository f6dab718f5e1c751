"""Discovery of tables that were created, dropped or may have missed changes, in a thread of its own."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.errors import Transient
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.stages.messages import Discovered, Report
from levada.runtime.tables.retries import as_levada_error
from levada.threads import MarkedPool

if TYPE_CHECKING:
    from levada.runtime.tables.source_tables import SourceTables

_log = logging.getLogger(__name__)


_CHECK_S: Final = 5.0
"""Seconds between two checks for gaps. A check is one query, which compares the publication with the copied tables."""
_TABLE_S: Final = 0.06
"""Seconds by table between two discoveries, of which each takes about 100 µs of the source's CPU for a table."""
_TABLE_CHECK_S: Final = 0.009
"""The same for checks, which take about 8 µs. So both take at most 0.3 % of one core."""


def discovery_interval_s(configured_s: float, tables: int) -> float:
    """Return the seconds between two discoveries of this number of tables."""
    return max(configured_s, tables * _TABLE_S)


def check_interval_s(tables: int) -> float:
    """Return the seconds between two checks of this number of tables."""
    return max(_CHECK_S, tables * _TABLE_CHECK_S)


class Discovery:
    """Calls ``discover`` every ``discovery_s`` seconds, after `soon`, and when ``has_gaps`` returns True.

    While tables are locked, which cannot be added then, it is called every few seconds.

    One call runs at a time, in a thread. The methods are for the supervisor's thread, except `soon`.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        discover: Callable[[PipelineConfig], SourceTables],
        has_gaps: Callable[[PipelineConfig], bool],
        inbox: queue.SimpleQueue[Report],
    ) -> None:
        self._config_ref = config_ref
        self._discover = discover
        self._has_gaps = has_gaps
        self._inbox = inbox
        self._next = float("inf")
        self._soon = threading.Event()
        self._next_check = 0.0
        self._running = False
        self._table_count = 0
        self._check_fails = False
        self._pool = MarkedPool(1, "levada-discovery")

    def later(self, now: float) -> None:
        """Run next after the usual interval. ``now`` is in seconds, monotonic."""
        self._next = now + discovery_interval_s(self._config_ref.current.discovery_s, self._table_count)

    def soon(self) -> None:
        """Run next as soon as no run is under way. From any thread."""
        self._soon.set()

    def start(self, now: float) -> None:
        """Start a discovery or a check for gaps if one is due. ``now`` is in seconds, monotonic."""
        due = self._soon.is_set() or now >= self._next
        if self._running or not (due or now >= self._next_check):
            return
        self._running, self._next_check = True, now + check_interval_s(self._table_count)
        if not due:
            self._pool.submit(self._check, self._config_ref.current)
            return
        self._soon.clear()
        self.later(now)
        self._pool.submit(self._run, self._config_ref.current)

    def _check(self, config: PipelineConfig) -> None:  # in a pool
        try:
            found, self._check_fails = self._has_gaps(config), False
        except Exception as error:
            if not self._check_fails:
                _log.warning("the check of the publication for gaps failed: %s", error)
            found, self._check_fails = False, True
        if found:
            self._run(config)
        else:
            self._inbox.put(Discovered(config, None))

    def _run(self, config: PipelineConfig) -> None:  # in a pool
        try:
            self._inbox.put(Discovered(config, self._discover(config)))
        except Exception as error:
            known = as_levada_error(error)
            _log.warning("the discovery of tables failed: %s", known)
            # An error of the source's connection is shown with the stream.
            lasts = known.code == codes.SELECTS_FAILED or not isinstance(known, Transient)
            self._inbox.put(Discovered(config, None, known if lasts else None))

    def ended(self, report: Discovered) -> bool:
        """Return True if the report can be used.

        It cannot if the source could not be read, or if the table selectors have changed since.
        """
        self._running = False
        if report.tables is not None:
            self._table_count = len(report.tables.published)
            if report.tables.locked is not None:
                self._next = min(self._next, time.monotonic() + _CHECK_S)
        return report.tables is not None and report.config.selects == self._config_ref.current.selects

    def close(self) -> None:
        """Wait for the run that is under way."""
        self._pool.shutdown(cancel_futures=True)
