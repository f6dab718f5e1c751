"""The records of a pipeline's tables, with their staged changes."""

from __future__ import annotations

from levada.apply.backlog import Backlog
from levada.errors import LevadaError
from levada.runtime.tables.outage import Outage
from levada.runtime.tables.record import TableRecord
from levada.segments.ledger import Ledger
from levada.values import Lsn, TableId


class PipelineTables:
    """The state that the parts of the registry share. For the supervisor's thread.

    Everything below ``staged_lsn`` is staged. ``fatal`` is the error that ends the pipeline.
    """

    def __init__(self, outage: Outage, ledger: Ledger | None = None) -> None:
        self.records: dict[TableId, TableRecord] = {}
        self.backlog = Backlog(ledger)
        self.staged_lsn = Lsn(0)
        self.fatal: LevadaError | None = None
        self.outage = outage
        self.places_changed = False
        """True if a table was added, removed, renamed or is copied again, so that two tables may claim one place."""
        self.became_ready = False
        """True if a table became Ready since the flag was cleared."""

    def position(self, record: TableRecord) -> Lsn:
        """Return the LSN below which nothing of the table is left to apply, 0 while that is unknown."""
        return self.backlog.position(record.id, self.staged_lsn)

    def staged_to(self, lsn: Lsn) -> None:
        """Record that everything below an LSN is staged. A lower LSN than before changes nothing."""
        self.staged_lsn = max(self.staged_lsn, lsn)

    def fail(self, error: LevadaError) -> None:
        """End the pipeline with an error."""
        self.fatal = error
