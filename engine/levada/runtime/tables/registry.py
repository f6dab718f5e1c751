"""The registry of a pipeline's tables, with their phases, staged changes and requests.

Only the supervisor's thread uses it. Each transition is in the store before it takes effect here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from levada.apply.backlog import Backlog
from levada.destinations import Destination, TableMode
from levada.errors import LevadaError, NeedsOperator, Permanent
from levada.runtime.config_ref import ConfigRef
from levada.runtime.job import Job
from levada.runtime.tables.phases import at_restart, check_transition
from levada.runtime.tables.places import MISPLACED, find_misplaced, target_name
from levada.runtime.tables.publication_gaps import ROW_OPERATIONS, UNPUBLISHED, find_gaps, forget_membership
from levada.runtime.tables.record import TableRecord
from levada.runtime.tables.requests import (
    CopySettings,
    TableRequest,
    last_copy_settings,
    pending_request,
    settings_changed,
)
from levada.runtime.tables.resync import can_replace, stays_readable
from levada.runtime.tables.retries import is_failure, named, park
from levada.runtime.tables.rules import lost_copy_is_due, needs_resync, next_phase, retry_is_due
from levada.runtime.tables.source_tables import SourceTables
from levada.runtime.tables.storage_journal import StorageJournal
from levada.runtime.tables.unverified_tables import UnverifiedTables, another_history
from levada.schema import ReplicatedTableSchema
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.stores.interface import PipelineStore, TableAction, TableControls
from levada.stores.phases import Catchup, Errored, FinishedCopy, Init, SyncWait, TableReplicationPhase
from levada.stores.storage import resync_worker, table_worker
from levada.values import Lsn, QualifiedTable, TableId, resync_command

_log = logging.getLogger(__name__)

_CHANGES_LOST: Final = frozenset({"segment_damaged", "staging_file_missing"})


class TableRegistry:
    """Every replicated table. ``reopen`` requests a new replication session and returns its number.

    ``fatal`` is the error that ends the pipeline. Everything below ``staged_lsn`` is staged.
    """

    def __init__(
        self,
        config_ref: ConfigRef,
        store: PipelineStore,
        destination: Destination,
        reopen: Callable[[], int],
        ledger: Ledger | None = None,
    ) -> None:
        self.tables: dict[TableId, TableRecord] = {}
        self.backlog = Backlog(ledger)
        self.staged_lsn = Lsn(0)
        self.fatal: LevadaError | None = None
        self._config_ref = config_ref
        self._store = store
        self._destination = destination
        self._reopen = reopen
        self._unidentified: set[QualifiedTable] = set()
        self.storage = StorageJournal(store, self.park_until_resync)
        self._places_changed = False
        self.unverified = UnverifiedTables(store)

    # ---- the set of tables ---------------------------------------------------------------------------------------

    def adopt(self, source: SourceTables, manifests: tuple[Manifest, ...], *, resync: bool) -> None:
        """Load the tables from the store and the source, and the staged segments from ``manifests``.

        With ``resync`` every table begins with a copy, except those parked because they missed changes.
        """
        for manifest in manifests:
            self.segment_staged(manifest)
        phases = self._store.get_table_replication_states()
        left = self._left(source)
        for gone in phases.keys() - left.keys() - {t.id for t in source.published}:
            _log.info("table %d is no longer selected: its state is forgotten, its destination stays", gone)
            self._forget(gone)
        for id_, name in left.items():
            self._add(id_, name, at_restart(phases[id_]), phases[id_])
        for table in source.published:
            stored = phases.get(table.id)
            begins = resync and not (stored is not None and needs_resync(stored))
            self._add(table.id, table.name, Init() if begins else at_restart(stored), stored)
        self._park_gaps(source)

    def discovered(self, source: SourceTables, copy_after_session: int) -> bool:
        """Add new tables and forget removed ones. Return False if a removed table still has a job.

        New tables are copied after session ``copy_after_session`` has begun, whose stream includes them.
        """
        left = self._left(source)
        for id_ in left.keys() & self.tables.keys():
            self.tables[id_].name = left[id_]
        for table in source.published:
            if table.id not in self.tables:
                _log.info("table %s is new", table.name)
                self._add(table.id, table.name, Init(), None)
                self.tables[table.id].copy.wait_for_session(copy_after_session)
                continue
            record = self.tables[table.id]
            self._places_changed |= record.name != table.name
            record.name = table.name
            record.suspended = self._config_ref.current.table(table.name).suspended
            self._copy_if_published_again(record, source)
        self._park_gaps(source)
        gone = [self.tables[t] for t in self.tables.keys() - left.keys() - {t.id for t in source.published}]
        for record in gone:
            self.abandon_resync(record)
            if record.busy or record.resync.has_copy:
                record.suspended = True
                record.copy.cancel()
                continue
            _log.info("table %s is no longer replicated: its destination stays", record.name)
            self._forget(record.id)
            self.backlog.forget(record.id)
            self._config_ref.columns.pop(record.name, None)
            del self.tables[record.id]
            self._places_changed = True
        return not any(r.id in self.tables for r in gone)

    def _left(self, source: SourceTables) -> dict[TableId, QualifiedTable]:
        """Return the known tables that exist and are selected, but are missing from the publication."""
        state, selects = source.publication, self._config_ref.current.selects
        known = self.tables.keys() | self._store.get_table_replication_states().keys()
        return {t: state.names[t] for t in known if state.left(t) and selects(state.names[t])}

    def _park_gaps(self, source: SourceTables) -> None:
        """Park the tables that may have missed changes, and log the tables without a replica identity."""
        for table, gap in find_gaps(self._store, source.publication).items():
            if table in self.tables:
                self.park_until_resync(self.tables[table], gap)
        for name in sorted(set(source.unidentified) - self._unidentified):
            _log.warning(
                "table %s is left out, because it has no replica identity: exclude it in spec.tables, or run"
                " ALTER TABLE %s REPLICA IDENTITY FULL, or give it a primary key [identity_missing]", name, name,
            )  # fmt: skip
        self._unidentified = set(source.unidentified)
        for record in self.tables.values():
            refuses = record.name in source.refusing
            if refuses and not record.refuses_updates:
                _log.warning(
                    "PostgreSQL refuses the UPDATEs and DELETEs of table %s, because it is published without a replica"
                    " identity: run ALTER TABLE %s REPLICA IDENTITY FULL, or give it a primary key [identity_missing]",
                    record.name, record.name,
                )  # fmt: skip
            record.refuses_updates = refuses

    def _copy_if_published_again(self, record: TableRecord, source: SourceTables) -> None:
        """Resync a table that was parked because it was not published, if it is published now."""
        parked, identity = record.phase, source.publication.identity
        if not isinstance(parked, Errored) or needs_resync(parked) or parked.code not in UNPUBLISHED or record.busy:
            return
        if identity is not None and ROW_OPERATIONS.issubset(identity.operations):
            _log.info("table %s is published again", record.name)
            self.restart_copy(record)

    def _forget(self, table: TableId) -> None:
        self._store.delete_table_pipeline_state(table)
        forget_membership(self._store, table)
        self.unverified.resolve(table)
        self.storage.forget(table)
        self._store.delete_replication_progress(resync_worker(table))

    def _add(
        self,
        table: TableId,
        name: QualifiedTable,
        phase: TableReplicationPhase,
        stored: TableReplicationPhase | None,
    ) -> None:
        table_config = self._config_ref.current.table(name)
        record = TableRecord(table, name, phase, suspended=table_config.suspended)
        if isinstance(phase, Errored):
            record.attempts = phase.attempts
            record.misplaced = phase.code in MISPLACED
        self._places_changed = True
        versions = [s for s in self._store.get_table_schemas() if s.id == table]
        if versions:
            self.update_mode(record, versions[-1])
        self.tables[table] = record
        if phase != stored:
            self._store.update_table_replication_states({table: phase})
        before = last_copy_settings(self._store.get_table_controls(table) or self._first_seen(record))
        kept = table_config.excluded_columns if before is None or isinstance(phase, Init) else before.excluded_columns
        self._config_ref.columns[name] = kept
        self._track_segments(record)
        if self._store.get_replication_progress(resync_worker(table)) is not None:
            self._resume_resync(record)

    def _first_seen(self, record: TableRecord) -> TableControls:
        """Treat nonces that are already set as handled, and record the current settings for an older copy."""
        table_config = self._config_ref.current.table(record.name)
        wanted = self.wanted_settings(record).to_text()
        controls = TableControls(
            table_config.retry_nonce, table_config.resync_nonce, "" if isinstance(record.phase, Init) else wanted
        )
        self._store.store_table_controls(record.id, controls)
        return controls

    def reconfigured(self) -> None:
        """Apply changes of ``suspended``. Changes that request a copy or a retry are left to `apply_requests`."""
        self._places_changed = True
        for record in self.tables.values():
            suspended = self._config_ref.current.table(record.name).suspended
            if suspended != record.suspended:
                _log.info("table %s is %s", record.name, "suspended" if suspended else "resumed")
                record.suspended = suspended
            if suspended and record.busy is Job.COPY:
                record.copy.cancel()
            if suspended:
                record.resync.cancel_copy()

    # ---- places at the destination --------------------------------------------------------------------------------

    def check_places(self) -> None:
        """Park each table whose copy waits for a place that another table has. Retry it when the place is free."""
        if not self._places_changed:
            return
        self._places_changed = False
        wrong = self._misplaced()
        for record in self.tables.values():
            copied = last_copy_settings(self.controls(record)) or self.wanted_settings(record)
            record.destination_table = target_name(self._destination.target, record.name, copied)
            error = wrong.get(record.id)
            if error is None and record.misplaced:
                record.misplaced = False
                if isinstance(record.phase, Errored) and record.phase.code in MISPLACED:
                    self._retry(record)
            elif error is not None and isinstance(record.phase, Init) and not record.busy:
                record.misplaced = True
                self.park(record, error)

    def _misplaced(self) -> dict[TableId, NeedsOperator]:
        known = {r.id: (r.name, last_copy_settings(self.controls(r))) for r in self.tables.values()}
        return find_misplaced(self._config_ref.current, self._destination.target, known)

    def places_changed(self) -> None:
        """Compare the places of all tables again before the next copy begins."""
        self._places_changed = True

    def update_mode(self, record: TableRecord, schema: ReplicatedTableSchema) -> None:
        """Update the table's mode, with a note if a table without a key is kept as a changelog."""
        mode = self._destination.effective_mode(schema)
        record.mode = mode.value
        keyless = mode is TableMode.CHANGELOG and not schema.key and self._destination.capabilities.upsert
        record.note = f"the table has no key (replica identity {schema.identity.value})" if keyless else ""

    # ---- segments -------------------------------------------------------------------------------------------------

    def segment_staged(self, manifest: Manifest) -> None:
        """Add a staged segment to the backlog of its tables."""
        self.backlog.add_segment(manifest)
        self.storage.record_truncates(manifest)
        self.staged_lsn = max(self.staged_lsn, manifest.end_lsn)
        for table in manifest.tables:
            record = self.tables.get(table)
            if record is None:
                continue
            record.apply.changes_wait(time.monotonic() - manifest.span_s)
            self._require_complete(record)

    def _require_complete(self, record: TableRecord) -> None:
        """Park the table with ``segment_missing`` if a segment that it needs is lost."""
        missing = self.backlog.missing(record.id)
        if missing is not None:
            self.park_until_resync(
                record,
                NeedsOperator(
                    "segment_missing",
                    f"staging: the segment that ends at {missing} has changes of {record.name}, and is lost or damaged",
                    hint=resync_command(record.name),
                ),
            )

    def position(self, record: TableRecord) -> Lsn:
        """Return the LSN below which nothing of the table is left to apply, 0 while that is unknown."""
        return self.backlog.position(record.id, self.staged_lsn)

    def _track_segments(self, record: TableRecord) -> None:
        """Keep the segments that the table needs, or all of them until its watermark has been read."""
        if isinstance(record.phase, Init):
            # A failure of the next copy must not be judged by the membership of an earlier copy.
            forget_membership(self._store, record.id)
        if needs_resync(record.phase) or isinstance(record.phase, Init):
            self.unverified.resolve(record.id)
            self.backlog.track(record.id, self.staged_lsn, holds=False)
        elif self._destination.capabilities.watermark:
            # A job reads it: a destination that does not answer must not keep the stream from being staged.
            self.backlog.track(record.id, None)
            record.apply.read_watermark()
        else:
            self.set_position(record, self._store.get_replication_progress(table_worker(record.id)))

    def set_position(self, record: TableRecord, position: Lsn | None) -> None:
        """Keep the table's segments from its watermark ``position`` on. Park the table if it has none."""
        self.backlog.track(record.id, position)
        if self._is_of_another_history(record, position):
            return
        self._require_complete(record)
        if position is None and not isinstance(record.phase, Errored):
            self.park(
                record,
                NeedsOperator(
                    "destination_table_missing",
                    f"the destination no longer has what was applied of table {record.name}",
                    hint=f"copy it again: {resync_command(record.name)}",
                ),
            )

    def source_restarted(self, verified_to: Lsn) -> None:
        """Handle a restart of the source, whose WAL history is verified up to ``verified_to``.

        Tables whose watermark may be beyond that LSN become unverified, and running copies are repeated. Only a copy
        can be beyond, because its snapshot may be ahead of the stream.
        """
        tables = [r for r in self.tables.values() if not (isinstance(r.phase, Init) or needs_resync(r.phase))]
        unknown = {r.id for r in tables if not self.backlog.position_known(r.id)}
        ahead = [r for r in tables if r.id not in unknown and self.position(r) > verified_to]
        self.unverified.add(unknown | {r.id for r in ahead}, verified_to)
        for record in tables:
            if record.busy is Job.COPY:
                record.copy.outdate()
            if record.resync.is_ahead(verified_to):
                record.resync.restart()
        for record in ahead:
            if record.busy:
                record.apply.read_watermark()
            else:
                self._is_of_another_history(record, self.position(record))

    def _is_of_another_history(self, record: TableRecord, position: Lsn | None) -> bool:
        """Resolve an unverified table. If it is beyond the verified LSN, resync or park it and return True."""
        verified_to = self.unverified.resolve(record.id)
        if position is None or verified_to is None or position <= verified_to:
            return False
        if isinstance(record.phase, FinishedCopy | SyncWait | Catchup):
            # The stream had not reached the copy's snapshot when the server was restarted.
            _log.warning("table %s is copied again: the source was restarted before its copy was used", record.name)
            self.restart_copy(record)
        else:
            self.park_until_resync(record, another_history(record.name, position, verified_to))
        return True

    # ---- phases ---------------------------------------------------------------------------------------------------

    def step(self, record: TableRecord) -> None:
        """Retry, resync or advance the table if the condition for that is met."""
        now = time.monotonic()
        if retry_is_due(record.phase, datetime.now(UTC)):
            self._retry(record)
        elif lost_copy_is_due(record, self._config_ref.current, now):
            self._copy_after_loss(record, now)
        elif (phase := next_phase(record.phase, self.position(record), self.staged_lsn)) is not None:
            self.enter(record, phase)

    def enter(self, record: TableRecord, phase: TableReplicationPhase) -> None:
        """Put the table into the next phase. Raise ValueError if the transition is not allowed."""
        check_transition(record.phase, phase)
        self._store.update_table_replication_states({record.id: phase})
        _log.info("table %s: %s -> %s", record.name, record.phase.name, phase.name)
        record.phase = phase

    def restart_copy(self, record: TableRecord) -> None:
        """Put the table back to Init, with the current settings. A shadow copy is abandoned."""
        self.abandon_resync(record)
        record.copy.discard()
        self._apply_excluded_columns(record)
        self._places_changed = True
        if not isinstance(record.phase, Init):
            self.enter(record, Init())
        self._store_nonces(record)
        self._track_segments(record)

    def park(self, record: TableRecord, error: BaseException) -> None:
        """Park the table after an error. A Permanent error ends the pipeline.

        A table whose staged changes are lost is parked until a resync. One that already is stays parked as it is.
        """
        if isinstance(error, Permanent):
            self.fatal = error
            return
        if needs_resync(record.phase):
            # The job ended after the table had missed changes. A retry would skip them.
            return
        if isinstance(error, LevadaError) and error.code in _CHANGES_LOST:
            self.park_until_resync(record, error)
            return
        record.attempts += is_failure(error)
        parked = named(
            park(error, max(1, record.attempts), self._config_ref.current.retries, datetime.now(UTC)), record.name
        )
        known = error if isinstance(error, LevadaError) else None
        _log.error(
            "table %s is parked: %s [%s]", record.name, parked.reason, parked.code, exc_info=known is None and error
        )
        self.enter(record, parked)

    def park_until_resync(self, record: TableRecord, error: LevadaError) -> None:
        """Park a table that missed changes. Only a resync repairs it, which ``onLost: Resync`` starts by itself."""
        if needs_resync(record.phase):
            return
        self.abandon_resync(record)
        parked = named(
            park(error, 1, self._config_ref.current.retries, datetime.now(UTC), needs_resync=True), record.name
        )
        _log.error("table %s missed changes and is parked: %s [%s]", record.name, parked.reason, parked.code)
        self.enter(record, parked)
        self.backlog.track(record.id, self.staged_lsn, holds=False)

    def _copy_after_loss(self, record: TableRecord, now: float) -> None:
        if record.resync.has_copy:
            # The shadow copy that was abandoned with the table is still being removed.
            return
        if now - record.lost_copied_at > self._config_ref.current.retries.max_delay_s:
            record.lost_copies = 0
        record.lost_copies += 1
        record.lost_copied_at = now
        self._resync(record)

    # ---- requests --------------------------------------------------------------------------------------------------

    def apply_actions(self) -> None:
        """Apply the retries and resyncs that the CLI has put into the store."""
        for table, action in self._store.take_table_actions().items():
            record = self.tables.get(table)
            if record is None:
                _log.warning("request %s for a table that is not replicated: %d", action.value, table)
            elif record.busy or record.resync.abandoned:
                self._store.request_table_action(table, action)
            elif action is TableAction.RESYNC:
                self._resync(record)
            else:
                self._retry_on_demand(record)

    def apply_requests(self) -> None:
        """Apply the retries and resyncs that the manifest requests, once for each value of a nonce."""
        for record in self.tables.values():
            self._apply_request(record)

    def _apply_request(self, record: TableRecord) -> None:
        table_config, wanted = self._config_ref.current.table(record.name), self.wanted_settings(record)
        controls = self.controls(record)
        if record.busy is Job.COPY:
            other = record.copy.settings not in (None, wanted)
            if other or table_config.resync_nonce not in (0, controls.resync_nonce):
                record.copy.cancel()
            return
        request = pending_request(controls, table_config, wanted)
        if (record.busy or record.resync.abandoned) and request is not TableRequest.NOTHING:
            return
        if isinstance(record.phase, Init):
            # Its copy begins with the settings of that time.
            self._apply_excluded_columns(record)
        elif request is TableRequest.RESYNC:
            self._resync(record)
        elif request is TableRequest.RETRY:
            self._retry_on_demand(record)
        self._store_nonces(record)

    def wanted_settings(self, record: TableRecord) -> CopySettings:
        """Return the settings for a copy of the table that begins now."""
        return CopySettings.of(self._config_ref.current, record.name, last_copy_settings(self.controls(record)))

    def controls(self, record: TableRecord) -> TableControls:
        """Return the nonces that were acted on for the table, and the settings of its last copy."""
        return self._store.get_table_controls(record.id) or TableControls()

    def _store_nonces(self, record: TableRecord) -> None:
        table_config, controls = self._config_ref.current.table(record.name), self.controls(record)
        noted = replace(controls, retry_nonce=table_config.retry_nonce, resync_nonce=table_config.resync_nonce)
        if noted != controls:
            self._store.store_table_controls(record.id, noted)

    def _apply_excluded_columns(self, record: TableRecord) -> None:
        """Apply the configured excluded columns to the stream. The copy waits for a session that excludes them."""
        excluded = self._config_ref.current.table(record.name).excluded_columns
        if self._config_ref.columns.get(record.name) != excluded:
            self._config_ref.columns[record.name] = excluded
            record.copy.wait_for_session(self._reopen())

    def _resync(self, record: TableRecord) -> None:
        if record.misplaced:
            return
        if (error := self._misplaced().get(record.id)) is not None:
            # The table at the destination stays.
            record.misplaced = True
            self.park(record, error)
            return
        _log.info("table %s is copied again", record.name)
        # A dedicated copy replaces the table as soon as it is complete. It does not catch up as a shadow copy does.
        here = not self._config_ref.current.table(record.name).dedicated_copy
        if here and can_replace(self._destination) and stays_readable(record) and not self._settings_changed(record):
            self._start_shadow_copy(record)
            return
        if needs_resync(record.phase):
            # The stream skips the table until its next session. The copy must not be older than that session.
            record.copy.wait_for_session(self._reopen())
        record.attempts = 0
        self.restart_copy(record)

    def _settings_changed(self, record: TableRecord) -> bool:
        return settings_changed(self.controls(record), self.wanted_settings(record))

    # ---- shadow copies ---------------------------------------------------------------------------------------------

    def _start_shadow_copy(self, record: TableRecord) -> None:
        self._store.upsert_replication_progress(resync_worker(record.id), self.staged_lsn)
        record.resync.request()

    def _resume_resync(self, record: TableRecord) -> None:
        """Restart a resync that an earlier process did not finish."""
        if can_replace(self._destination) and stays_readable(record):
            record.resync.request()
            return
        self._store.delete_replication_progress(resync_worker(record.id))
        if isinstance(record.phase, Errored) and not needs_resync(record.phase):
            self.restart_copy(record)

    def abandon_resync(self, record: TableRecord) -> None:
        """Abandon the table's shadow copy, if it has one. An abandoned one is removed by the next job."""
        if not record.resync.has_copy or record.resync.abandoned:
            return
        record.resync.abandon()
        self.backlog.forget(record.id, shadow=True)
        self._store.delete_replication_progress(resync_worker(record.id))

    def end_resync(self, record: TableRecord) -> None:
        """Forget the request for a shadow copy, which has replaced the table."""
        self._store.delete_replication_progress(resync_worker(record.id))

    # ---- retries --------------------------------------------------------------------------------------------------

    def _retry_on_demand(self, record: TableRecord) -> None:
        if needs_resync(record.phase):
            assert isinstance(record.phase, Errored)
            _log.warning("table %s cannot be retried, only copied again: %s", record.name, record.phase.solution)
        elif isinstance(record.phase, Errored):
            record.attempts = 0
            self._retry(record)

    def _retry(self, record: TableRecord) -> None:
        if not isinstance(record.phase, Errored):
            raise ValueError(f"{record.phase.name} is not parked")
        phase = at_restart(self._store.rollback_table_replication_state(record.id))
        check_transition(record.phase, phase)
        _log.info("table %s: retrying from %s", record.name, phase.name)
        record.phase = phase
        self._store.update_table_replication_states({record.id: phase})
        self._track_segments(record)
