"""A pipeline as a Python object, to start, watch and stop."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

from levada import codes
from levada.destinations.interface import Destination
from levada.errors import LevadaError, NeedsOperator, SlotLost, StaleEpoch
from levada.postgres.kept_sessions import SESSIONS
from levada.runtime.config import PipelineConfig
from levada.runtime.config_ref import require_same
from levada.runtime.config_rules import require_valid
from levada.runtime.copies.remote import withdraw_orders
from levada.runtime.inbox import Inbox
from levada.runtime.pipeline_requests import PipelineRequests
from levada.runtime.replication import PipelineCalls, Replication, prepare_replication
from levada.runtime.report.aging import aged
from levada.runtime.report.catch_up import caught_up_with_source, wait_for_progress
from levada.runtime.report.lag_sampler import LagSampler
from levada.runtime.report.requests import not_started
from levada.runtime.report.snapshot import (
    Trends,
    capture_progress,
    fatal_progress,
    pipeline_progress,
    starting_progress,
)
from levada.runtime.resources.destination_start import open_destination
from levada.runtime.resources.staging import open_staging, probe_staging
from levada.runtime.resources.task_runner import open_batch_runner, open_task_runner
from levada.runtime.source.destination_place import require_same_place, save_place
from levada.runtime.source.mask_comments import with_comments
from levada.runtime.source.ownership import Claim, claim
from levada.runtime.source.reconnect import reconnect_delay
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.slot_release import release_slot
from levada.runtime.source.staging_place import other_folder, save_staging
from levada.runtime.source.start_guard import guarded_start
from levada.runtime.source.start_rollback import SourceObjects, read_source_objects, roll_back_start
from levada.runtime.source.store_epoch import epoch_above, raise_epoch, used_epochs
from levada.runtime.stages.messages import Reconfigured
from levada.runtime.supervisor import Supervisor
from levada.runtime.supervisor_assembly import Surroundings
from levada.runtime.tables.cut_rules import check_cuts
from levada.runtime.tables.guard_patience import Patience
from levada.runtime.tables.requests import check_table_settings
from levada.runtime.tables.retries import as_levada_error
from levada.runtime.tables.startup_requests import apply_requested_resyncs
from levada.runtime.tables.verification_record import check_continuous
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.segments.staging import Staging
from levada.status import PipelineState, Progress, StoreProgress
from levada.stores.interface import PipelineStore
from levada.threads import marked_thread, running_for, runs_for

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.copy.tasks import TaskRunner
    from levada.values import PipelineOwner

_log = logging.getLogger(__name__)

_POLL_S: Final = 0.1


class Pipeline(PipelineRequests):
    """One source, one slot, one destination, running in threads of this process.

    ``with Pipeline(...) as p: p.run_until(p.caught_up())`` starts and stops it. A pipeline object runs once.

    Copies run in worker processes, or as Spark tasks if the destination has the capability ``spark``. Then ``spark`` is
    used. Without it the process's own session is used, or a local one is started. For other destinations ``spark`` is
    ignored.
    """

    def __init__(
        self,
        config: PipelineConfig,
        *,
        store: PipelineStore,
        destination: Destination,
        spark: SparkSession | None = None,
    ) -> None:
        require_valid(config)
        check_table_settings(config, destination)
        check_cuts(config, destination)
        check_continuous(config, destination)
        super().__init__(config, store, destination)
        self._newest_config = config
        self._spark = spark
        self._tasks: TaskRunner | None = None
        self._started_at = datetime.now(UTC)
        self._state = PipelineState.STARTING
        self._progress = starting_progress(config.name, config.slot.name, self._started_at)
        self._published_at = time.monotonic()
        self._stopping = threading.Event()
        self._stop_asked = threading.Event()
        self._stop_lock = threading.RLock()  # A signal's handler may stop the pipeline while its thread has the lock.
        self._error: LevadaError | None = None
        self._trends = Trends()
        self._sampler = LagSampler(config.source, config.slot.name, config.limits.lag_sample_s)
        self._before: SourceObjects | None = None
        self._epoch = 0
        self._claim: Claim | None = None
        self._staging: Staging | None = None
        self._memory = MemoryBudget(config.memory_bytes)
        self._patience = Patience(store)
        self._sessions = ExitStack()

    def __repr__(self) -> str:
        return f"<Pipeline {self.config.full_name}: {self.progress().state}>"

    @property
    def owner(self) -> PipelineOwner | None:
        """The owner that the pipeline has claimed its places for, or None before `start`."""
        return None if self._claim is None else self._claim.owner

    # ---- for callers ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take over the pipeline's epoch, prepare the source, and start the threads.

        This machine, the staging area and the destination are checked before anything is created at the source. A
        failed start drops the slot, publication and trigger that it created. Raise NeedsOperator
        ``pipeline_already_started`` for an object that was started before, ``not_the_owner`` if another Pipeline owns
        the source's objects or the store, and the error of any other check that fails.
        """
        with self._stop_lock:
            if self._start_called:
                raise NeedsOperator(
                    "pipeline_already_started",
                    f"this object of pipeline {self.config.name} was started before, and an object runs once",
                    hint="make another Pipeline object once this one has ended",
                )
            self._start_called = True
        with running_for(self):
            try:
                self._start()
            except BaseException as error:
                self._undo_start(error)
                raise

    def reconfigure(self, config: PipelineConfig) -> None:
        """Replace the configuration without a restart. From any thread. The change is applied soon after.

        A running copy continues with its settings. It is cancelled if its table is suspended, no longer selected, or
        needs a copy with other settings. Raise ValueError if a field differs that a running pipeline cannot change,
        such as the source, the staging area and the slot, and NeedsOperator ``config_invalid`` if one breaks a rule.
        """
        require_valid(config)
        require_same(self._config_ref.current, config)
        check_table_settings(config, self._destination)
        check_cuts(config, self._destination)
        self._newest_config = config
        self._inbox.put(Reconfigured(config))

    def request_stop(self) -> None:
        """Let the pipeline end, as `stop` does, and return without waiting. A start that waits to be retried fails."""
        with self._stop_lock:
            self._stop_asked.set()
            self._stopping.set()
            self._store.stop_waiting()
            if self._replication is not None:
                self._replication.supervisor.stop()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Close the open segment, finish the running batches, cancel the copies, and wait for the end.

        Return True once the pipeline has ended. Return False if it has not after ``timeout_s`` seconds. It goes on to
        end then, and `wait` waits for it. Call it from any thread, any number of times. Before `start` it does nothing
        and returns True. While `start` runs in another thread, the pipeline ends as soon as it has started. In a thread
        of the pipeline, so in each method of a destination or a store, it returns without waiting.
        """
        with self._stop_lock:
            if self._ended.is_set() or not self._start_called:
                return True
        self.request_stop()
        return self._ended.is_set() if runs_for(self) else self._ended.wait(timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait for the end and return True, or False after ``timeout_s``. Raise the error that ended the pipeline."""
        if not self._ended.wait(timeout_s):
            return False
        if self._error is not None:
            raise self._error
        return True

    def run_until(self, done: Callable[[Progress], bool], timeout_s: float | None = None) -> Progress:
        """Wait until ``done(progress)`` is true, and return that progress.

        Raise TimeoutError after ``timeout_s`` seconds, and any error of ``done``. If the pipeline ends before, raise
        the error that ended it, or NeedsOperator ``pipeline_stopped``. Raise NeedsOperator ``pipeline_not_started``
        before `start`.
        """
        if not self._start_called:
            raise not_started(self.config.name, "it cannot be waited for")
        return wait_for_progress(self.config.name, done, self.progress, lambda: self.wait(_POLL_S), timeout_s)

    def progress(self) -> Progress:
        """Return the newest progress. From any thread, without waiting.

        The tables are as of ``at``, when the supervisor published them. It publishes nothing while it waits for the
        store. Then their lags grow by the clock. The stream and the slot are as of now, because the cause of a failing
        store often affects them too.
        """
        store, replication = StoreProgress(fatal_progress(self._store.last_error)), self._replication
        published = replace(self._progress, store=store)
        age_s = time.monotonic() - self._published_at
        if replication is None:
            return published
        ended = published.state in (PipelineState.STOPPED, PipelineState.FAILED)
        if published.tables and not ended and age_s > self.config.limits.aging_s:
            published = aged(published, age_s, replication.capture.position.rows)
        return replace(
            published,
            slot=self._sampler.progress(),
            capture=capture_progress(replication.capture, published.capture.rows_per_second),
        )

    def caught_up(self) -> Callable[[Progress], bool]:
        """Return a predicate on progress: every table is Ready and has applied all that is committed at the source now.

        Suspended tables do not count. Tables that need a manual retry do not keep others from it: once the others are
        there, the predicate raises NeedsOperator ``tables_errored``, and ``no_tables_selected`` if no table is left.
        A table that another session keeps from the publication by a lock, such as an ANALYZE, is waited for.
        The predicate also waits for the next comparison with the catalog, because an ALTER TABLE may have changed rows
        without streaming them. If the server was restarted, it waits for a new session to verify the server's history,
        because LSNs of another history cannot be compared.
        """
        caught_up = caught_up_with_source(
            self._newest_config, lambda: None if self._replication is None else self._replication.worker
        )
        self._poll_storage_soon()
        return caught_up

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        """Stop the pipeline. Raise the error that had ended it, unless the block raised an exception."""
        self.stop()
        if kind is None and self._error is not None:
            raise self._error

    # ---- inside ---------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        config, store = self.config, self._store
        self._sessions.enter_context(SESSIONS.keeping(config.source))
        # Before the epoch is taken, so that a process that cannot run does not fence off the one that runs.
        self._tasks = open_task_runner(self._destination, self._spark, f"levada {config.name}")
        if (batches := open_batch_runner(self._tasks)) is not None:
            self._destination.run_batches_in(batches)
        self._destination.keep_metadata_in(store)
        staging = self._staging = open_staging(config.staging)
        probe_staging(staging, config.name)
        self._claim = claim(config, store, staging)
        store.load_fingerprints()
        require_same_place(config, store)
        self._epoch = store.next_epoch()
        store.load_table_schemas()
        store.load_table_replication_states()
        store.load_table_controls()
        store.load_fingerprints()
        store.load_cuts()
        withdraw_orders(store)
        apply_requested_resyncs(store)
        manifests = SegmentLog(staging, config.name).list()
        phases = store.get_table_replication_states().values()
        with guarded_start(config, store, self._patience, self._stop_asked):
            open_destination(
                self._destination, config.retries, phases, stopping=self._stop_asked, report=self._report_waiting
            )
        save_place(config, store)
        if (moved := other_folder(config, store)) is not None:
            _log.warning("%s [%s]. %s", moved.message, moved.code, moved.hint)
        save_staging(config, store)
        if not SourceRecord(store).known:
            used = used_epochs(config, self._destination, manifests)
            self._epoch = epoch_above(store, self._epoch, used)
        # Before a table is copied, or its columns are chosen in the stream.
        self._config_ref.replace(with_comments(config))
        self._before = read_source_objects(config)
        self._replication = self._prepare(self._tasks, staging, None)
        self._sampler.start()
        self._launch(self._replication)
        marked_thread(self._run_to_end, "levada-supervisor").start()

    def _undo_start(self, error: BaseException) -> None:
        self._state = PipelineState.FAILED
        self._error = as_levada_error(error)
        self._progress = replace(self._progress, state=self._state, error=fatal_progress(self._error))
        try:
            if self._before is not None:
                roll_back_start(self.config, self._store, self._before, error)
            if self._claim is not None and not isinstance(error, StaleEpoch):
                self._claim.undo(self.config)
        finally:
            self._close()
            self._ended.set()

    def _prepare(self, tasks: TaskRunner, staging: Staging, lost: SlotLost | None) -> Replication:
        """Return a replication that is not started. ``lost`` is the error that ended the one before."""
        # Other messages are about the state of the replication before, which is replaced.
        changes, self._inbox = self._inbox.take(Reconfigured), Inbox()
        for change in changes:
            self._inbox.put(change)
        if lost is not None:
            self._stopping = threading.Event()
        around = Surroundings(
            self._config_ref,
            self._store,
            self._destination,
            tasks,
            self._epoch,
            self._stopping,
            self._inbox,
            self._memory,
            self._patience,
        )
        calls = PipelineCalls(self._sampler.progress, self._publish, self.progress, self._report_waiting)
        owner = None if self._claim is None else self._claim.owner
        return prepare_replication(around, staging, owner, calls, lost)

    def _launch(self, replication: Replication) -> None:
        self._state = PipelineState.RUNNING
        replication.start()
        with self._stop_lock:
            if self._stop_asked.is_set():
                replication.supervisor.stop()

    def _report_waiting(self, error: LevadaError | None) -> None:
        self._progress = replace(self._progress, error=fatal_progress(error))

    def _poll_storage_soon(self) -> None:
        if self._replication is not None:
            self._replication.storage_poller.soon()

    def _run_to_end(self) -> None:
        """Run the pipeline and clean up after any exception. A user's store or destination may raise any type."""
        try:
            self._run()
        except BaseException as error:
            _log.exception("the pipeline failed while it ended")
            self._error = as_levada_error(error)
            self._state = PipelineState.FAILED
            self._stopping.set()
            if self._replication is not None:
                self._replication.capture.stop()
            self._close()
            self._progress = replace(self._progress, state=self._state, error=fatal_progress(self._error))
        finally:
            self._ended.set()

    def _run(self) -> None:
        while True:
            assert self._replication is not None
            self._replication.run(self._begin_to_end)
            self._error = self._replication.supervisor.registry.fatal
            if not self._restart_after_loss():
                break
        if isinstance(self._error, StaleEpoch):
            raise_epoch(self._store, self._error)
        self._state = PipelineState.FAILED if self._error else PipelineState.STOPPED
        self._close()
        self._publish(self._replication.supervisor)

    def _begin_to_end(self) -> None:
        assert self._replication is not None
        self._state = PipelineState.STOPPING
        self._stopping.set()
        fatal = self._replication.supervisor.registry.fatal
        if fatal is not None and fatal.code == codes.SLOT_RELEASED:
            # First, because a batch at a destination that does not answer may take long to end.
            self._replication.capture.request_stop()
            release_slot(self.config, self._store, self._stop_asked)

    def _restart_after_loss(self) -> bool:
        """Restart with a new slot if the slot was lost and ``onLost`` is Resync or Compare.

        Every table is copied or compared. Retry with back-off until that succeeds. Return False if the pipeline ends
        instead, with ``_error``.
        """
        lost, attempt = self._error, 0
        if not isinstance(lost, SlotLost) or not self.config.slot.resync_when_lost:
            return False
        how = "compared with the source" if self.config.slot.compare_when_lost else "resynced"
        _log.warning("every table is %s: %s", how, lost.message)
        self._state = PipelineState.STARTING
        self._progress = replace(self._progress, state=self._state, error=fatal_progress(lost))
        assert self._tasks is not None
        assert self._staging is not None
        while not self._stop_asked.is_set():
            try:
                self._replication = self._prepare(self._tasks, self._staging, lost)
            except Exception as error:
                self._error = as_levada_error(error)
                if not self._error.passes:
                    _log.error("the tables cannot be resynced: %s", self._error)
                    return False
            else:
                break
            attempt += 1
            delay = reconnect_delay(attempt)
            _log.warning("the tables cannot be resynced yet, next attempt in %.0f s: %s", delay, self._error)
            self._stop_asked.wait(delay)
        if self._stop_asked.is_set():
            return False
        assert self._replication is not None
        self._error = None
        self._sampler.forget()
        self._launch(self._replication)
        return True

    def _close(self) -> None:
        self._sampler.stop()
        self._sessions.close()
        if self._tasks is not None:
            self._tasks.close()
        for close in (self._destination.shutdown, self._store.close):
            try:
                close()
            except LevadaError as error:
                # Expected after a signal to the process group, which also ends Spark's JVM.
                _log.warning("closing failed: %s", error)
            except BaseException:
                _log.exception("closing failed")

    def _publish(self, supervisor: Supervisor) -> None:
        assert self._replication is not None
        assert self._staging is not None
        progress = pipeline_progress(
            supervisor,
            self._state,
            epoch=self._epoch,
            started_at=self._started_at,
            slot=self._sampler.progress(),
            capture=self._replication.capture,
            durable=self._staging.durable,
            memory=self._memory,
            trends=self._trends,
        )
        self._published_at = time.monotonic()  # First, so that no reader takes the new progress for an old one.
        self._progress = replace(progress, verified_lsn=supervisor.registry.storage.verified_lsn)
