"""The retries and resyncs that users request, by the manifest or the command line."""

from __future__ import annotations

import logging

from levada.runtime.tables.copy_plan import Shadow
from levada.runtime.tables.next_copy import NextCopy
from levada.runtime.tables.own_copies import OwnCopies
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.place_check import PlaceCheck
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.request_rules import RequestStep, request_step
from levada.runtime.tables.rules import needs_resync
from levada.runtime.tables.table_retries import TableRetries
from levada.stores.interface import TableAction
from levada.stores.phases import Init

_log = logging.getLogger(__name__)


class TableRequests(Part):
    """Applies users' requests to tables, and begins resyncs. For the supervisor's thread."""

    def __init__(
        self,
        shared: SharedParts,
        phases: PhaseChanges,
        retries: TableRetries,
        places: PlaceCheck,
        next_copy: NextCopy,
        own: OwnCopies,
    ) -> None:
        super().__init__(shared)
        self._phases = phases
        self._retries = retries
        self._places = places
        self._next_copy = next_copy
        self._own = own

    def apply_actions(self) -> None:
        """Apply the retries and resyncs that the CLI has put into the store."""
        for table, action in self._store.take_table_actions().items():
            record = self._tables.records.get(table)
            if record is None:
                _log.warning("request %s for a table that is not replicated: %d", action.value, table)
            elif record.busy or record.resync.abandoned:
                self._store.request_table_action(table, action)
            elif action is TableAction.RESYNC:
                self._own.requested(record)
                self.resync(record)
            else:
                self._own.requested(record)
                self._retries.retry_on_demand(record)

    def apply_manifest(self) -> None:
        """Apply the retries and resyncs that the manifest requests, once for each value of a nonce."""
        for record in self._tables.records.values():
            self._apply_manifest(record)

    def _apply_manifest(self, record: TableRecord) -> None:
        table_config = self._config_ref.current.table(record.name)
        wanted = self._handled.wanted_settings(record)
        before = self._handled.last_settings(record)
        match request_step(record, self._handled.controls(record), before, table_config, wanted):
            case RequestStep.WAIT:
                return
            case RequestStep.CANCEL_COPY:
                record.copy.cancel()
                return
            case RequestStep.RESYNC:
                self._own.requested(record)
                self.resync(record)
            case RequestStep.RETRY:
                self._retries.retry_on_demand(record)
            case RequestStep.APPLY_SETTINGS:
                self._columns.apply_configured(record, before)
            case RequestStep.NOTHING:
                pass
        self._handled.mark_handled(record)

    def resync(self, record: TableRecord) -> None:
        """Copy the table again, by a shadow copy if it can stay readable meanwhile.

        A table without a place of its own is parked for that. If it has missed changes, its copy waits for the place,
        because its error would ask for the copy again.
        """
        refused = self._places.refuse(record)
        if refused and not needs_resync(record.phase):
            return
        _log.info("table %s is copied again", record.name)
        if not refused and isinstance(self._next_copy.plan(record), Shadow):
            self._shadows.request(record)
            return
        if needs_resync(record.phase):
            # The stream skips the table until its next session. The copy must not be older than that session.
            self._columns.wait_for_session(record)
        record.retries.begin_again()
        self._phases.restart_copy(record)

    def add(self, record: TableRecord) -> None:
        """Take up the requests for a table that the pipeline begins with."""
        self._own.add(record)
        self._resume_resync(record)

    def _resume_resync(self, record: TableRecord) -> None:
        """Restart a resync that an earlier process did not finish, if there is one."""
        if not self._shadows.is_requested(record.id):
            return
        if isinstance(self._next_copy.plan(record), Shadow):
            self._shadows.resume(record)
            return
        self._shadows.forget(record.id)
        if not isinstance(record.phase, Init) and not needs_resync(record.phase):
            self._phases.restart_copy(record)
