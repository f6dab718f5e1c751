"""The thread that owns the phases: takes what the stages report, decides what runs next.

Everything here runs in the supervisor's one thread but for what is marked otherwise; jobs run in pools and report
through the inbox. So no state is shared but the inbox, the store, and the published progress.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from levada.apply.backlog import Backlog
from levada.apply.pace import due
from levada.apply.table import Applied, Applier
from levada.destinations import Destination, Ordering, TableMode
from levada.errors import LevadaError, NeedsOperator, Permanent
from levada.runtime.capturing import CaptureThread
from levada.runtime.config import PipelineConfig
from levada.runtime.copying import Copied, TableCopy
from levada.runtime.phases import STREAMING, at_restart, check_transition
from levada.runtime.reports import (
    ApplyEnded,
    CopyEnded,
    CopyStarted,
    Discovered,
    Fatal,
    Landed,
    MaintainEnded,
    Report,
    TableFailed,
)
from levada.runtime.retries import as_levada_error, park
from levada.runtime.source import SLOT_WORKER
from levada.runtime.tables import TableRecord
from levada.schema import ReplicatedTableSchema
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import (
    Catchup,
    DataSync,
    Errored,
    FinishedCopy,
    Init,
    Ready,
    RetryPolicy,
    SyncDone,
    SyncWait,
    TableReplicationPhase,
)
from levada.stores.storage import table_worker
from levada.values import Lsn, TableId

if TYPE_CHECKING:
    from levada.postgres.catalog import PublishedTable

_log = logging.getLogger(__name__)

_TICK_S: Final = 0.1
_ACTIONS_EVERY_S: Final = 2.0
_REMOVE_EVERY_S: Final = 2.0


class Supervisor:
    """Owns the tables' phases and the backlog; `run` is the body of its thread."""

    def __init__(
        self,
        config: PipelineConfig,
        store: PipelineStore,
        destination: Destination,
        *,
        log: SegmentLog,
        capture: CaptureThread,
        copier: TableCopy,
        applier: Applier,
        discover: Callable[[], tuple[PublishedTable, ...]],
        release: Callable[[Lsn], None],
        publish: Callable[[Supervisor], None],
        inbox: queue.SimpleQueue[Report],
    ) -> None:
        self.config = config
        self.tables: dict[TableId, TableRecord] = {}
        self.backlog = Backlog()
        self.staged_lsn = Lsn(0)
        self.fatal: LevadaError | None = None
        self.inbox = inbox
        self._store = store
        self._destination = destination
        self._log = log
        self._capture = capture
        self._copier = copier
        self._applier = applier
        self._discover = discover
        self._release = release
        self._publish = publish
        self._stop = threading.Event()
        self._copies = ThreadPoolExecutor(config.copy_tables, "levada-copy")
        together = destination.capabilities.ordering is Ordering.PIPELINE
        self._applies = ThreadPoolExecutor(1 if together else config.apply_threads, "levada-apply")
        self._together = together
        self._next_actions = self._next_discovery = self._next_removal = 0.0
        self._remembered = Lsn(0)

    # ---- before the thread runs -----------------------------------------------------------------------------------

    def adopt(self, published: tuple[PublishedTable, ...], manifests: tuple[Manifest, ...], *, resync: bool) -> None:
        """Take up the tables where the store and the destination say they are, and the segments that are staged."""
        for manifest in manifests:
            self.backlog.land(manifest)
            self.staged_lsn = max(self.staged_lsn, manifest.end_lsn)
        phases = self._store.get_table_replication_states()
        selected = {t.id for t in published}
        for gone in phases.keys() - selected:
            _log.info("table %d is no longer selected: its state is forgotten, its destination stays", gone)
            self._store.delete_table_pipeline_state(gone)
        for table in published:
            self._add(table, Init() if resync else at_restart(phases.get(table.id)), phases.get(table.id))
        self._next_discovery = time.monotonic() + self.config.discovery_s

    def _add(self, table: PublishedTable, phase: TableReplicationPhase, stored: TableReplicationPhase | None) -> None:
        record = TableRecord(table.id, table.name, phase, suspended=table.name in self.config.suspended)
        if isinstance(phase, Errored):
            record.attempts = phase.attempts
        versions = [s for s in self._store.get_table_schemas() if s.id == table.id]
        if versions:
            self._note_mode(record, versions[-1])
        self.tables[table.id] = record
        if phase != stored:
            self._store.update_table_replication_states({table.id: phase})
        self._hold(record)

    def _note_mode(self, record: TableRecord, schema: ReplicatedTableSchema) -> None:
        mode = self._destination.effective_mode(schema)
        record.mode = mode.value
        keyless = mode is TableMode.CHANGELOG and not schema.key and self._destination.capabilities.upsert
        record.note = f"no key tells its rows apart (replica identity {schema.identity.value})" if keyless else ""

    def _hold(self, record: TableRecord) -> None:
        """Begin to keep segments for the table from where its destination is; park it if its destination is gone."""
        void = isinstance(record.phase, Errored) and record.phase.retry_policy is RetryPolicy.NO_RETRY
        if void or isinstance(record.phase, Init):
            self.backlog.track(record.id, self.staged_lsn, holds=False)
            return
        position = self._position_at_destination(record)
        if position is not None:
            self.backlog.track(record.id, position)
            return
        self.backlog.track(record.id, Lsn(0))
        if not isinstance(record.phase, Errored):
            self._park(
                record,
                NeedsOperator(
                    "destination_table_missing",
                    f"the destination no longer has what was applied of table {record.name}",
                    hint=f"copy it again: levada resync MANIFEST {record.name}",
                ),
            )

    def _position_at_destination(self, record: TableRecord) -> Lsn | None:
        if self._destination.capabilities.watermark:
            mark = self._destination.applied(record.id)
            return None if mark is None else mark.lsn
        return self._store.get_replication_progress(table_worker(record.id))

    # ---- the thread -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Decide until stopped; an error that nothing can go on after is left in ``fatal``."""
        try:
            while not self._stop.is_set() and self.fatal is None:
                self._take_reports(_TICK_S)
                self._decide(time.monotonic())
                self._publish(self)
        except LevadaError as error:
            self.fatal = error
        except Exception as error:
            _log.exception("the supervisor failed")
            self.fatal = as_levada_error(error)

    def stop(self) -> None:
        """End the loop; from any thread."""
        self._stop.set()

    def drain(self) -> None:
        """After the loop: wait for the jobs that run, and take what they report, so that their work is not lost."""
        self._copies.shutdown(cancel_futures=True)
        self._applies.shutdown(cancel_futures=True)
        try:
            self._take_reports(0)
            self._remove_segments(math.inf)
        except LevadaError as error:
            self.fatal = self.fatal or error
        self._publish(self)

    def _take_reports(self, timeout_s: float) -> None:
        # Read before the inbox is emptied: every segment up to this position has been put there already.
        staged = self._capture.position.staged_lsn
        try:
            self._take(self.inbox.get(timeout=timeout_s) if timeout_s else self.inbox.get_nowait())
            while True:
                self._take(self.inbox.get_nowait())
        except queue.Empty:
            pass
        self.staged_lsn = max(self.staged_lsn, staged)

    def _take(self, report: Report) -> None:
        match report:
            case Landed(manifest):
                self.backlog.land(manifest)
                for table in manifest.tables:
                    record = self.tables.get(table)
                    if record is not None and record.pending_since is None:
                        record.pending_since = time.monotonic()
            case CopyStarted(table, rows):
                self.tables[table].copy = rows
            case CopyEnded(table, outcome):
                self._copy_ended(self.tables[table], outcome)
            case ApplyEnded(tables, outcome):
                self._apply_ended([self.tables[t] for t in tables], outcome)
            case MaintainEnded(table, error):
                self.tables[table].busy = ""
                if error is not None:
                    _log.warning("maintenance of %s failed: %s", self.tables[table].name, error)
            case TableFailed(table, error, recorded):
                if table in self.tables:
                    self._void(self.tables[table], error)
                recorded.set()
            case Discovered(tables):
                self._discovered(tables)
            case Fatal(error):
                self.fatal = error

    def _decide(self, now: float) -> None:
        if now >= self._next_actions:
            self._next_actions = now + _ACTIONS_EVERY_S
            self._take_actions()
        if now >= self._next_discovery:
            self._next_discovery = now + self.config.discovery_s
            self._applies.submit(self._run_discovery)
        for record in self.tables.values():
            if not record.busy and not record.suspended:
                self._decide_table(record)
        self._start_copies()
        self._start_applies(now)
        self._start_maintenance(now)
        self._remove_segments(now)

    def _decide_table(self, record: TableRecord) -> None:
        """Step a table that waits for nothing but a condition."""
        position = self.backlog.position(record.id, self.staged_lsn)
        match record.phase:
            case Errored(retry_policy=RetryPolicy.TIMED_RETRY, next_retry=at) if at and at <= datetime.now(UTC):
                self._retry(record)
            case FinishedCopy(lsn):
                self._enter(record, SyncWait(lsn))
            case SyncWait(lsn) if self.staged_lsn >= lsn:
                self._enter(record, Catchup(self.staged_lsn))
            case Catchup(lsn) if position >= lsn:
                self._enter(record, SyncDone(position))
            case SyncDone(lsn) if position >= lsn:
                self._enter(record, Ready())

    # ---- phases ---------------------------------------------------------------------------------------------------

    def _enter(self, record: TableRecord, phase: TableReplicationPhase) -> None:
        check_transition(record.phase, phase)
        self._store.update_table_replication_states({record.id: phase})
        _log.info("table %s: %s -> %s", record.name, record.phase.name, phase.name)
        record.phase = phase

    def _park(self, record: TableRecord, error: BaseException) -> None:
        if isinstance(error, Permanent):
            self.fatal = error
            return
        record.attempts += 1
        parked = park(error, record.attempts, self.config.retries, datetime.now(UTC))
        known = error if isinstance(error, LevadaError) else None
        _log.error(
            "table %s is parked: %s [%s]", record.name, parked.reason, parked.code, exc_info=known is None and error
        )
        self._enter(record, parked)

    def _void(self, record: TableRecord, error: LevadaError) -> None:
        """Park a table that changes were left out of: only a new copy makes it right."""
        if isinstance(record.phase, Errored) and record.phase.retry_policy is RetryPolicy.NO_RETRY:
            return
        self._enter(record, park(error, 1, self.config.retries, datetime.now(UTC), void=True))
        self.backlog.track(record.id, self.staged_lsn, holds=False)

    def _retry(self, record: TableRecord) -> None:
        phase = at_restart(self._store.rollback_table_replication_state(record.id))
        _log.info("table %s: retrying from %s", record.name, phase.name)
        record.phase = phase
        self._store.update_table_replication_states({record.id: phase})
        self._hold(record)

    def _resync(self, record: TableRecord) -> None:
        if isinstance(record.phase, Errored) and record.phase.retry_policy is RetryPolicy.NO_RETRY:
            # The stream leaves the table out until it begins anew, and the copy must not be older than that.
            record.copy_after_session = self._capture.reopen()
        record.attempts = 0
        record.copy = record.copied = None
        if not isinstance(record.phase, Init):
            self._enter(record, Init())
        self._hold(record)

    def _take_actions(self) -> None:
        for table, action in self._store.take_table_actions().items():
            record = self.tables.get(table)
            if record is None:
                _log.warning("request %s for a table that is not replicated: %d", action.value, table)
            elif record.busy:
                self._store.request_table_action(table, action)
            elif action is TableAction.RESYNC:
                self._resync(record)
            elif isinstance(record.phase, Errored):
                if record.phase.retry_policy is RetryPolicy.NO_RETRY:
                    _log.warning(
                        "table %s cannot be retried, only copied again: %s", record.name, record.phase.solution
                    )
                    continue
                record.attempts = 0
                self._retry(record)

    # ---- discovery ------------------------------------------------------------------------------------------------

    def _run_discovery(self) -> None:  # in a pool
        try:
            self.inbox.put(Discovered(self._discover()))
        except Exception as error:
            _log.warning("looking for new tables failed: %s", error)

    def _discovered(self, tables: tuple[PublishedTable, ...]) -> None:
        for table in tables:
            if table.id not in self.tables:
                _log.info("table %s is new", table.name)
                self._add(table, Init(), None)
            else:
                self.tables[table.id].name = table.name
        gone = self.tables.keys() - {t.id for t in tables}
        for record in [self.tables[t] for t in gone]:
            if not record.busy:
                _log.info("table %s left the publication: its destination stays", record.name)
                self._store.delete_table_pipeline_state(record.id)
                self.backlog.forget(record.id)
                del self.tables[record.id]

    # ---- copy -----------------------------------------------------------------------------------------------------

    def _start_copies(self) -> None:
        running = sum(r.busy == "copy" for r in self.tables.values())
        for record in self.tables.values():
            if running >= self.config.copy_tables:
                return
            ready = self._capture.position.sessions >= record.copy_after_session
            if isinstance(record.phase, Init) and not record.busy and not record.suspended and ready:
                running += 1
                record.busy = "copy"
                self._enter(record, DataSync())
                # Held from here on: the snapshot will be later, and what is below it is filtered out when applied.
                self.backlog.track(record.id, self.staged_lsn)
                self._copies.submit(self._run_copy, record.id, record)

    def _run_copy(self, table: TableId, record: TableRecord) -> None:  # in a pool
        try:
            copied = self._copier.run(table, record.name, lambda rows: self.inbox.put(CopyStarted(table, rows)))
        except BaseException as error:
            self.inbox.put(CopyEnded(table, error))
        else:
            self.inbox.put(CopyEnded(table, copied))

    def _copy_ended(self, record: TableRecord, outcome: Copied | BaseException) -> None:
        record.busy = ""
        if record.copy is not None:
            record.copied = record.copy.progress()
            record.unrepresentable += record.copied.unrepresentable
            record.copy = None
        if isinstance(outcome, BaseException):
            if not self._copier.cancelled.is_set():
                self._park(record, outcome)
            return
        record.attempts = 0
        self._note_mode(record, outcome.schema)
        record.last_commit_at = datetime.now(UTC)
        if not self._destination.capabilities.watermark:
            self._store.upsert_replication_progress(table_worker(record.id), outcome.lsn)
        self._enter(record, FinishedCopy(outcome.lsn))
        self.backlog.applied(record.id, outcome.lsn)

    # ---- apply ----------------------------------------------------------------------------------------------------

    def _start_applies(self, now: float) -> None:
        waiting = [r for r in self.tables.values() if self._wants_apply(r)]
        if self._together and any(r.busy for r in self.tables.values()):
            return
        ready = [r for r in waiting if self._is_due(r, now)]
        if self._together:
            if ready:
                self._submit_apply(waiting, now)
            return
        for record in sorted(ready, key=lambda r: r.pending_since or now):
            self._submit_apply([record], now)

    def _wants_apply(self, record: TableRecord) -> bool:
        if record.busy or record.suspended or record.phase.name not in STREAMING:
            return False
        return not isinstance(record.phase, FinishedCopy) and self.backlog.pending(record.id).segments > 0

    def _is_due(self, record: TableRecord, now: float) -> bool:
        if not isinstance(record.phase, Ready):
            return True
        waited = now - (record.pending_since or 0.0)
        rows = self.backlog.pending(record.id).rows
        return due(waited, record.last_apply_s, self.config.freshness_s, rows, self.config.batch_rows)

    def _submit_apply(self, records: list[TableRecord], now: float) -> None:
        chosen = {m.name: m for r in records for m in self.backlog.next_batch(r.id, self.config.batch_rows)}
        manifests = tuple(sorted(chosen.values(), key=lambda m: m.end_lsn))
        positions = {r.id: self.backlog.position(r.id, self.staged_lsn) for r in records}
        for record in records:
            record.busy = "apply"
            record.pending_since = None
        self._applies.submit(self._run_apply, positions, manifests)

    def _run_apply(self, positions: Mapping[TableId, Lsn], manifests: tuple[Manifest, ...]) -> None:  # in a pool
        tables = tuple(positions)
        try:
            applied = self._applier.run(positions, manifests)
        except BaseException as error:
            self.inbox.put(ApplyEnded(tables, error))
        else:
            self.inbox.put(ApplyEnded(tables, applied))

    def _apply_ended(self, records: list[TableRecord], outcome: Applied | BaseException) -> None:
        for record in records:
            record.busy = ""
            if isinstance(outcome, InterruptedError):
                continue
            if isinstance(outcome, BaseException):
                self._park(record, outcome)
                continue
            self._applied(record, outcome)

    def _applied(self, record: TableRecord, outcome: Applied) -> None:
        if not self._destination.capabilities.watermark:
            self._store.upsert_replication_progress(table_worker(record.id), outcome.until)
        self.backlog.applied(record.id, outcome.until)
        record.attempts = 0
        record.rows_applied += outcome.rows
        record.unrepresentable += outcome.unrepresentable
        record.last_apply_s = outcome.seconds
        record.last_commit_at = datetime.now(UTC)
        if self.backlog.pending(record.id).segments and record.pending_since is None:
            record.pending_since = time.monotonic() - outcome.seconds

    # ---- maintenance and release ----------------------------------------------------------------------------------

    def _start_maintenance(self, now: float) -> None:
        for record in self.tables.values():
            idle = not record.busy and not record.suspended and isinstance(record.phase, Ready)
            if idle and record.last_commit_at is not None and now - record.maintained_at >= self.config.maintenance_s:
                record.maintained_at = now
                record.busy = "maintain"
                self._applies.submit(self._run_maintenance, record.id)

    def _run_maintenance(self, table: TableId) -> None:  # in a pool
        error: BaseException | None = None
        try:
            self._destination.maintain(table)
        except BaseException as caught:
            error = caught
        self.inbox.put(MaintainEnded(table, error))

    def _remove_segments(self, now: float) -> None:
        """Give up what nobody needs; before nothing shows it any more, remember how far the slot may have been told."""
        if now < self._next_removal:
            return
        self._next_removal = now + _REMOVE_EVERY_S
        gone = self.backlog.take_removable()
        everywhere = self.backlog.everywhere(self.staged_lsn)
        position = everywhere if not self._log.staging.durable else max((m.end_lsn for m in gone), default=Lsn(0))
        if position > self._remembered:
            self._remembered = self._store.upsert_replication_progress(SLOT_WORKER, position)
        for manifest in gone:
            self._log.remove(manifest)
        self._release(everywhere)
