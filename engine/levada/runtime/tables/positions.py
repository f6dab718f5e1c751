"""The staged segments of each table, and the position from which it applies them."""

from __future__ import annotations

import logging
import time

from levada.errors import NeedsOperator
from levada.runtime.job import Job
from levada.runtime.tables.kept_copies import interrupted_progress, kept_copy
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.partition_moves import PartitionMoves
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.phases import at_restart
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import needs_resync
from levada.runtime.tables.storage_journal import StorageJournal
from levada.runtime.tables.unverified_tables import UnverifiedTables, Verdict, another_history, judge_position
from levada.segments.manifest import Manifest
from levada.stores.phases import Errored, Init
from levada.stores.workers import table_worker
from levada.values import Lsn, TableId, resync_command

_log = logging.getLogger(__name__)


class Positions(Part):
    """Adds staged segments to the tables, and sets each table's position. For the supervisor's thread.

    A table is parked if a segment that it needs is missing, or if its position belongs to another WAL history.
    """

    def __init__(
        self,
        shared: SharedParts,
        phases: PhaseChanges,
        storage: StorageJournal,
        unverified: UnverifiedTables,
        moves: PartitionMoves,
    ) -> None:
        super().__init__(shared)
        self._moves = moves
        self._phases = phases
        self._storage = storage
        self._unverified = unverified

    def segment_staged(self, manifest: Manifest) -> None:
        """Add a staged segment to the backlog of its tables."""
        self._tables.backlog.add_segment(manifest)
        self._storage.record_segment(manifest)
        self._tables.staged_to(manifest.end_lsn)
        for table in manifest.tables:
            record = self._tables.records.get(table)
            if record is not None:
                record.apply.changes_wait(time.monotonic() - manifest.span_s)
                self._require_complete(record)

    def track(self, record: TableRecord) -> None:
        """Keep the segments that the table needs, or all of them until its watermark has been read."""
        self._moves.load(record.id)
        copies = self._begins_with_copy(record)
        if copies and self._track_kept_copy(record):
            return
        if copies or needs_resync(record.phase):
            self._phases.release_segments(record)
        elif self._destination.capabilities.watermark:
            # A job reads it: a destination that does not answer must not keep the stream from being staged.
            self._tables.backlog.track(record.id, None)
            record.apply.read_watermark()
        else:
            self.set_position(record, self._store.get_replication_progress(table_worker(record.id)))

    def _begins_with_copy(self, record: TableRecord) -> bool:
        """Return True if the table, or a retry of it, begins with a copy.

        After a copy that failed, the table at the destination may be that of an earlier copy.
        """
        phase = record.phase
        if isinstance(phase, Errored) and not needs_resync(phase):
            phase = at_restart(self._store.get_phase_before_error(record.id))
        return isinstance(phase, Init)

    def _track_kept_copy(self, record: TableRecord) -> bool:
        """Keep the segments that an interrupted copy needs. Return False if there is none, or if one is missing."""
        kept = kept_copy(self._store, record.id)
        if kept is None:
            return False
        # The copy compares the server itself.
        self._unverified.resolve(record.id)
        self._tables.backlog.track(record.id, kept.since)
        if self._tables.backlog.missing(record.id) is not None:
            record.copy.explain("the copy began again, because staged changes are missing")
            return False
        record.copy.was_interrupted(interrupted_progress(kept))
        return True

    def set_position(self, record: TableRecord, position: Lsn | None) -> None:
        """Keep the table's segments from its watermark ``position`` on. Park the table if it has none."""
        self._tables.backlog.track(record.id, position)
        if position is not None:
            self._moves.applied(record.id, position)
        if self._is_of_another_history(record, position):
            return
        self._require_complete(record)
        if position is None and not isinstance(record.phase, Errored):
            self._phases.park(
                record,
                NeedsOperator(
                    "destination_table_missing",
                    f"the destination no longer has what was applied of table {record.name}",
                    hint="check that spec.destination is the one that has the table, then"
                    f" levada retry MANIFEST {record.name.argument}. If the table is gone, copy it again:"
                    f" {resync_command(record.name)}",
                ),
            )

    def source_restarted(self, verified_to: Lsn) -> None:
        """Handle a restart of the source, whose WAL history is verified up to ``verified_to``.

        Tables whose watermark may be beyond that LSN become unverified, and running copies are repeated. Only a copy
        can be beyond, because its snapshot may be ahead of the stream.
        """
        backlog = self._tables.backlog
        tables = [r for r in self._tables.records.values() if not (isinstance(r.phase, Init) or needs_resync(r.phase))]
        unknown = {r.id for r in tables if not backlog.position_known(r.id)}
        ahead = [r for r in tables if r.id not in unknown and self._tables.position(r) > verified_to]
        self._unverified.add(unknown | {r.id for r in ahead}, verified_to)
        for record in tables:
            if record.busy is Job.COPY:
                record.copy.outdate("the copy began again, because the source was restarted")
            if record.resync.is_ahead(verified_to):
                record.resync.restart()
        for record in ahead:
            if record.busy:
                record.apply.read_watermark()
            else:
                self._is_of_another_history(record, self._tables.position(record))

    def forget(self, table: TableId) -> None:
        """Forget the segments, the storage and the unverified position of a table that is no longer replicated."""
        self._tables.backlog.forget(table)
        self._storage.forget(table)
        self._unverified.resolve(table)

    def save_unverified(self) -> None:
        """Store which tables are unverified. Call it before changes are applied to a table that was resolved."""
        self._unverified.save()

    def _require_complete(self, record: TableRecord) -> None:
        """Park the table with ``segment_missing`` if a segment that it needs is gone.

        The store does not have what was applied to each table. So a lost segment looks like one that was applied and
        removed, if the table at the destination is older than that.
        """
        missing = self._tables.backlog.missing(record.id)
        if missing is not None:
            self._phases.park_until_resync(
                record,
                NeedsOperator(
                    "segment_missing",
                    f"staging: the segment that ends at {missing} has changes of {record.name}, and is not there. It"
                    " was lost or damaged, or it was applied and removed, and the table at the destination was restored"
                    " or rolled back to an earlier state",
                    hint=resync_command(record.name),
                ),
            )

    def _is_of_another_history(self, record: TableRecord, position: Lsn | None) -> bool:
        """Resolve an unverified table. If it is beyond the verified LSN, resync or park it and return True."""
        verified_to = self._unverified.resolve(record.id)
        if position is None or verified_to is None:
            return False
        verdict = judge_position(record.phase, position, verified_to)
        if verdict is Verdict.VERIFIED:
            return False
        if verdict is Verdict.COPY_AGAIN:
            _log.warning("table %s is copied again: the source was restarted before its copy was used", record.name)
            self._phases.restart_copy(record)
        else:
            self._phases.park_until_resync(record, another_history(record.name, position, verified_to))
        return True
