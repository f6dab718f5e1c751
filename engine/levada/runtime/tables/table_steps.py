"""The next step of each table that no job has: a retry, a resync or the next phase."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from levada.runtime.tables.own_copies import OwnCopies
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import next_phase
from levada.runtime.tables.table_requests import TableRequests
from levada.runtime.tables.table_retries import TableRetries


class TableSteps(Part):
    """Takes the steps that are due by the rules, without a request of a user. For the supervisor's thread."""

    def __init__(
        self, shared: SharedParts, phases: PhaseChanges, retries: TableRetries, requests: TableRequests, own: OwnCopies
    ) -> None:
        super().__init__(shared)
        self._phases = phases
        self._retries = retries
        self._requests = requests
        self._own = own

    def take(self) -> None:
        """Retry, resync or advance each free table if the condition for that is met."""
        tables = self._tables
        tables.outage.choose(tables.records.values(), self._config_ref.current.retries, time.monotonic())
        for record in tables.records.values():
            if not record.busy and not record.suspended:
                self._step(record)

    def _step(self, record: TableRecord) -> None:
        now, tables = datetime.now(UTC), self._tables
        if tables.outage.retry_is_due(record, now, self._config_ref.current.retries):
            tables.outage.retried(record.id)
            self._retries.retry(record)
        elif self._own.is_due(record, now):
            self._own.begins(record, now)
            self._requests.resync(record)
        elif (phase := next_phase(record.phase, tables.position(record), tables.staged_lsn)) is not None:
            self._phases.enter(record, phase)
