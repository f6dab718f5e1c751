"""The thread that owns the tables' phases. It lets the stages handle their messages and start their next jobs.

Everything here runs in the supervisor's thread unless marked otherwise. Jobs run in thread pools and report through the
inbox. So the only shared state is the inbox, the store and the published progress.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from levada.errors import LevadaError
from levada.runtime.config_ref import ConfigRef
from levada.runtime.inbox import Inbox
from levada.runtime.pace import Pace
from levada.runtime.stages.ahead import AheadStage
from levada.runtime.stages.apply import ApplyStage
from levada.runtime.stages.arrivals import ArrivalStage
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.stages.copy import CopyStage
from levada.runtime.stages.discovery import Discovery
from levada.runtime.stages.guard import Guard
from levada.runtime.stages.holds import HoldStage
from levada.runtime.stages.lake_cuts import LakeCuts
from levada.runtime.stages.messages import ActionsStored, ProgressWanted, Reconfigured
from levada.runtime.stages.resync import ResyncStage
from levada.runtime.stages.retention import Retention
from levada.runtime.stages.storage_poller import StoragePoller
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.retries import as_levada_error

if TYPE_CHECKING:
    from levada.runtime.config import PipelineConfig
    from levada.runtime.tables.source_tables import SourceTables
    from levada.segments.manifest import Manifest

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_ACTIONS_EVERY_S: Final = 2.0
_SHARE_OF_STARTS: Final = 0.1
"""The highest share of a core for the walk over all tables that starts what is due."""
_SHARE_OF_PROGRESS: Final = 0.05
"""The highest share of a core for publishing the progress of all tables."""


class Supervisor:
    """Runs the stages and handles their reports. `run` is the body of its thread.

    ``check`` raises if no task can run any more, for example because Spark's JVM has ended.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        registry: TableRegistry,
        *,
        capture: CaptureThread,
        copies: CopyStage,
        arrivals: ArrivalStage,
        applies: ApplyStage,
        ahead: AheadStage,
        holds: HoldStage,
        lake_cuts: LakeCuts,
        resyncs: ResyncStage,
        discovery: Discovery,
        storage_poller: StoragePoller,
        retention: Retention,
        guard: Guard,
        check: Callable[[], None],
        publish: Callable[[Supervisor], None],
        inbox: Inbox,
    ) -> None:
        self.config_ref = config_ref
        self.registry = registry
        self._capture = capture
        self._staged = capture.position
        self._copies = copies
        self._arrivals = arrivals
        self._ahead = ahead
        self._applies = applies
        self._holds = holds
        self.lake_cuts = lake_cuts
        self._resyncs = resyncs
        self._discovery = discovery
        self._storage_poller = storage_poller
        self._retention = retention
        self.guard = guard
        self._check = check
        self._publish = publish
        self._inbox = inbox
        self._stop = threading.Event()
        self._starts = Pace(_SHARE_OF_STARTS)
        self._progress = Pace(_SHARE_OF_PROGRESS)
        self._next_actions = 0.0
        inbox.on(Reconfigured, self._reconfigure)
        inbox.on(ActionsStored, self._apply_actions)
        inbox.on(ProgressWanted, lambda _: self._publish(self))

    def adopt(self, source: SourceTables, manifests: tuple[Manifest, ...], *, resync: bool) -> None:
        """Load the tables from the store, the destination and the staging area. Call it before the thread runs."""
        self.registry.membership.adopt(source, manifests, resync=resync)
        self._discovery.later(time.monotonic())

    def run(self) -> None:
        """Run the stages until stopped. A fatal error is stored in the registry's ``fatal``."""
        news = False  # True if reports were handled after the last walk over the tables
        try:
            while not self._stop.is_set() and self.registry.fatal is None:
                wait_s = self._starts.wait_s(time.monotonic())
                news = self._handle_reports(wait_s if news else max(wait_s, _TICK_S)) or news
                if _paced(self._starts, self._start_due):
                    news = False
                _paced(self._progress, lambda _: self._publish(self))
        except LevadaError as error:
            self.registry.fail(error)
        except BaseException as error:
            _log.exception("the supervisor failed")
            self.registry.fail(as_levada_error(error))
        finally:
            self._copies.cancel()
            self._resyncs.cancel()

    def stop(self) -> None:
        """End the loop. From any thread."""
        self._stop.set()

    def drain(self) -> None:
        """Wait for the running jobs after the loop, and handle their reports so that their work is not lost."""
        self._copies.close()
        self._arrivals.close()
        self._ahead.close()
        self._applies.close()
        self._resyncs.close()
        self.lake_cuts.close()
        self._discovery.close()
        self._storage_poller.close()
        try:
            self._handle_reports(0)
            self._retention.remove(math.inf, self._staged)
        except LevadaError as error:
            self.registry.fail(self.registry.fatal or error)
        self._publish(self)

    def _handle_reports(self, timeout_s: float) -> bool:
        """Handle the reports in the inbox, and return True if there was one."""
        # Read before the inbox is emptied, which has every segment up to this position already.
        position = self._capture.position
        handled = self._inbox.handle(timeout_s)
        self.registry.staged_to(position.staged_lsn)
        self._staged = position
        return handled

    def _start_due(self, now: float) -> None:
        if now >= self._next_actions:
            self._next_actions = now + _ACTIONS_EVERY_S
            self._check()
            self.registry.requests.apply_actions()
            self.registry.requests.apply_manifest()
        self._discovery.start(now)
        self._storage_poller.start(now)
        self.registry.step()
        self.registry.places.check()
        self.registry.positions.save_unverified()
        self.lake_cuts.start(now)
        self._holds.start()
        self._applies.start_watermark_reads()
        self.guard.check(now)
        if self.registry.fatal is not None:
            return
        paused = self.guard.pauses_copies
        self._copies.start(self._capture.position.sessions, paused=paused)
        self._resyncs.start(now, paused=paused)
        self._arrivals.start(paused=paused)
        # A table that trails always has a batch that is due. Without compaction its batches would become slower.
        self._applies.start_maintenance(now)
        self._applies.start(now)
        if self.registry.take_became_ready():
            # Before the phase is published. Otherwise a crash of the source would leave it without evidence.
            self._retention.soon()
        self._retention.remove(now, self._staged)

    def _apply_actions(self, _: ActionsStored) -> None:
        """Apply the stored requests, and publish the phases after them before the sender looks at the progress."""
        self.registry.requests.apply_actions()
        self._publish(self)

    def _reconfigure(self, report: Reconfigured) -> None:
        former = self.config_ref.current
        selected = _selection(report.config) != _selection(former)
        self.config_ref.replace(replace(report.config, mask_comments=former.mask_comments))
        self._capture.configure(report.config)
        if selected:
            self._discovery.selection_changed(self._capture.reopen())
        self.registry.membership.reconfigured()
        self._next_actions = 0.0
        _log.info("the changed configuration is applied")


def _selection(config: PipelineConfig) -> tuple[object, ...]:
    """Return what decides about the set of tables. Functions and entries are compared by identity or value."""
    keyless = {name: its.keyless for name, its in config.tables.items()}
    return config.selects, config.include, config.default_table.keyless, keyless


def _paced(pace: Pace, work: Callable[[float], None]) -> bool:
    """Do the work, which gets the time, if it may be done now. Return True if it was done."""
    if not pace.due(now := time.monotonic()):
        return False
    cpu = time.thread_time()
    work(now)
    pace.done(now, time.thread_time() - cpu)
    return True
