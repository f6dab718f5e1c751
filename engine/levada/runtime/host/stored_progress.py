"""The progress of a pipeline that does not run on this machine: its store and slot, and the error of a lost store."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from levada import codes
from levada.errors import LevadaError, NeedsOperator, SlotLost, rebuild
from levada.postgres.failures import RESYNC_ALL
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.lag import sample_lag
from levada.postgres.slots import inspect_slot, is_foreign
from levada.runtime.config import PipelineConfig
from levada.runtime.host.assembly import open_store, pipeline_config, store_connection
from levada.runtime.host.last_error import LastError
from levada.runtime.host.plugins import target_names
from levada.runtime.report.snapshot import fatal_progress
from levada.runtime.resources.staging import open_staging
from levada.runtime.source.lost_state import has_record, lost_state
from levada.runtime.source.requestable_tables import current_names
from levada.runtime.source.row_filters import applied_filters
from levada.runtime.tables.guard_record import guard_actions, slot_release
from levada.runtime.tables.kept_copies import interrupted_progress, kept_copy
from levada.runtime.tables.places import TargetNameOf, target_name
from levada.runtime.tables.record import error_progress
from levada.runtime.tables.requests import last_copy_settings
from levada.runtime.tables.rules import continues
from levada.runtime.tables.table_names import table_names
from levada.runtime.tables.verification_record import difference_of, verification_record
from levada.segments.log import SegmentLog
from levada.spec import Manifests
from levada.status import (
    CopyProgress,
    GuardAction,
    GuardProgress,
    PipelineState,
    Progress,
    SlotProgress,
    StagingProgress,
    TablePhase,
    TableProgress,
)
from levada.stores.interface import PipelineStore, TableAction
from levada.stores.phases import Errored, TableReplicationPhase
from levada.stores.readiness import postgres_store_exists
from levada.values import QualifiedTable, TableId

_REPORTED: Final = (codes.SLOT_FOREIGN, codes.SOURCE_STANDBY)
"""Codes of a slot's sample that are the pipeline's error."""
_RESYNC: Final = "levada resync "
_REQUESTED: Final = "the resync is requested and begins with the next start: levada run MANIFEST"


def slot_progress(manifests: Manifests, *, secrets: Path | None = None) -> SlotProgress:
    """Return the slot's lag and retained WAL as of now. Without a slot, every number is None.

    Raise NeedsOperator ``slot_foreign`` if the slot of that name belongs to another database.
    """
    return _sample_slot(pipeline_config(manifests, secrets=secrets))


def stored_progress(manifests: Manifests, *, secrets: Path | None = None, work_dir: Path | None = None) -> Progress:
    """Return the progress of a pipeline that does not run here, from its store and its slot.

    Numbers of a running process are None. The error is ``slot_lost`` or ``slot_missing`` if tables need the changes of
    a slot that is gone, and ``slot_released`` if the guard dropped it. It is ``slot_foreign`` if the slot of that name
    belongs to another database, ``source_standby`` if the source is a standby without it, and ``store_empty`` if the
    store has lost the pipeline's state. Without one of these it is the error with which the last engine of the work
    folder ended.
    """
    config = pipeline_config(manifests, secrets=secrets, work_dir=work_dir)
    now = datetime.now(UTC)
    stored = _stored(manifests, config, secrets)
    slot, error = _slot_state(config, stored)
    if error is None:
        error = LastError(config.work_dir, config.name).read()
        if error is not None and stored.requested and _RESYNC in error.hint:
            error = rebuild(type(error).__name__, error.code, error.message, _REQUESTED)
    return Progress(
        pipeline=config.name,
        epoch=0,
        state=PipelineState.STOPPED,
        started_at=now,
        at=now,
        slot=slot,
        staging=StagingProgress(durable=config.staging.durable is not False),
        guard=GuardProgress(actions=stored.actions),
        tables=tuple(sorted(stored.tables, key=lambda t: t.table)),
        error=fatal_progress(error),
    )


def stored_filters(manifests: Manifests, secrets: Path | None) -> Mapping[TableId, str | None]:
    """Return the row filters that a pipeline which does not run here has given its publication, by its store."""
    store = open_store(manifests, pipeline_config(manifests, secrets=secrets), secrets)
    try:
        store.load_fingerprints()
        return applied_filters(store)
    finally:
        store.close()


def _sample_slot(config: PipelineConfig) -> SlotProgress:
    sample = sample_lag(config.source, config.slot.name)
    if sample is None:
        return SlotProgress(config.slot.name)
    return SlotProgress(
        config.slot.name,
        sample.lag_bytes,
        sample.retained_bytes,
        sample.status.wal_status,
        sample.status.safe_wal_size,
        sample.status.active,
        datetime.now(UTC),
    )


@dataclass(frozen=True, slots=True)
class _Stored:
    """The content of the store. There is none before the first run, which creates the store.

    ``depending`` is the number of tables that continue from the slot, without those whose resync is requested.
    ``requested`` is True if that leaves none. ``released`` is why the guard dropped the slot. ``empty`` is True if the
    store outlives the process and has no record of the pipeline.
    """

    tables: tuple[TableProgress, ...] = ()
    depending: int = 0
    requested: bool = False
    actions: tuple[GuardAction, ...] = ()
    released: str = ""
    empty: bool = False


def _stored(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> _Stored:
    postgres = manifests.pipeline.spec.store.postgres
    if postgres is not None:
        connection = store_connection(manifests, config, secrets)
        if not postgres_store_exists(connection, postgres.schema_name):
            return _Stored(empty=True)
    store = open_store(manifests, config, secrets)
    try:
        store.load_table_schemas()
        store.load_table_replication_states()
        store.load_table_controls()
        store.load_fingerprints()
        phases, targets = store.get_table_replication_states(), target_names(manifests)
        names = table_names(store) | _current_names(config, phases)
        tables = tuple(
            replace(
                _table(store, id_, names.get(id_, QualifiedTable("", f"oid {int(id_)}")), phase),
                copy=_kept_ranges(store, id_),
                destination_table=_place(store, id_, names.get(id_), targets),
            )
            for id_, phase in phases.items()
        )
        continuing = {id_ for id_, phase in phases.items() if continues(phase)}
        resyncs = {id_ for id_, action in store.get_table_actions().items() if action is TableAction.RESYNC}
        depending, requested = len(continuing - resyncs), bool(resyncs) and continuing <= resyncs
        return _Stored(tables, depending, requested, guard_actions(store), slot_release(store), is_empty(store))
    finally:
        store.close()


def _current_names(config: PipelineConfig, tables: Collection[TableId]) -> dict[TableId, QualifiedTable]:
    """Return the names of tables at the source, or none if the source is unavailable."""
    try:
        return dict(current_names(config, tables))
    except LevadaError:
        return {}


def _place(store: PipelineStore, id_: TableId, name: QualifiedTable | None, targets: TargetNameOf) -> str:
    copied = last_copy_settings(store.get_table_controls(id_))
    return "" if name is None or copied is None else target_name(targets, name, copied)


def _table(store: PipelineStore, id_: TableId, name: QualifiedTable, phase: TableReplicationPhase) -> TableProgress:
    record = verification_record(store, id_)
    differs, copied = difference_of(record, phase), last_copy_settings(store.get_table_controls(id_))
    return TableProgress(
        id=id_,
        copied_rows="" if copied is None else copied.copied_rows,
        schema=name.schema,
        name=name.name,
        phase=TablePhase.ERRORED if differs is not None else phase.name,
        verified=record.last,
        proof=record.proof,
        error=error_progress(phase) if isinstance(phase, Errored) else differs,
    )


def _kept_ranges(store: PipelineStore, table: TableId) -> CopyProgress | None:
    """Return the progress of an interrupted copy with which the next start continues, None if there is none."""
    kept = kept_copy(store, table)
    return None if kept is None else interrupted_progress(kept)


def _slot_state(config: PipelineConfig, stored: _Stored) -> tuple[SlotProgress, LevadaError | None]:
    """Return the slot, and the error with which a start would end because of it. None if the source does not answer."""
    try:
        slot = _sample_slot(config)
    except LevadaError as error:
        return SlotProgress(config.slot.name), error if error.code in _REPORTED else None
    held = stored.empty and not config.slot.resync_when_lost
    return slot, find_lost_state(config) if held else _lost(config, slot, stored)


def _lost(config: PipelineConfig, slot: SlotProgress, stored: _Stored) -> SlotLost | None:
    """Return the error of a slot that is missing or invalidated while tables depend on it, as a start reports it."""
    missing, depending = slot.sampled_at is None, stored.depending
    if not depending or (not missing and slot.wal_status != "lost"):
        return None
    what = stored.released or f"slot {slot.name} does not exist"
    code = codes.SLOT_RELEASED if stored.released else codes.SLOT_MISSING
    if not missing:
        code, what = codes.SLOT_LOST, f"slot {slot.name} has been invalidated"
    which = "table needs" if depending == 1 else "tables need"
    if config.slot.compare_when_lost:
        hint = "levada run MANIFEST compares them with the source, because spec.source.slot.onLost is Compare"
        return SlotLost(code, f"{what}: {depending:,} {which} its changes", hint=hint)
    again = "levada run MANIFEST copies them again, because spec.source.slot.onLost is Resync"
    return SlotLost(
        code,
        f"{what}: {depending:,} {which} its changes, and must be copied again",
        hint=again if config.slot.resync_when_lost else f"copy them again: {RESYNC_ALL}",
    )


def is_empty(store: PipelineStore) -> bool:
    """Return True if the store outlives the process and has no record of the pipeline. All of it is loaded.

    A start puts tables with a requested resync back to Init, and then has their states.
    """
    resync = TableAction.RESYNC in store.get_table_actions().values()
    return not (store.volatile or resync or has_record(store))


def find_lost_state(config: PipelineConfig) -> NeedsOperator | None:
    """Return the error ``store_empty`` if a slot or staged segments exist, for a store without a record.

    None as well if the source or the staging area does not answer.
    """
    try:
        with SESSIONS.session(config.source, "check") as connection:
            slot = inspect_slot(connection, config.slot.name)
        end = SegmentLog(open_staging(config.staging), config.name).end()
    except LevadaError:
        return None
    if slot is not None and is_foreign(slot, config.source.database):
        slot = None
    return lost_state(config, slot, end)
