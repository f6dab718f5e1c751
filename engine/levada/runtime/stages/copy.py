"""The copies of tables that the destination does not have yet, or that are replaced by a new copy."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from levada.postgres.table_checks import require_copyable
from levada.postgres.table_locks import require_unlocked
from levada.runtime.copies.group import CopyGroup
from levada.runtime.copies.outcomes import BegunCopy, Copied, Outcome, Postponed
from levada.runtime.copies.remote import DedicatedCopy
from levada.runtime.copies.staged_changes import ChangesWanted
from levada.runtime.copies.table_copy import TableCopy
from levada.runtime.job import Job
from levada.runtime.stages.messages import CopiesEnded, CopyStarted
from levada.runtime.stages.stage import MAX_COPIES, Stage, StageParts
from levada.runtime.tables.copy_plan import Recreate, Shadow
from levada.runtime.tables.kept_copies import keep_segments, kept_copy, store_kept_copy
from levada.runtime.tables.publication_gaps import adopt_membership
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import GROUP, copies_to_start, needs_resync
from levada.schema.table import NEWEST_VERSION
from levada.stores.phases import DataSync, FinishedCopy
from levada.stores.workers import table_worker
from levada.threads import MarkedPool

if TYPE_CHECKING:
    from levada.copy.progress import RunningCopy
    from levada.values import TableId


class CopyStage(Stage):
    """Runs copies in threads, or orders them from dedicated Jobs."""

    def __init__(self, parts: StageParts, copier: TableCopy) -> None:
        super().__init__(parts)
        self._copier = copier
        self._stopping = False
        self._running = self._groups = 0
        self._group = GROUP
        """The tables that share a snapshot at most: as many as there was time for, the last time that it was short."""
        self._wanted: dict[tuple[TableId, bool], ChangesWanted] = {}
        self._pool = MarkedPool(max(MAX_COPIES, parts.config_ref.current.copy_tables), "levada-copy")
        parts.inbox.on(CopyStarted, self._copy_started)
        parts.inbox.on(ChangesWanted, self._changes_wanted)
        parts.inbox.on(CopiesEnded, self._copies_ended)

    def start(self, sessions: int, *, paused: bool = False) -> None:
        """Start the copies that are due. ``sessions`` is the number of sessions of the stream that have begun.

        A new table waits for the session that has its columns. While ``paused``, no copy begins. An
        interrupted one continues, because the staged changes that it needs are kept until it ends.
        """
        for request in list(self._wanted.values()):
            self._answer(request)
        at_once, backlog = self._config_ref.current.copy_tables, self._registry.backlog
        due = copies_to_start(
            self._registry.tables.values(),
            at_once,
            sessions,
            lambda r: not paused or backlog.holds(r.id),
            self._may_share,
            self._group,
        )
        if due:
            with self._store.together():
                begun = [self._begin_group(records) for records in due]
            for copies in begun:
                self._running += len(copies)
                self._pool.submit(self._run_all, copies)
        if not self._running:
            self._copier.close_idle()

    def _may_share(self, record: TableRecord) -> bool:
        """Return True if the table's copy can be one of a group: it drops nothing, and continues nothing."""
        if record.copy.alone or self._config_ref.current.table(record.name).dedicated_copy:
            return False
        plan = self._registry.next_copy.plan(record)
        if not isinstance(plan, Recreate) or plan.former is not None or plan.settings.copy_where:
            return False
        newest = self._store.get_table_schema(record.id, NEWEST_VERSION)
        return newest is None and kept_copy(self._store, record.id) is None

    def _begin_group(self, records: Sequence[TableRecord]) -> list[BegunCopy]:
        self._groups += 1
        begun = []
        for record in records:
            record.copy.group = self._groups if len(records) > 1 else 0
            begun.append(self._begin(record))
        return begun

    def _begin(self, record: TableRecord) -> BegunCopy:
        """Put the table into its copy."""
        record.copy.cancelled.clear()
        record.copy.outdated = False
        plan = self._registry.next_copy.plan(record)
        assert not isinstance(plan, Shadow), "a table at Init does not stream"
        record.copy.settings = plan.settings
        record.begin(Job.COPY)
        self._registry.phases.enter(record, DataSync())
        self._registry.storage.begin_copy(record.id)
        backlog, staged = self._registry.backlog, self._registry.staged_lsn
        resumes = self._destination.capabilities.keeps_ranges
        since = keep_segments(self._store, backlog, record.id, staged, resumes=resumes)
        elsewhere = self._config_ref.current.table(record.name).dedicated_copy and not self._lacks_changes(record)
        return BegunCopy(record.id, record.name, plan, record.copy.cancelled, since, elsewhere)

    def _lacks_changes(self, record: TableRecord) -> bool:
        """Return True if all ranges of an interrupted copy are finished, so that only this process can complete it."""
        kept = kept_copy(self._store, record.id)
        return kept is not None and len(kept.ranges) == len(kept.plan.ranges())

    def started(self, table: TableId, rows: RunningCopy) -> None:
        """Send the message of a copy that has its snapshot. From any thread."""
        self._inbox.put(CopyStarted(table, rows))

    def ended(self, outcomes: Mapping[TableId, Outcome]) -> None:
        """Send the message of copies that have ended. From any thread."""
        self._inbox.put(CopiesEnded(outcomes))

    def _run_all(self, copies: Sequence[BegunCopy]) -> None:  # in a pool
        if len(copies) == 1:
            self._run(copies[0])
        else:
            CopyGroup(self._copier, copies, self).run()

    def _run(self, begun: BegunCopy) -> None:  # in a pool
        table, name, plan, cancelled, since = begun.table, begun.name, begun.plan, begun.cancelled, begun.since

        def started(rows: RunningCopy) -> None:
            self.started(table, rows)

        try:
            # First, so that the copy that the destination has stays if the table cannot be read.
            with self._copier.sessions.session() as connection:
                publication = self._config_ref.current.publication.name
                require_copyable(connection, publication, name, plan.settings.excluded_columns)
                require_unlocked(connection, name)
            if begun.elsewhere:
                ended = self._dedicated().run(table, name, plan, cancelled, started, since)
                copied = ended or self._copier.complete(table, name, plan, cancelled, started)
            else:
                copied = self._copier.run(table, name, plan, cancelled, started, since)
        except BaseException as error:
            self.ended({table: error})
        else:
            self.ended({table: copied})

    def _dedicated(self) -> DedicatedCopy:
        config = self._config_ref.current
        epoch, silence_s = self._copier.epoch, config.progress_deadline_s
        return DedicatedCopy(self._config_ref, self._store, self._destination, epoch, silence_s)

    def _changes_wanted(self, request: ChangesWanted) -> None:
        """Answer a resumed copy's request for staged changes as soon as they are staged."""
        self._wanted[request.table, request.shadow] = request
        self._answer(request)

    def _answer(self, request: ChangesWanted) -> None:
        if self._registry.staged_lsn >= request.until:
            backlog, table, shadow = self._registry.backlog, request.table, request.shadow
            complete = backlog.holds(table, shadow=shadow) and backlog.missing(table, shadow=shadow) is None
            changes = backlog.next_batch(table, sys.maxsize, shadow=shadow) if complete else None
            self._wanted.pop((table, shadow)).answer.set_result(changes)

    def _copy_started(self, report: CopyStarted) -> None:
        """Record that a copy has its snapshot."""
        self._registry.tables[report.table].copy.running = report.rows

    def _copies_ended(self, report: CopiesEnded) -> None:
        with self._store.together():
            for table, outcome in report.outcomes.items():
                self._copy_ended(self._registry.tables[table], outcome)

    def _copy_ended(self, record: TableRecord, outcome: Outcome) -> None:
        """Record the outcome of a copy, start it again if it is outdated, or park the table if it failed."""
        record.end()
        self._running -= 1
        copy = record.copy
        copy.group = 0
        self._wanted.pop((record.id, False), None)
        if copy.running is not None:
            copy.finished, copy.running = copy.running.progress(), None
            # It is shown while the next attempt waits.
            copy.interrupted = copy.finished if copy.finished.resumable else None
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
        if isinstance(outcome, Postponed) or copy.outdated:
            copy.alone = isinstance(outcome, Postponed) and outcome.alone
            if isinstance(outcome, Postponed) and outcome.made:
                self._group = outcome.made
            self._registry.phases.restart_copy(record)
            return
        self._finished(record, outcome)

    def _finished(self, record: TableRecord, outcome: Copied) -> None:
        copy = record.copy
        self._registry.phases.succeeded(record)
        copy.interrupted, copy.began_again = None, ""
        self._registry.places.copied(record, outcome.schema)
        copy.committed_at = datetime.now(UTC)
        record.apply.copied(time.monotonic())
        if not self._destination.capabilities.watermark:
            self._store.upsert_replication_progress(table_worker(record.id), outcome.lsn)
        adopt_membership(self._store, record.id)
        store_kept_copy(self._store, record.id, None)
        # The stream may have begun versions below the snapshot meanwhile, by a catalog that showed another state.
        self._store.store_table_schema(outcome.schema.just_below(outcome.lsn))
        self._registry.storage.record_copy(record.id, outcome.lsn, outcome.storage)
        self._registry.handled.copied(record)
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
        self._copier.close_idle()
