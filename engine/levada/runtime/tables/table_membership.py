"""The set of replicated tables: which tables are in it, their names, and which are suspended."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from levada import codes
from levada.errors import LevadaError
from levada.runtime.job import Job
from levada.runtime.tables.append_record import has_appended
from levada.runtime.tables.deselected import forget_deselected, record_deselected
from levada.runtime.tables.exchanged_names import find_followers
from levada.runtime.tables.kept_copies import store_kept_copy
from levada.runtime.tables.part import Part, SharedParts
from levada.runtime.tables.phase_changes import PhaseChanges
from levada.runtime.tables.phases import at_restart
from levada.runtime.tables.place_check import PlaceCheck
from levada.runtime.tables.places import target_name
from levada.runtime.tables.positions import Positions
from levada.runtime.tables.publication_check import PublicationCheck
from levada.runtime.tables.publication_gaps import forget_membership
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import CopySettings, last_copy_settings
from levada.runtime.tables.retries import RetryState
from levada.runtime.tables.rules import awaits_comparison, needs_resync
from levada.runtime.tables.source_tables import SourceTables
from levada.runtime.tables.table_names import (
    keep_selected_name,
    selected_name,
    table_names,
    table_renamed,
)
from levada.runtime.tables.table_requests import TableRequests
from levada.runtime.tables.table_retries import TableRetries
from levada.runtime.tables.verification_record import VerificationRecord, store_verification
from levada.schema import IdentityKind
from levada.schema.table import NEWEST_VERSION
from levada.segments.manifest import Manifest
from levada.stores.phases import Errored, Init, TableReplicationPhase
from levada.values import QualifiedTable, TableId

_log = logging.getLogger(__name__)


class TableMembership(Part):
    """Adds tables to the set of replicated tables and removes them. For the supervisor's thread."""

    def __init__(
        self,
        shared: SharedParts,
        positions: Positions,
        places: PlaceCheck,
        requests: TableRequests,
        publication: PublicationCheck,
        phases: PhaseChanges,
        retries: TableRetries,
    ) -> None:
        super().__init__(shared)
        self._positions = positions
        self._places = places
        self._requests = requests
        self._publication = publication
        self._lent: LevadaError | None = None
        self.trigger_lost: LevadaError | None = None
        """The error of an event trigger that another session has removed. None while it is in place."""
        self._phases = phases
        self._retries = retries
        self._sizes: dict[TableId, int] = {}

    def adopt(self, source: SourceTables, manifests: tuple[Manifest, ...], *, resync: bool) -> None:
        """Load the tables from the store and the source, and the staged segments from ``manifests``.

        With ``resync`` every table begins with a copy, except those parked because they missed changes, which may be
        compared instead.
        """
        with self._store.together():
            self._adopt(source, manifests, resync=resync)

    def _adopt(self, source: SourceTables, manifests: tuple[Manifest, ...], *, resync: bool) -> None:
        for manifest in manifests:
            self._positions.segment_staged(manifest)
        phases = self._store.get_table_replication_states()
        left = self._left(source)
        copied = table_names(self._store)
        selected = {t: kept for t in phases if (kept := selected_name(self._store, t)) is not None}
        names = {**copied, **selected}
        away = self._renamed_away(source, {t: names[t] for t in phases.keys() & names.keys()})
        freed = list[CopySettings | None]()
        for gone in phases.keys() - left.keys() - away.keys() - {t.id for t in source.published}:
            there = source.publication.names.get(gone)
            name = there or names.get(gone) or f"with OID {gone}"
            why = "no longer exists" if there is None else "is no longer selected"
            _log.info("table %s %s: its state is forgotten, its destination stays", name, why)
            freed.append(last_copy_settings(self._store.get_table_controls(gone)))
            self._forget(gone, source)
        for id_, name in left.items():
            self._add(id_, name, at_restart(phases[id_]), phases[id_])
        for id_ in away:
            self._add(id_, names[id_], at_restart(phases[id_]), phases[id_])
        self._park_renamed(away)
        for table in source.published:
            stored = phases.get(table.id)
            if resync:
                # The changes since the interrupted copy are no longer staged.
                store_kept_copy(self._store, table.id, None)
            begins = resync and not (stored is not None and (needs_resync(stored) or awaits_comparison(stored)))
            self._add(table.id, table.name, Init() if begins else at_restart(stored), stored)
            self._readmit(self._tables.records[table.id])
        self._publication.check(source)
        self._sizes.update(source.sizes)
        self._follow_names(freed)

    def discovered(self, source: SourceTables, copy_after_session: int) -> bool:
        """Add new tables and forget removed ones. Return False if a removed table still has a job.

        New tables are copied after session ``copy_after_session`` has begun, whose stream includes them.
        """
        with self._store.together():
            return self._discovered(source, copy_after_session)

    def _discovered(self, source: SourceTables, copy_after_session: int) -> bool:
        records, left = self._tables.records, self._left(source)
        for id_ in left.keys() & records.keys():
            self._rename(records[id_], left[id_])
        for table in source.published:
            if table.id in records:
                self._update(records[table.id], table.name)
                self._readmit(records[table.id])
                self._publication.copy_if_published_again(records[table.id], source)
            else:
                _log.info("table %s is new", table.name)
                self._add(table.id, table.name, Init(), None)
                records[table.id].copy.wait_for_session(copy_after_session)
        self._publication.check(source)
        self._sizes.update(source.sizes)
        away = self._renamed_away(source, {t: r.name for t, r in records.items()})
        gone = [records[t] for t in records.keys() - left.keys() - away.keys() - {t.id for t in source.published}]
        self._follow_names([self._handled.last_settings(record) for record in gone])
        parked = self._park_renamed(away)
        removed = [self._remove(record, source) for record in gone]
        return parked and all(removed)

    def reconfigured(self) -> None:
        """Apply changes of ``suspended``. Changes that request a copy or a retry are left to `TableRequests`."""
        self._places.places_changed()
        for record in self._tables.records.values():
            suspended = self._config_ref.current.table(record.name).suspended
            if suspended != record.suspended:
                _log.info("table %s is %s", record.name, "suspended" if suspended else "resumed")
                record.suspended = suspended
            if suspended and record.busy is Job.COPY:
                record.copy.cancel()
            if suspended:
                record.resync.cancel_copy()

    def source_bytes(self, table: TableId) -> int | None:
        """Return the table's newest known size at the source, see `SourceTables.sizes`."""
        return self._sizes.get(table)

    def refuses_updates(self, table: TableId) -> bool:
        """Return True if PostgreSQL refuses the table's UPDATEs and DELETEs, see `SourceTables.refusing`."""
        return self._publication.refuses_updates(table)

    @property
    def incomplete(self) -> LevadaError | None:
        """The reason why tables cannot be found, or cannot be added to a managed publication. None if there is none."""
        return self._publication.incomplete

    @property
    def waits(self) -> bool:
        """True while tables are added to a managed publication as soon as another session's lock on them ends."""
        return self._publication.waits

    @property
    def lent(self) -> LevadaError | None:
        """The error of tables that have another replica identity for long. None without such a table."""
        return self._lent

    def identities_lent(self, error: LevadaError | None) -> None:
        """Report tables that have another replica identity for long, or None once there is none any more."""
        self._lent = error

    def discovery_failed(self, error: LevadaError) -> None:
        """Report an error with which new tables cannot be found, until the next discovery."""
        self._publication.log_incomplete(error)

    def _left(self, source: SourceTables) -> dict[TableId, QualifiedTable]:
        """Return the known tables that exist and are selected, but are missing from the publication.

        Those that got their selected name between the two looks at the source are among them, and are seen next time.
        Those without a replica identity that the manifest no longer appends are not: it leaves them out.
        """
        state, selects = source.publication, self._config_ref.current.is_selected
        known = self._tables.records.keys() | self._store.get_table_replication_states().keys()
        missing = known - {t.id for t in source.published}
        missing -= {t for t in missing if state.names.get(t) in source.unidentified and self._was_appended(t)}
        return {t: state.names[t] for t in missing if (state.left(t) or t in state.members) and selects(state.names[t])}

    def _was_appended(self, table: TableId) -> bool:
        """Return True if the table was copied without a replica identity."""
        if not has_appended(self._store):
            # The newest version of a table that has just lost its identity has none either.
            return False
        schema = self._store.get_table_schema(table, NEWEST_VERSION)
        return schema is not None and schema.identity is IdentityKind.MISSING

    def _renamed_away(
        self, source: SourceTables, names: dict[TableId, QualifiedTable]
    ) -> dict[TableId, QualifiedTable]:
        """Return the new names of tables that have one that the manifest does not select, while it selects the former.

        ``names`` are the former ones. A table is left out if another one has its former name, because the manifest then
        means that one.
        """
        selects, now = self._config_ref.current.is_selected, source.publication.names
        used = {t.name for t in source.published}
        return {
            id_: now[id_]
            for id_, former in names.items()
            if id_ in now and now[id_] != former and selects(former) and not selects(now[id_]) and former not in used
        }

    def _park_renamed(self, away: dict[TableId, QualifiedTable]) -> bool:
        """Park renamed tables under their former names. Return False if one still has a job.

        Their changes are still staged, because the stream follows a table under any name.
        """
        busy = False
        for id_, name in away.items():
            record = self._tables.records[id_]
            if isinstance(record.phase, Errored):
                continue
            self._shadows.abandon(record)
            if record.busy or record.resync.has_copy:
                record.copy.cancel()
                busy = True
                continue
            self._phases.park(record, table_renamed(record.name, name))
        return not busy

    def _follow_names(self, freed: Iterable[CopySettings | None]) -> None:
        """Let the places of tables follow their names, where names went from one table to another.

        ``freed`` are the settings of the tables that leave the pipeline.
        """
        records, left = self._tables.records, {settings.place for settings in freed if settings is not None}
        known = {r.id: (r.name, self._handled.last_settings(r)) for r in records.values()}
        found = find_followers(self._config_ref.current, known, left, self._sizes)
        for table, (name, before) in known.items():
            if before is None or before.follows is (table in found):
                continue
            if not target_name(self._destination.target_name, name, before):
                continue  # the destination has no names
            if table in found:
                _log.warning("table %s is copied to a place of its name, which was that of another table", name)
            elif before.place != name:
                continue  # the other table is gone by now
            self._handled.follow_name(records[table], follows=table in found)
            self._places.places_changed()

    def _readmit(self, record: TableRecord) -> None:
        """Retry a table that was parked because of its name, as the manifest selects its name now."""
        if isinstance(record.phase, Errored) and record.phase.code == codes.TABLE_RENAMED:
            self._retries.retry_on_demand(record)

    def _add(
        self,
        table: TableId,
        name: QualifiedTable,
        phase: TableReplicationPhase,
        stored: TableReplicationPhase | None,
    ) -> None:
        suspended = self._config_ref.current.table(name).suspended
        attempts = phase.attempts if isinstance(phase, Errored) else 0
        record = TableRecord(table, name, phase, suspended, retries=RetryState(attempts))
        self._tables.records[table] = record
        if phase != stored:
            self._store.update_table_replication_states({table: phase})
        newest = self._store.get_table_schema(table, NEWEST_VERSION)
        # Before the first copy, no schema has the name by which a restart knows that the manifest means the table.
        if name != (selected_name(self._store, table) or (newest and newest.name)):
            keep_selected_name(self._store, table, name)
        self._phases.renamed(record, name if newest is None else newest.name)
        self._places.add(record, newest)
        self._handled.add(record)
        self._columns.add(record, self._handled.last_settings(record), newest)
        self._positions.track(record)
        self._requests.add(record)
        forget_deselected(self._store, table)

    def _update(self, record: TableRecord, name: QualifiedTable) -> None:
        """Apply the table's name at the source, and the settings that the manifest has for that name."""
        if record.name != name:
            self._places.places_changed()
        self._rename(record, name)
        record.suspended = self._config_ref.current.table(name).suspended

    def _rename(self, record: TableRecord, name: QualifiedTable) -> None:
        former, record.name = record.name, name
        if former != name:
            keep_selected_name(self._store, record.id, name)
            self._phases.renamed(record, former)

    def _remove(self, record: TableRecord, source: SourceTables) -> bool:
        """Remove a table that is no longer replicated. Return False if it still has a job, which is cancelled."""
        self._shadows.abandon(record)
        if record.busy or record.resync.has_copy:
            record.suspended = True
            record.copy.cancel()
            return False
        _log.info("table %s is no longer replicated: its destination stays", record.name)
        self._forget(record.id, source)
        self._columns.forget(record)
        del self._tables.records[record.id]
        self._places.places_changed()
        return True

    def _forget(self, table: TableId, source: SourceTables) -> None:
        if table in source.publication.names and self._config_ref.current.publication.managed:
            record_deselected(self._store, table)
        self._store.delete_table_pipeline_state(table)
        forget_membership(self._store, table)
        store_kept_copy(self._store, table, None)
        store_verification(self._store, table, VerificationRecord())
        keep_selected_name(self._store, table, None)
        self._places.forget(table)
        self._positions.forget(table)
        self._shadows.forget(table)
