"""The retries of parked tables."""

from __future__ import annotations

import logging

from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.positions import Positions
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.stores.phases import Errored

_log = logging.getLogger(__name__)


class TableRetries:
    """Returns parked tables to the phase before their error."""

    def __init__(self, phases: PhaseChanges, positions: Positions) -> None:
        self._phases = phases
        self._positions = positions

    def retry(self, record: TableRecord) -> None:
        """Retry a parked table. Its failed attempts still count."""
        self._phases.roll_back(record)
        self._positions.track(record)

    def retry_on_demand(self, record: TableRecord) -> None:
        """Retry a parked table because a user requests it. A table that has missed changes stays parked."""
        if needs_resync(record.phase):
            assert isinstance(record.phase, Errored)
            _log.warning("table %s cannot be retried, only copied again: %s", record.name, record.phase.solution)
        elif awaits_comparison(record.phase):
            _log.warning("table %s goes on once it was compared with the source", record.name)
        elif isinstance(record.phase, Errored):
            record.retries.begin_again()
            self.retry(record)

    def retry_repaired(self, record: TableRecord) -> None:
        """Retry a parked table whose content at the destination was repaired, so that it lacks no change any more."""
        if awaits_comparison(record.phase):
            record.retries.begin_again()
            self.retry(record)
        else:
            self.retry_on_demand(record)
