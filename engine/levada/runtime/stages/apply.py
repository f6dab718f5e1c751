"""Batches, maintenance and watermark reads: the calls to the destination for tables that exist there already."""

from __future__ import annotations

import heapq
import logging
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from levada.apply.applier import Applied, Applier
from levada.apply.moves import MovePlan
from levada.apply.schedule import batches_per_thread
from levada.destinations import Ordering
from levada.destinations.answers import perform, require_watermark
from levada.errors import DestinationChanged, Permanent
from levada.runtime.job import Job
from levada.runtime.stages.arrivals import ArrivalStage
from levada.runtime.stages.messages import ApplyEnded, JobStarted, MaintainEnded, WatermarkRead
from levada.runtime.stages.stage import Stage, StageParts
from levada.runtime.tables.phases import STREAMING
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import apply_is_due, keeps_others, maintenance_is_due, needs_resync, wants_apply
from levada.segments.manifest import Manifest
from levada.stores.phases import Errored, Init
from levada.stores.workers import table_worker
from levada.threads import MarkedPool
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)
_WEIGHT: Final = 0.1
"""The weight of the last batch in the average duration."""
_READS_PER_THREAD: Final = 16
"""The watermarks that a thread may read before a batch that becomes due meanwhile. Each takes 3 to 30 ms."""
_MAINTAINED_AT_ONCE: Final = 2
"""The number of tables in maintenance. A compaction can take minutes, and no batch may wait for it in a queue."""


class ApplyStage(Stage):
    """Applies staged changes, runs maintenance, and reads watermarks."""

    def __init__(self, parts: StageParts, applier: Applier, arrivals: ArrivalStage) -> None:
        super().__init__(parts)
        self._applier = applier
        self._arrivals = arrivals
        self._together = parts.destination.capabilities.ordering is Ordering.PIPELINE
        self._threads = 1 if self._together else parts.config_ref.current.apply_threads
        self._pool = MarkedPool(self._threads, "levada-apply")
        self._maintenance = MarkedPool(_MAINTAINED_AT_ONCE, "levada-maintain")
        self._unread: set[TableId] = set()
        """The tables that wait for a job which reads their watermark."""
        self._reads = 0
        """The number of watermarks whose reading was submitted and has not ended."""
        self._batches = 0
        """The number of batches that were submitted and have not ended."""
        self._maintained = 0
        """The number of tables whose maintenance was submitted and has not ended."""
        self._batch_s = 0.0
        """The duration of a batch of one table in seconds, on average over the last ones."""
        self._started_at: float | None = None
        parts.inbox.on(WatermarkRead, self._watermark_read)
        parts.inbox.on(ApplyEnded, self._ended)
        parts.inbox.on(MaintainEnded, self._maintenance_ended)

    # ---- watermarks -----------------------------------------------------------------------------------------------

    def start_watermark_reads(self) -> None:
        """Start reading the applied watermark of every table whose watermark is unknown.

        A start has to read that of each table. Those with staged changes come first, and few of the others are in the
        queue at a time, so that a batch does not wait for all of them.
        """
        for record in self._registry.tables.values():
            if record.apply.watermark_unknown and not record.busy:
                record.apply.watermark_unknown = False
                record.begin(Job.READ_WATERMARK)
                self._unread.add(record.id)
        free = self._threads * _READS_PER_THREAD - self._reads
        if free <= 0 or not self._unread:
            return
        backlog = self._registry.backlog
        for table in sorted(self._unread, key=lambda t: not backlog.pending(t).segments)[:free]:
            self._unread.discard(table)
            self._reads += 1
            self._pool.submit(self._read_watermark, table)

    def _read_watermark(self, table: TableId) -> None:  # in a pool
        self._inbox.put(JobStarted((table,), datetime.now(UTC)))
        try:
            applied = self._destination.applied
            mark = require_watermark(applied(table), applied)
        except BaseException as error:
            self._inbox.put(WatermarkRead(table, error))
        else:
            self._inbox.put(WatermarkRead(table, mark))

    def _watermark_read(self, report: WatermarkRead) -> None:
        """Resume at the destination's watermark, or park the table if it cannot be read. Parked tables stay parked."""
        record, outcome = self._registry.tables[report.table], report.outcome
        self._reads -= 1
        record.end()
        if needs_resync(record.phase) or isinstance(record.phase, Init):
            # The table will be copied, which was decided while the watermark was read.
            return
        if not isinstance(outcome, BaseException):
            self._registry.positions.set_position(record, None if outcome is None else outcome.lsn)
            waits = self._registry.backlog.pending(record.id).segments > 0
            self._registry.outage.answered(time.monotonic(), writes_follow=waits)
        elif not isinstance(record.phase, Errored):
            self._registry.phases.park(record, outcome, reading=True)

    # ---- batches --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> None:
        """Start the batches that are due, the longest waiting first. ``now`` is in seconds, monotonic.

        A destination that orders changes by pipeline gets one batch for all tables, others get one for each table.
        """
        since, self._started_at = now - (now if self._started_at is None else self._started_at), now
        free = self._threads * batches_per_thread(since, self._batch_s) - self._batches
        if free <= 0:
            return
        tables, backlog = self._registry.tables.values(), self._registry.backlog
        waiting = [r for r in tables if wants_apply(r, backlog.pending(r.id)) and not self._is_cut(r)]
        if self._together and any(keeps_others(r, backlog.pending(r.id)) for r in tables):
            return
        config, round_s = self._config_ref.current, len(waiting) * self._batch_s / self._threads
        ready = [r for r in waiting if apply_is_due(r, backlog.pending(r.id), config, now, round_s)]
        if self._together:
            floor = self._highest_position()
            # A copy may be ahead of the staged changes. Without those up to it, the tables would not be at one LSN.
            if ready and self._registry.staged_lsn >= floor:
                self._submit(waiting, floor)
            return
        applicable = [r for r in ready if not self._waits_for_move(r)]
        for record in sorted(applicable, key=lambda r: r.apply.pending_since or now)[:free]:
            plan = self._moves_due(record)
            if plan is None:
                self._submit([record])
            else:
                self._submit_moves(record, plan)

    def _moves_due(self, record: TableRecord) -> MovePlan | None:
        """Return the batch with the table's next moves, None if it has changes to apply before."""
        backlog = self._registry.backlog
        move = backlog.move(record.id)
        return None if move is None or backlog.before_move(record.id, move) else self._arrivals.plan(record.id)

    def _waits_for_move(self, record: TableRecord) -> bool:
        """Return True if the table has nothing to apply before a move for which something is not there yet."""
        backlog = self._registry.backlog
        move = backlog.move(record.id)
        if move is None or backlog.before_move(record.id, move):
            return False
        return self._arrivals.plan(record.id) is None

    def _is_cut(self, record: TableRecord) -> bool:
        if record.hold.leaves_nothing(self._registry.position(record)):
            return True
        held = self._registry.backlog.held_at(record.id)
        if held is not None and not self._registry.backlog.pending_below(record.id, held):
            return True
        return record.tag.until is not None and not self._registry.backlog.pending_below(record.id, record.tag.until)

    def _highest_position(self) -> Lsn:
        """Return the highest LSN below which a table that gets changes has all of them."""
        tables = self._registry.tables.values()
        streaming = (r.id for r in tables if r.phase.name in STREAMING and not r.suspended)
        return max(map(self._registry.backlog.applied_lsn, streaming), default=Lsn(0))

    def _submit(self, records: list[TableRecord], floor: Lsn | None = None) -> None:
        backlog, rows = self._registry.backlog, self._config_ref.current.batch_rows
        if not self._together:
            rows *= max(1, self._destination.parallel_batches())
        batches = backlog.next_common_batch((r.id for r in records), rows, floor)
        manifests = tuple(
            sorted({m.name: m for batch in batches.values() for m in batch}.values(), key=lambda m: m.end_lsn)
        )
        records = [r for r in records if r.id in batches]
        positions = {r.id: self._registry.position(r) for r in records}
        for record in records:
            record.begin(Job.APPLY)
            record.apply.pending_since = None
        until = min(r.tag.end_of(r.hold.end_of(manifests[-1].end_lsn)) for r in records)
        until = min([until, *(move.at for r in records if (move := backlog.move(r.id)) is not None)])
        until = min([until, *(held for r in records if (held := backlog.held_at(r.id)) is not None)])
        self._batches += 1
        self._pool.submit(self._run, positions, manifests, until)

    def _submit_moves(self, record: TableRecord, plan: MovePlan) -> None:
        """Apply the transactions in which rows leave or enter the table, after everything before them."""
        after, manifests = self._registry.position(record), self._registry.backlog.batch_through(record.id, plan.until)
        record.begin(Job.MOVE if plan.rows else Job.APPLY)
        record.apply.pending_since = None
        self._batches += 1
        self._pool.submit(self._run_moves, record.id, after, manifests, plan)

    def _run_moves(
        self, table: TableId, after: Lsn, manifests: tuple[Manifest, ...], plan: MovePlan
    ) -> None:  # in a pool
        self._inbox.put(JobStarted((table,), datetime.now(UTC)))
        try:
            applied = self._applier.run_moves(table, after, manifests, plan)
        except BaseException as error:
            self._inbox.put(ApplyEnded((table,), error))
        else:
            self._inbox.put(ApplyEnded((table,), applied))

    def _run(self, positions: Mapping[TableId, Lsn], manifests: tuple[Manifest, ...], until: Lsn) -> None:  # in a pool
        tables = tuple(positions)
        self._inbox.put(JobStarted(tables, datetime.now(UTC)))
        try:
            applied = self._applier.run(positions, manifests, until)
        except BaseException as error:
            self._inbox.put(ApplyEnded(tables, error))
        else:
            self._inbox.put(ApplyEnded(tables, applied))

    def _ended(self, report: ApplyEnded) -> None:
        """Record the outcome of a batch, or park its tables if it failed."""
        outcome = report.outcome
        self._batches -= 1
        if isinstance(outcome, Applied) and not self._together:
            self._batch_s += (outcome.seconds - self._batch_s) * _WEIGHT
        for record in [self._registry.tables[table] for table in report.tables]:
            record.end()
            if isinstance(outcome, InterruptedError) and self._applier.stopping.is_set():
                # The wait for durability raises it at a stop. A destination's own one is an ordinary error.
                continue
            if isinstance(outcome, BaseException):
                self._registry.phases.park(record, outcome)
            else:
                self._applied(record, outcome)

    def _applied(self, record: TableRecord, outcome: Applied) -> None:
        if not self._destination.capabilities.watermark:
            self._store.upsert_replication_progress(table_worker(record.id), outcome.until)
        self._registry.backlog.applied(record.id, outcome.until)
        self._registry.moves.applied(record.id, outcome.until)
        self._registry.phases.succeeded(record)
        record.apply.rows_applied += outcome.rows
        record.apply.unrepresentable += outcome.unrepresentable
        record.apply.last_apply_s = outcome.seconds
        record.apply.last_apply_tasks = outcome.tasks
        record.apply.committed_at = datetime.now(UTC)
        if self._registry.backlog.pending(record.id).segments:
            record.apply.changes_wait(time.monotonic() - outcome.seconds)

    # ---- maintenance ----------------------------------------------------------------------------------------------

    def start_maintenance(self, now: float) -> None:
        """Start the maintenance that is due, the longest overdue first. ``now`` is in seconds, monotonic."""
        free = _MAINTAINED_AT_ONCE - self._maintained
        if free <= 0:
            return
        config, tables = self._config_ref.current, self._registry.tables.values()
        due = [r for r in tables if maintenance_is_due(r, config, now)]
        for record in heapq.nsmallest(free, due, key=lambda r: r.apply.maintained_at):
            record.apply.maintained_at = now
            record.begin(Job.MAINTAIN)
            self._maintained += 1
            self._maintenance.submit(self._run_maintenance, record.id)

    def _run_maintenance(self, table: TableId) -> None:  # in a pool
        error: BaseException | None = None
        self._inbox.put(JobStarted((table,), datetime.now(UTC)))
        try:
            perform(self._destination.maintain, table)
        except BaseException as caught:
            error = caught
        self._inbox.put(MaintainEnded(table, error))

    def _maintenance_ended(self, report: MaintainEnded) -> None:
        """Record the end of a table's maintenance. Park the table if something else has changed it.

        Any other failure is logged, because the next maintenance does the same work.
        """
        record, error = self._registry.tables[report.table], report.error
        record.end()
        self._maintained -= 1
        if isinstance(error, DestinationChanged | Permanent):
            self._registry.phases.park(record, error)
        elif error is not None:
            _log.warning("maintenance of %s failed: %s", record.name, error)

    def close(self) -> None:
        """Wait for the running batches. Their reports are in the inbox afterwards."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._maintenance.shutdown(cancel_futures=True)
        self._pool.shutdown()
