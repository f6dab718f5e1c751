"""The changes of a table's phase. Each is in the store before it takes effect.

No other module assigns the phase of a table.
"""

from __future__ import annotations

import logging
import time
from datetime import UTC, datetime
from typing import Final

from levada import codes
from levada.errors import LevadaError, NeedsOperator, Permanent
from levada.runtime.tables.kept_copies import store_kept_copy
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.phases import at_restart, check_transition
from levada.runtime.tables.publication_gaps import forget_membership
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.retries import named, park, with_new_name
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.runtime.tables.unverified_tables import UnverifiedTables
from levada.status import RetryPolicy
from levada.stores.phases import Errored, Init, Ready, TableReplicationPhase
from levada.values import QualifiedTable, resync_command

_log = logging.getLogger(__name__)

_CHANGES_LOST: Final = frozenset({codes.SEGMENT_DAMAGED, codes.STAGING_FILE_MISSING})


class PhaseChanges(Part):
    """Puts tables into phases, parks them, and begins their copies again. For the supervisor's thread."""

    def __init__(self, shared: SharedParts, unverified: UnverifiedTables) -> None:
        super().__init__(shared)
        self._unverified = unverified

    def enter(self, record: TableRecord, phase: TableReplicationPhase) -> None:
        """Put the table into the next phase. Raise ValueError if the transition is not allowed."""
        check_transition(record.phase, phase)
        self._store.update_table_replication_states({record.id: phase})
        _log.info("table %s: %s -> %s", record.name, record.phase.name, phase.name)
        record.phase = phase
        self._tables.became_ready |= isinstance(phase, Ready)

    def roll_back(self, record: TableRecord) -> None:
        """Return a parked table to the phase before the error, from which it is retried.

        If the store has no phase before the error, only a resync repairs the table, so it is parked until then. Raise
        ValueError for a table that is not parked.
        """
        if not isinstance(record.phase, Errored):
            raise ValueError(f"{record.phase.name} is not parked")
        try:
            phase = self._store.rollback_table_replication_state(record.id)
            while isinstance(phase, Errored):
                phase = self._store.rollback_table_replication_state(record.id)
        except NeedsOperator as error:
            if error.code != codes.NO_PREVIOUS_PHASE:
                raise
            self.park_until_resync(record, error)
            return
        phase = at_restart(phase)
        check_transition(record.phase, phase)
        self._store.update_table_replication_states({record.id: phase})
        _log.info("table %s: retrying from %s", record.name, phase.name)
        record.phase = phase

    def restart_copy(self, record: TableRecord) -> None:
        """Put the table back to Init, with the current settings. A shadow copy is abandoned."""
        if not isinstance(record.phase, Init):
            # Before the rest. After a crash, neither is the request lost, nor does the table of the last copy get
            # changes without the columns that only its next copy excludes.
            self.enter(record, Init())
        self._shadows.abandon(record)
        record.copy.forget()
        self._columns.apply_configured(record, self._handled.last_settings(record))
        self._tables.places_changed = True
        self._handled.mark_handled(record)
        self.release_segments(record)

    def release_segments(self, record: TableRecord) -> None:
        """Keep no segments for a table that begins with a copy, or that only a resync repairs."""
        # Without the segments, an interrupted copy cannot be resumed.
        store_kept_copy(self._store, record.id, None)
        if isinstance(record.phase, Init):
            # A failure of the next copy must not be judged by the membership of an earlier copy.
            forget_membership(self._store, record.id)
        self._unverified.resolve(record.id)
        self._tables.backlog.track(record.id, self._tables.staged_lsn, holds=False)

    def park(self, record: TableRecord, error: BaseException, *, reading: bool = False) -> None:
        """Park the table after an error. A Permanent error ends the pipeline.

        ``reading`` is True if the watermark could not be read.

        A table whose staged changes are lost is parked until a resync. One that already is stays parked as it is.
        """
        if isinstance(error, Permanent):
            self._tables.fail(error)
            return
        if needs_resync(record.phase) or awaits_comparison(record.phase):
            # The job ended after the table had missed changes. A retry would skip them.
            return
        if isinstance(error, LevadaError) and error.code in _CHANGES_LOST:
            self.park_until_resync(record, error)
            return
        outage, now = self._tables.outage, time.monotonic()
        outage.failed(error, self._config_ref.current.retries, now, reading=reading)
        attempt = record.retries.failed(error, outage.written_at, now, reading=reading)
        parked = self._parked(record, error, attempt)
        known = error if isinstance(error, LevadaError) else None
        state = "will be retried" if parked.retry_policy is RetryPolicy.TIMED_RETRY else "is parked"
        trace = error if known is None else None
        _log.error("table %s %s: %s [%s]", record.name, state, parked.reason, parked.code, exc_info=trace)
        self.enter(record, parked)

    def found_gap(self, record: TableRecord, error: LevadaError) -> None:
        """Park a table that may have missed changes, by a look at the catalog. Discovery and capture may report one."""
        if error.code == codes.ROW_FILTER_CHANGED and awaits_comparison(record.phase):
            # The comparison is made with the filter at its own LSN.
            return
        self.park_until_resync(record, error)

    def park_until_resync(self, record: TableRecord, error: LevadaError) -> None:
        """Park a table that missed changes. Only a resync repairs it, see `copied_again`.

        A table of which only the row filter is another one is compared with the source first.
        """
        if needs_resync(record.phase):
            return
        if error.code == codes.ROW_FILTER_CHANGED and self._may_be_compared(record):
            _log.warning("table %s is compared with the source: %s [%s]", record.name, error.message, error.code)
            solution = f"wait until it was compared with the source. To copy it instead: {resync_command(record.name)}"
            # Its staged changes are kept, because those after the comparison are applied.
            self.enter(record, Errored(error.code, error.message, solution, RetryPolicy.TIMED_RETRY))
            return
        self._shadows.abandon(record)
        parked = self._parked(record, error, 1, missed_changes=True)
        _log.error("table %s missed changes and is parked: %s [%s]", record.name, parked.reason, parked.code)
        self.enter(record, parked)
        self._tables.backlog.track(record.id, self._tables.staged_lsn, holds=False)

    def _may_be_compared(self, record: TableRecord) -> bool:
        complete = isinstance(record.phase, Ready) and not record.resync.has_copy
        return complete and self._config_ref.current.table(record.name).resyncs_by_itself

    def renamed(self, record: TableRecord, former: QualifiedTable) -> None:
        """Let the solution of a parked table have its name instead of a former one."""
        if isinstance(record.phase, Errored):
            phase = with_new_name(record.phase, former, record.name)
            if phase != record.phase:
                self.enter(record, phase)

    def succeeded(self, record: TableRecord) -> None:
        """Record that the destination has taken a batch or a copy of the table."""
        record.retries.begin_again()
        self._tables.outage.written(time.monotonic())

    def _parked(
        self, record: TableRecord, error: BaseException, attempt: int, *, missed_changes: bool = False
    ) -> Errored:
        limits, alone = self._config_ref.current.retries, record.retries.alone
        parked = park(error, attempt, limits, datetime.now(UTC), alone=alone, needs_resync=missed_changes)
        return named(parked, record.name)
