"""The check of each table's membership in the publication and of its replica identity."""

from __future__ import annotations

import logging

from levada.errors import LevadaError
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.publication_gaps import find_gaps, published_again
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.source_tables import SourceTables
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


class PublicationCheck(Part):
    """Parks tables that may have missed changes, and logs tables that are left out or refuse updates, each once."""

    def __init__(self, shared: SharedParts, phases: PhaseChanges) -> None:
        super().__init__(shared)
        self._phases = phases
        self._unidentified: frozenset[QualifiedTable] = frozenset()
        self._refusing: frozenset[TableId] = frozenset()
        self.incomplete: LevadaError | None = None
        """The tables that cannot be added to a managed publication, for ever or for now. None if there are none."""
        self.waits = False
        """True while tables are added as soon as another session's lock on them ends."""

    def check(self, source: SourceTables) -> None:
        """Compare the publication with the membership that each copy has seen."""
        for table, gap in find_gaps(self._store, source.publication).items():
            if table in self._tables.records:
                self._phases.found_gap(self._tables.records[table], gap)
        self.waits = source.locked is not None
        self.log_incomplete(source.incomplete or source.locked)
        self._log_unidentified(frozenset(source.unidentified))
        self._log_refusing(frozenset(r.id for r in self._tables.records.values() if r.name in source.refusing))

    def copy_if_published_again(self, record: TableRecord, source: SourceTables) -> None:
        """Resync a table that was parked because it was not published, if it is published now."""
        if not record.busy and published_again(record.phase, source.publication):
            _log.info("table %s is published again", record.name)
            self._phases.restart_copy(record)

    def refuses_updates(self, table: TableId) -> bool:
        """Return True if PostgreSQL refuses the table's UPDATEs and DELETEs, see `SourceTables.refusing`."""
        return table in self._refusing

    def log_incomplete(self, found: LevadaError | None) -> None:
        """Keep the error of tables that cannot be added, or cannot be found. A new one is logged."""
        if found is not None and str(found) != str(self.incomplete):
            _log.warning("%s [%s]. %s", found.message, found.code, found.hint)
        self.incomplete = found

    def _log_unidentified(self, found: frozenset[QualifiedTable]) -> None:
        for name in sorted(found - self._unidentified):
            _log.warning(
                "table %s is left out, because it has no replica identity, or one with a generated column. levada check"
                " MANIFEST has the SQL that gives it one [identity_missing]", name,
            )  # fmt: skip
        self._unidentified = found

    def _log_refusing(self, found: frozenset[TableId]) -> None:
        for table in found - self._refusing:
            name = self._tables.records[table].name
            _log.warning(
                "PostgreSQL refuses the UPDATEs and DELETEs of table %s, because it is published without a replica"
                " identity that has no generated column: give it a primary key without one. If it has none, ALTER TABLE"
                " %s REPLICA IDENTITY FULL, and the same for each partition, does too [identity_missing]",
                name, name,
            )  # fmt: skip
        self._refusing = found
