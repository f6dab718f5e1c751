"""The look for tables that came, went, or have gaps at the source, in a thread of its own, one look at a time."""

from __future__ import annotations

import logging
import queue
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.stages.messages import Discovered, Report

if TYPE_CHECKING:
    from levada.runtime.source.preparation import SourceTables

_log = logging.getLogger(__name__)


_CHECK_S: Final = 5.0
"""How often the publication is compared with what tables were copied under, in seconds: one query."""


class Discovery:
    """Looks every ``discovery_s`` seconds, after `soon`, and as soon as ``has_gaps`` returns True.

    The methods belong to the supervisor's thread.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        look: Callable[[PipelineConfig], SourceTables],
        has_gaps: Callable[[PipelineConfig], bool],
        inbox: queue.SimpleQueue[Report],
    ) -> None:
        self._config_ref = config_ref
        self._look = look
        self._has_gaps = has_gaps
        self._inbox = inbox
        self._next = float("inf")
        self._next_check = 0.0
        self._looking = False
        self._check_fails = False
        self._pool = ThreadPoolExecutor(1, "levada-discovery")

    def later(self, now: float) -> None:
        """Look after the usual time; ``now`` is of the monotonic clock."""
        self._next = now + self._config_ref.current.discovery_s

    def soon(self) -> None:
        """Look as soon as no other look is under way."""
        self._next = 0.0

    def start(self, now: float) -> None:
        """Look, or check for gaps, if it is time."""
        if self._looking or now < min(self._next, self._next_check):
            return
        self._looking, self._next_check = True, now + _CHECK_S
        if now < self._next:
            self._pool.submit(self._check, self._config_ref.current)
            return
        self.later(now)
        self._pool.submit(self._run, self._config_ref.current)

    def _check(self, config: PipelineConfig) -> None:  # in a pool
        try:
            found, self._check_fails = self._has_gaps(config), False
        except Exception as error:
            if not self._check_fails:
                _log.warning("comparing the publication with the tables failed: %s", error)
            found, self._check_fails = False, True
        if found:
            self._run(config)
        else:
            self._inbox.put(Discovered(config, None))

    def _run(self, config: PipelineConfig) -> None:  # in a pool
        try:
            self._inbox.put(Discovered(config, self._look(config)))
        except Exception as error:
            _log.warning("looking for new tables failed: %s", error)
            self._inbox.put(Discovered(config, None))

    def ended(self, report: Discovered) -> bool:
        """Tell whether what was seen is of any use: seen at all, and by the selectors that hold now."""
        self._looking = False
        return report.tables is not None and report.config.selects == self._config_ref.current.selects

    def close(self) -> None:
        """Wait for a look that is under way."""
        self._pool.shutdown(cancel_futures=True)
