"""Resyncs by a shadow copy: copy the table, apply the changes since, and swap the copy with the table.

Until the swap the table stays readable and its changes are applied as before. A marker in the store makes the next
process start the resync again. Of the shadow copy, finished ranges outlive the process while it is made, see
`levada.copy.kept`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from levada import codes
from levada.apply.applier import AppliedToShadow, Applier
from levada.copy.snapshot import SnapshotRows
from levada.destinations.answers import perform, require_flag
from levada.errors import LevadaError, Permanent, Transient
from levada.runtime.copies.outcomes import Copied
from levada.runtime.copies.table_copy import TableCopy
from levada.runtime.job import Job
from levada.runtime.stages.messages import JobStarted
from levada.runtime.stages.stage import MAX_COPIES, Stage, StageParts
from levada.runtime.tables.copy_plan import Shadow
from levada.runtime.tables.kept_copies import keep_segments, kept_copy, store_kept_copy
from levada.runtime.tables.publication_gaps import adopt_membership
from levada.runtime.tables.record import TableRecord, error_progress
from levada.runtime.tables.resync import ResyncEnded, ResyncJob, ResyncStarted, is_outdated, resyncs_to_start
from levada.runtime.tables.resync_state import ResyncState, ShadowCopy, ShadowVerification
from levada.runtime.tables.resync_steps import Step
from levada.runtime.tables.retries import named, of_resync, park
from levada.runtime.tables.rules import apply_is_due, needs_resync, wants_apply
from levada.runtime.tables.verification_record import verified_progress
from levada.runtime.verifications.messages import ShadowHoldAt
from levada.runtime.verifications.verifier import Verifier
from levada.schema import ReplicatedTableSchema, TableTarget
from levada.schema.storage import TableStorage
from levada.stores.phases import Errored, FinishedCopy
from levada.stores.workers import table_worker
from levada.threads import MarkedPool, marked_thread
from levada.values import Lsn, QualifiedTable, SnapshotId, TableId, Watermark
from levada.verify.report import TableReport, copy_differs

_log = logging.getLogger(__name__)


class ResyncStage(Stage):
    """Runs resyncs by shadow copies."""

    def __init__(self, parts: StageParts, copier: TableCopy, applier: Applier, verifier: Verifier) -> None:
        super().__init__(parts)
        self._verifier = verifier
        self._copier = copier
        self._applier = applier
        self._stopping = False
        self._copies = MarkedPool(max(MAX_COPIES, parts.config_ref.current.copy_tables), "levada-resync")
        self._batches = MarkedPool(parts.config_ref.current.apply_threads, "levada-resync-apply")
        parts.inbox.on(ResyncStarted, self._copy_started)
        parts.inbox.on(ResyncEnded, self._job_ended)
        parts.inbox.on(ShadowHoldAt, self._hold_at)

    def start(self, now: float, *, paused: bool = False) -> None:
        """Start the next step of each resync that is due. ``now`` is in seconds, monotonic.

        While ``paused``, no copy begins. An interrupted one continues, as a first copy does. Called before the tables'
        own batches are started, so that the two can take turns.
        """
        for record in self._registry.tables.values():
            self._continue(record, now)
        at_once, backlog = self._config_ref.current.copy_tables, self._registry.backlog
        for record in resyncs_to_start(
            self._registry.tables.values(), at_once, now, lambda r: not paused or backlog.holds(r.id, shadow=True)
        ):
            self._copy(record)

    def _continue(self, record: TableRecord, now: float) -> None:
        resync = record.resync
        if resync.running:
            if resync.step is Step.COPYING and is_outdated(resync.shadow, self._newest(record.id)):
                resync.restart()
        elif resync.verification is not None and (resync.abandoned or resync.outdated):
            # It reads the files of the shadow copy, and ends soon.
            return
        elif resync.abandoned:
            self._submit(self._copies, record, ResyncJob.DROP, partial(self._drop, record.id))
        elif resync.outdated:
            self._registry.shadows.discard_ranges(record.id)
            self._start_again(record)
        elif resync.step is Step.CATCHING_UP and not record.busy and not record.suspended and now >= resync.not_before:
            self._catch_up(record, now)

    def _newest(self, table: TableId) -> ReplicatedTableSchema | None:
        return self._store.get_table_schema(table, SnapshotId(self._registry.staged_lsn))

    def _submit(
        self, pool: ThreadPoolExecutor, record: TableRecord, job: ResyncJob, work: Callable[[], object]
    ) -> None:
        record.resync.running = True
        table = record.id

        def run() -> None:  # in a pool
            if job in (ResyncJob.APPLY, ResyncJob.SWAP):
                self._inbox.put(JobStarted((table,), datetime.now(UTC)))
            try:
                outcome = work()
            except BaseException as error:
                self._inbox.put(ResyncEnded(table, job, error))
            else:
                self._inbox.put(ResyncEnded(table, job, outcome))

        pool.submit(run)

    # ---- the copy -------------------------------------------------------------------------------------------------

    def _copy(self, record: TableRecord) -> None:
        resync, table, name = record.resync, record.id, record.name
        resync.enter(Step.COPYING)
        resync.cancelled.clear()
        backlog, staged = self._registry.backlog, self._registry.staged_lsn
        resumes = self._destination.capabilities.keeps_ranges
        since = keep_segments(self._store, backlog, table, staged, resumes=resumes, shadow=True)
        cancelled, plan = resync.cancelled, Shadow(self._registry.handled.settings(record))

        def work() -> Copied | None:  # in a pool
            def started(rows: SnapshotRows, lsn: Lsn) -> None:
                self._inbox.put(ResyncStarted(table, rows, lsn))

            return self._copier.run_shadow(table, name, plan, cancelled, started, since)

        self._submit(self._copies, record, ResyncJob.COPY, work)

    def _drop(self, table: TableId) -> None:  # in a pool
        try:
            perform(self._destination.drop_replacement, table)
        except LevadaError as error:
            _log.warning("the shadow copy of table %d cannot be dropped, the next resync drops it: %s", table, error)

    def _copied(self, record: TableRecord, copied: Copied | None) -> None:
        resync = record.resync
        if copied is None:
            _log.info(
                "table %s: the destination does not have the table, so it is copied without a shadow copy", record.name
            )
            self._registry.phases.restart_copy(record)
            return
        resync.enter(Step.CATCHING_UP)
        resync.error = None
        resync.retries.begin_again()
        resync.shadow = ShadowCopy(
            copied=resync.shadow.progress,
            lsn=copied.lsn,
            copied_schema=copied.schema,
            schema=copied.schema,
            storage=copied.storage,
            takes_all=copied.takes_all,
        )
        store_kept_copy(self._store, record.id, None)
        self._registry.backlog.applied(record.id, copied.lsn, shadow=True)
        _log.info("table %s: the shadow copy is complete and catches up from %s", record.name, copied.lsn)

    # ---- catching up ----------------------------------------------------------------------------------------------

    def _catch_up(self, record: TableRecord, now: float) -> None:
        resync = record.resync
        backlog, staged, table = self._registry.backlog, self._registry.staged_lsn, record.id
        reached = backlog.position(table, staged, shadow=True)
        if reached > staged:
            # What is in the table's place must not be ahead of the stream, see `Positions.source_restarted`.
            return
        until = self._end_of(resync, min(reached, staged))
        if resync.verification is not None:
            if until is None or not backlog.pending(table, shadow=True).segments:
                return
        # A parked table whose watermark is unknown has at most the staged changes.
        elif reached >= (self._registry.position(record) if backlog.position_known(table) else staged):
            if self._config_ref.current.verify_of(record.name).before_swap and not resync.shadow.compared:
                self._verify(record)
                return
            if record.tag.until is not None:
                # The shadow copy is ahead of the cut for which the table is tagged first.
                return
            mark = Watermark(self._applier.pipeline, self._applier.epoch, reached)
            record.begin(Job.SWAP)
            shadow = resync.shadow
            assert shadow.schema is not None
            assert shadow.storage is not None
            target, takes_all = self._applier.targets(shadow.schema), shadow.takes_all
            swap = partial(self._swap, record.name, target, shadow.storage, mark, takes_all=takes_all)
            self._submit(self._batches, record, ResyncJob.SWAP, swap)
            return
        pending, config = backlog.pending(table), self._config_ref.current
        if not resync.yielded and wants_apply(record, pending) and apply_is_due(record, pending, config, now):
            # The table takes turns with its shadow copy, so that its lag stays low.
            resync.yielded = True
            return
        resync.yielded = False
        schema, manifests = resync.shadow.schema, backlog.next_batch(table, config.batch_rows, shadow=True)
        assert schema is not None
        end = None if until is None else min(until, manifests[-1].end_lsn)
        record.begin(Job.APPLY_TO_SHADOW)
        self._submit(
            self._batches, record, ResyncJob.APPLY, lambda: self._applier.run_shadow(schema, reached, manifests, end)
        )

    def _swap(
        self, name: QualifiedTable, target: TableTarget, storage: TableStorage, mark: Watermark, *, takes_all: bool
    ) -> Watermark | None:  # in a pool
        """Replace the table by its shadow copy. Return ``mark``, or None if the resync has to start again."""
        swap = self._destination.swap_replacement
        carried = self._copier.kept_rows.carry(target, storage, mark, takes_all=takes_all)
        if carried is False:
            return None
        try:
            return mark if require_flag(swap(target.id, mark), swap) else None
        except LevadaError as error:
            if carried is None or isinstance(error, Permanent):
                raise
            # The rows that it has taken over may be those of the table no longer when it is swapped in later.
            _log.warning("table %s: the shadow copy with its kept rows was not swapped in: %s", name, error)
            return None

    # ---- the comparison before the swap ---------------------------------------------------------------------------

    def _verify(self, record: TableRecord) -> None:
        """Compare the shadow copy with the source in a thread. Until its LSN is known, no batch of it runs."""
        table, name, verification = record.id, record.name, ShadowVerification()
        record.resync.verification = verification
        _log.info("table %s: the shadow copy is compared with the source", name)

        def run() -> None:
            try:
                outcome: object = self._verifier.run_shadow(table, name, verification.cancelled)
            except BaseException as error:
                outcome = error
            self._inbox.put(ResyncEnded(table, ResyncJob.VERIFY, outcome))

        # No thread of the pool, because a stop does not wait until Spark has read the files.
        marked_thread(run, "levada-verify").start()

    def _hold_at(self, request: ShadowHoldAt) -> None:
        """Let the shadow copy that is compared receive its changes below an LSN."""
        record = self._registry.tables[request.table]
        verification = record.resync.verification
        if verification is None:
            error = Transient("table_changed", f"the shadow copy of {record.name} was removed")
            request.answer.set_exception(error)
            return
        verification.until, verification.answer = request.until, request.answer

    def _end_of(self, resync: ResyncState, reached: Lsn) -> Lsn | None:
        """Return the LSN at which the shadow copy's batches end. Answer the comparison if that is reached."""
        verification = resync.verification
        if verification is None or verification.until is None or verification.answer is None:
            return None
        if reached < verification.until:
            return verification.until
        verification.answer.set_result(None)
        verification.answer = None
        return None

    def _verified(self, record: TableRecord, outcome: object) -> None:
        """Record the result of a comparison. A shadow copy that differs is given up."""
        resync = record.resync
        if isinstance(outcome, TableReport) and outcome.equal:
            resync.shadow = replace(resync.shadow, compared=True, verified=verified_progress(outcome))
        elif isinstance(outcome, TableReport):
            self._failed(record, ResyncJob.VERIFY, copy_differs(outcome))
        elif isinstance(outcome, LevadaError) and outcome.code == codes.VERIFY_UNSUPPORTED:
            _log.warning("table %s: the shadow copy is not compared: %s", record.name, outcome.message)
            resync.shadow = replace(resync.shadow, compared=True)
        elif isinstance(outcome, LevadaError) and outcome.code == codes.VERIFY_CANCELLED:
            _log.info("table %s: the comparison of the shadow copy was cancelled", record.name)
        else:
            assert isinstance(outcome, BaseException)
            self._failed(record, ResyncJob.VERIFY, outcome)

    def _swapped(self, record: TableRecord, position: Lsn) -> None:
        registry, store, shadow = self._registry, self._store, record.resync.shadow
        assert shadow.copied_schema is not None
        assert shadow.lsn is not None
        adopt_membership(store, record.id)
        assert shadow.storage is not None
        registry.storage.record_copy(record.id, shadow.lsn, shadow.storage)
        store.store_table_schema(shadow.copied_schema.just_below(shadow.lsn))
        if not self._destination.capabilities.watermark:
            store.upsert_replication_progress(table_worker(record.id), position)
        _log.info("table %s: resynced, the shadow copy replaced the table at %s", record.name, position)
        registry.phases.succeeded(record)
        record.copy.replaced_by(shadow.copied, datetime.now(UTC))
        registry.places.update_mode(record, shadow.copied_schema)
        if not record.resync.abandoned:
            registry.backlog.promote_shadow(record.id)
        record.resync.finish()
        record.resync.given_up = None
        registry.handled.copied(record, shadow.verified)
        registry.shadows.forget(record.id)
        if registry.backlog.pending(record.id).segments:
            record.apply.changes_wait(time.monotonic())
        if isinstance(record.phase, Errored) and not needs_resync(record.phase):
            registry.phases.enter(record, FinishedCopy(position))

    # ---- reports of jobs ------------------------------------------------------------------------------------------

    def _copy_started(self, report: ResyncStarted) -> None:
        """Record that a copy has its snapshot."""
        record = self._registry.tables[report.table]
        if record.resync.has_copy:
            record.resync.shadow = ShadowCopy(rows=report.rows, lsn=report.lsn, copied_schema=report.rows.schema)

    def _job_ended(self, report: ResyncEnded) -> None:
        """Record the outcome of a job, and choose the next step of the resync."""
        record = self._registry.tables[report.table]
        resync, outcome = record.resync, report.outcome
        if report.job is ResyncJob.VERIFY:
            resync.verification = None
        else:
            resync.running = False
        if report.job in (ResyncJob.APPLY, ResyncJob.SWAP):
            record.end()
        match report.job, outcome:
            case ResyncJob.SWAP, Watermark():
                self._swapped(record, outcome.lsn)
            case ResyncJob.DROP, _:
                resync.finish()
            case _ if resync.abandoned or resync.outdated:
                # The next `start` removes it or starts it again.
                pass
            case ResyncJob.VERIFY, _:
                self._verified(record, outcome)
            case _, BaseException():
                self._failed(record, report.job, outcome)
            case ResyncJob.COPY, Copied() | None:
                self._copied(record, outcome)
            case ResyncJob.APPLY, AppliedToShadow():
                resync.shadow = replace(resync.shadow, schema=outcome.schema)
                resync.error = None
                resync.retries.begin_again()
                self._registry.backlog.applied(record.id, outcome.until, shadow=True)
            case _:
                self._start_again(record)

    def _start_again(self, record: TableRecord) -> None:
        """Make the shadow copy again, with the finished ranges of the last attempt if there are any."""
        _log.info("table %s: the resync starts again", record.name)
        if record.suspended or kept_copy(self._store, record.id) is None:
            self._registry.shadows.discard_ranges(record.id)
        record.resync.begin_again()

    def _failed(self, record: TableRecord, job: ResyncJob, error: BaseException) -> None:
        resync = record.resync
        if self._stopping:
            return
        if job is ResyncJob.COPY and resync.cancelled.is_set():
            self._start_again(record)
            return
        if isinstance(error, Permanent):
            self._registry.fail(error)
            return
        attempt = resync.retries.failed(error, self._registry.outage.written_at, time.monotonic())
        limits, alone = self._config_ref.current.retries, resync.retries.alone
        parked = of_resync(named(park(error, attempt, limits, datetime.now(UTC), alone=alone), record.name))
        resync.error = error_progress(parked)
        known = error if isinstance(error, LevadaError) else None
        _log.error(
            "table %s: the resync failed, the table itself continues: %s [%s]",
            record.name,
            parked.reason,
            parked.code,
            exc_info=known is None and error,
        )
        if parked.next_retry is None:
            resync.given_up = resync.error
            self._registry.shadows.abandon(record)
            return
        resync.not_before = time.monotonic() + self._config_ref.current.retries.delay(attempt)
        if job is ResyncJob.COPY:
            self._start_again(record)

    def give_up(self, record: TableRecord, error: LevadaError) -> None:
        """End the table's resync with an error. The table itself continues."""
        parked = park(
            error, max(1, record.resync.retries.attempts), self._config_ref.current.retries, datetime.now(UTC)
        )
        record.resync.given_up = error_progress(of_resync(named(parked, record.name)))
        self._registry.shadows.abandon(record)

    # ---- the end --------------------------------------------------------------------------------------------------

    def cancel(self) -> None:
        """Ask all copies to end soon. The next start begins them again."""
        self._stopping = True
        for record in self._registry.tables.values():
            record.resync.cancel_copy()

    def close(self) -> None:
        """Wait for the running jobs. Their reports are in the inbox afterwards."""
        self._copies.shutdown(cancel_futures=True)
        self._batches.shutdown(cancel_futures=True)
