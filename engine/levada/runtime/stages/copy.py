"""The copies of tables that the destination does not have yet, or that are replaced by a new copy."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from levada.runtime.copies.remote import DedicatedCopy
from levada.runtime.copies.table_copy import Copied, TableCopy
from levada.runtime.job import Job
from levada.runtime.stages.messages import CopyEnded, CopyStarted
from levada.runtime.stages.stage import MAX_COPIES, Stage, StageParts
from levada.runtime.tables.copy_plan import Recreate, ReplaceInPlace, Shadow
from levada.runtime.tables.publication_gaps import adopt_membership
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import copies_to_start, needs_resync
from levada.stores.phases import DataSync, FinishedCopy
from levada.stores.workers import table_worker

if TYPE_CHECKING:
    from levada.copy.progress import RunningCopy
    from levada.values import QualifiedTable, TableId


class CopyStage(Stage):
    """Runs copies in threads, or orders them from dedicated Jobs."""

    def __init__(self, parts: StageParts, copier: TableCopy) -> None:
        super().__init__(parts)
        self._copier = copier
        self._stopping = False
        self._pool = ThreadPoolExecutor(max(MAX_COPIES, parts.config_ref.current.copy_tables), "levada-copy")

    def start(self, sessions: int) -> None:
        """Start the copies that are due. ``sessions`` is the number of sessions of the stream that have begun.

        A new table waits for the session that has its columns.
        """
        for record in copies_to_start(self._registry.tables.values(), self._config_ref.current.copy_tables, sessions):
            record.copy.cancelled.clear()
            record.copy.outdated = False
            plan = self._registry.next_copy.plan(record)
            assert not isinstance(plan, Shadow), "a table at Init does not stream"
            record.copy.settings = plan.settings
            record.begin(Job.COPY)
            self._registry.phases.enter(record, DataSync())
            self._registry.storage.begin_copy(record.id)
            # Keep segments from here on. The snapshot will be later, and apply skips changes below it.
            self._registry.backlog.track(record.id, self._registry.staged_lsn)
            self._pool.submit(self._run, record.id, record.name, plan, record.copy.cancelled)

    def _run(  # in a pool
        self, table: TableId, name: QualifiedTable, plan: Recreate | ReplaceInPlace, cancelled: threading.Event
    ) -> None:
        elsewhere = self._config_ref.current.table(name).dedicated_copy
        copier = (
            DedicatedCopy(
                self._config_ref,
                self._store,
                self._destination,
                self._copier.epoch,
                self._config_ref.current.progress_deadline_s,
            )
            if elsewhere
            else self._copier
        )
        try:
            copied = copier.run(table, name, plan, cancelled, lambda rows: self._inbox.put(CopyStarted(table, rows)))
        except BaseException as error:
            self._inbox.put(CopyEnded(table, error))
        else:
            self._inbox.put(CopyEnded(table, copied))

    def started(self, record: TableRecord, rows: RunningCopy) -> None:
        """Record that a copy has its snapshot."""
        record.copy.running = rows

    def ended(self, record: TableRecord, outcome: Copied | BaseException) -> None:
        """Record the outcome of a copy, start it again if it is outdated, or park the table if it failed."""
        record.end()
        copy = record.copy
        if copy.running is not None:
            copy.finished, copy.running = copy.running.progress(), None
            copy.unrepresentable += copy.finished.unrepresentable
        if needs_resync(record.phase):
            # Capture left out changes of the table meanwhile, so the copy is incomplete.
            return
        if isinstance(outcome, BaseException):
            if not copy.cancelled.is_set():
                self._registry.phases.park(record, outcome)
            elif not self._stopping:
                self._registry.phases.restart_copy(record)
            return
        if copy.outdated:
            self._registry.phases.restart_copy(record)
            return
        record.retries.begin_again()
        self._registry.places.update_mode(record, outcome.schema)
        self._registry.places.places_changed()
        copy.committed_at = datetime.now(UTC)
        if not self._destination.capabilities.watermark:
            self._store.upsert_replication_progress(table_worker(record.id), outcome.lsn)
        adopt_membership(self._store, record.id)
        self._registry.storage.record_copy(record.id, outcome.lsn, outcome.storage)
        self._registry.phases.enter(record, FinishedCopy(outcome.lsn))
        self._registry.backlog.applied(record.id, outcome.lsn)
        self._registry.storage.evaluate_held(record)

    def cancel(self) -> None:
        """Ask all copies to end soon. The next start begins them again."""
        self._stopping = True
        for record in self._registry.tables.values():
            record.copy.cancel()

    def close(self) -> None:
        """Wait for the running copies. Their reports are in the inbox afterwards."""
        self._pool.shutdown(cancel_futures=True)
