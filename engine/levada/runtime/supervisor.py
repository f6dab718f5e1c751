"""The thread that owns the tables' phases. It handles the reports of the stages and starts the next jobs.

Everything here runs in the supervisor's thread unless marked otherwise. Jobs run in thread pools and report through the
inbox. So the only shared state is the inbox, the store and the published progress.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from levada.errors import LevadaError, Transient
from levada.runtime.config import SELECTS_FAILED, PipelineConfig
from levada.runtime.config_ref import ConfigRef
from levada.runtime.pace import Pace
from levada.runtime.stages.apply import ApplyStage
from levada.runtime.stages.arrivals import ArrivalStage
from levada.runtime.stages.capture import CaptureThread
from levada.runtime.stages.copy import CopyStage
from levada.runtime.stages.cuts import CutStage
from levada.runtime.stages.discovery import Discovery
from levada.runtime.stages.guard import Guard
from levada.runtime.stages.lake_cuts import LakeCuts
from levada.runtime.stages.messages import (
    ApplyEnded,
    ChangesWanted,
    CopyEnded,
    CopyStarted,
    CutReleased,
    CutWanted,
    Discovered,
    Fatal,
    HoldWanted,
    JobStarted,
    LakeCutDropped,
    LakeCutWanted,
    LeafRead,
    MaintainEnded,
    Reconfigured,
    Report,
    SegmentStaged,
    ShadowCutWanted,
    SourceRestarted,
    StorageRead,
    TableFailed,
    TagEnded,
    VerificationBegan,
    VerificationEnded,
    Verified,
    WatermarkRead,
)
from levada.runtime.stages.resync import ResyncStage
from levada.runtime.stages.retention import Retention
from levada.runtime.stages.storage_poller import StoragePoller
from levada.runtime.tables.registry import TableRegistry
from levada.runtime.tables.resync import ResyncEnded, ResyncStarted
from levada.runtime.tables.retries import as_levada_error
from levada.runtime.tables.storage_journal import (
    PartitionsAltered,
    PartitionsCreated,
    TableAltered,
    TablesDropped,
    TablesUnpublished,
)

if TYPE_CHECKING:
    from levada.runtime.tables.source_tables import SourceTables
    from levada.segments.manifest import Manifest
    from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_ACTIONS_EVERY_S: Final = 2.0
_SHARE_OF_STARTS: Final = 0.1
"""The highest share of a core for the walk over all tables that starts what is due."""
_SHARE_OF_PROGRESS: Final = 0.05
"""The highest share of a core for publishing the progress of all tables."""


class Supervisor:
    """Runs the stages and handles their reports. `run` is the body of its thread.

    ``configure`` passes a new configuration to capture, which cannot read a `ConfigRef` because it is in a lower layer.
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
        cuts: CutStage,
        lake_cuts: LakeCuts,
        resyncs: ResyncStage,
        discovery: Discovery,
        storage_poller: StoragePoller,
        retention: Retention,
        guard: Guard,
        configure: Callable[[PipelineConfig], None],
        check: Callable[[], None],
        publish: Callable[[Supervisor], None],
        inbox: queue.SimpleQueue[Report],
    ) -> None:
        self.config_ref = config_ref
        self.registry = registry
        self._capture = capture
        self._staged = capture.position
        self._copies = copies
        self._arrivals = arrivals
        self._applies = applies
        self._cuts = cuts
        self.lake_cuts = lake_cuts
        self._resyncs = resyncs
        self._discovery = discovery
        self._storage_poller = storage_poller
        self._retention = retention
        self.guard = guard
        self._configure = configure
        self._check = check
        self._publish = publish
        self._inbox = inbox
        self._stop = threading.Event()
        self._starts = Pace(_SHARE_OF_STARTS)
        self._progress = Pace(_SHARE_OF_PROGRESS)
        self._next_actions = 0.0
        self._copy_after_session = 0
        self._names: Mapping[TableId, QualifiedTable] = {}
        """The tables' names in the last snapshot of the catalog."""

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
        except Exception as error:
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
        position, handled = self._capture.position, False
        try:
            self._handle(self._inbox.get(timeout=timeout_s) if timeout_s else self._inbox.get_nowait())
            handled = True
            while True:
                self._handle(self._inbox.get_nowait())
        except queue.Empty:
            pass
        self.registry.staged_to(position.staged_lsn)
        self._staged = position
        return handled

    def _handle(self, report: Report) -> None:
        tables = self.registry.tables
        match report:
            case SegmentStaged(manifest):
                self.registry.positions.segment_staged(manifest)
                self.lake_cuts.segment_staged(manifest)
                if manifest.truncates:
                    # A TRUNCATE gives every partition a new file. Read the new files before a rewrite changes them.
                    self._storage_poller.soon()
            case CopyStarted(table, rows):
                self._copies.started(tables[table], rows)
            case ChangesWanted(table):
                self._copies.changes_wanted(tables[table], report)
            case CopyEnded(table, outcome):
                self._copies.ended(tables[table], outcome)
                self.lake_cuts.copied(table)
            case LeafRead():
                self._arrivals.ended(report)
            case HoldWanted():
                self._cuts.hold(report)
            case CutWanted():
                self._cuts.cut(report)
            case CutReleased():
                self._cuts.release(report)
            case LakeCutWanted():
                self.lake_cuts.request(report)
            case LakeCutDropped():
                self.lake_cuts.drop(report)
            case TagEnded():
                self.lake_cuts.ended(tables[report.table], report)
            case ShadowCutWanted(table):
                self._resyncs.cut_wanted(tables[table], report)
            case Verified():
                self._cuts.verified(report)
            case VerificationBegan():
                self._cuts.verification_began(report)
            case VerificationEnded():
                self._cuts.verification_ended(report)
            case JobStarted(begun, at):
                for table in begun:
                    tables[table].started(at)
            case WatermarkRead(table, outcome):
                self._applies.watermark_read(tables[table], outcome)
            case ApplyEnded(applied, outcome):
                self._applies.ended([tables[t] for t in applied], outcome)
            case MaintainEnded(table, error):
                self._applies.maintained(tables[table], error)
            case ResyncStarted(table):
                self._resyncs.started(tables[table], report)
            case ResyncEnded(table):
                self._resyncs.ended(tables[table], report)
            case TableFailed(table, error, recorded):
                if table in tables:
                    self.registry.phases.park_until_resync(tables[table], error)
                recorded.set()
                # Discovery adds the table back to a managed publication that lost it.
                self._discovery.soon()
            case TableAltered(table) | PartitionsCreated(table) | PartitionsAltered(table):
                if table in tables:
                    self.registry.storage.table_altered(tables[table], report)
                report.recorded.set()
            case TablesDropped():
                self.registry.storage.tables_dropped(tables.values(), report)
                report.recorded.set()
            case TablesUnpublished(left):
                for table in left & tables.keys():
                    self.registry.storage.table_unpublished(tables[table], report)
                    # A table that was attached for good is no longer replicated as its own.
                    self._discovery.soon()
                report.recorded.set()
            case StorageRead(snapshot, marked, unmarked):
                self._storage_poller.ended()
                for table in unmarked.keys() & tables.keys():
                    self.registry.storage.columns.refused(tables[table], unmarked[table])
                if snapshot is not None:
                    self.registry.storage.add_examined(snapshot, tables)
                    self.registry.storage.add_snapshot(snapshot, marked)
                    self._notice_names(snapshot.names)
                else:
                    self._storage_poller.examine_later(self.registry.storage.still_examined)
            case Discovered():
                self._handle_discovery(report)
            case Reconfigured(config):
                self._reconfigure(config)
            case SourceRestarted(verified_to, recorded):
                self.registry.positions.source_restarted(verified_to)
                self.lake_cuts.source_restarted(verified_to)
                recorded.set()
            case Fatal(error):
                # The first error is the cause: capture finds a slot missing that the guard has dropped.
                self.registry.fail(self.registry.fatal or error)

    def _notice_names(self, names: Mapping[TableId, QualifiedTable]) -> None:
        """Look for renamed tables soon, if one has another name at the source than before."""
        tables = self.registry.tables
        if any(t in tables and self._names.get(t, tables[t].name) != name for t, name in names.items()):
            self._discovery.soon()
        self._names = names

    def _start_due(self, now: float) -> None:
        if now >= self._next_actions:
            self._next_actions = now + _ACTIONS_EVERY_S
            self._check()
            self.registry.requests.apply_actions()
            self.registry.requests.apply_manifest()
        self._discovery.start(now)
        self._storage_poller.start(now)
        self.registry.storage.evaluate_snapshots(self.registry.tables.values(), self.registry.staged_lsn)
        self._storage_poller.mark(self.registry.storage.columns.take_wanted())
        self._storage_poller.examine(self.registry.storage.take_examined())
        self.registry.step()
        self.registry.places.check()
        self.registry.positions.save_unverified()
        self.lake_cuts.start(now)
        self._cuts.start()
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

    def _reconfigure(self, config: PipelineConfig) -> None:
        selected = config.selects != self.config_ref.current.selects
        self.config_ref.replace(config)
        self._configure(config)
        if selected:
            # The server sends a RELATION message once per session. Capture ignores a table not selected at that time.
            self._copy_after_session = self._capture.reopen()
            self._discovery.soon()
        self.registry.membership.reconfigured()
        self._next_actions = 0.0
        _log.info("the changed configuration is applied")

    def _handle_discovery(self, report: Discovered) -> None:
        if report.error is not None:
            self.registry.membership.discovery_failed(report.error)
        if not self._discovery.ended(report):
            return
        assert report.tables is not None
        self.lake_cuts.tables_changed()
        try:
            if not self.registry.membership.discovered(report.tables, self._copy_after_session):
                self._discovery.soon()
        except Transient as error:
            if error.code != SELECTS_FAILED:
                raise
            self.registry.membership.discovery_failed(error)


def _paced(pace: Pace, work: Callable[[float], None]) -> bool:
    """Do the work, which gets the time, if it may be done now. Return True if it was done."""
    if not pace.due(now := time.monotonic()):
        return False
    cpu = time.thread_time()
    work(now)
    pace.done(now, time.thread_time() - cpu)
    return True
