"""The state of a pipeline in its store, as the checks before a start read it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from levada.errors import InvalidManifest, LevadaError
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.problems import Problem
from levada.postgres.slots import inspect_slot
from levada.runtime.config import PipelineConfig
from levada.runtime.destination_errors import plugin_errors
from levada.runtime.host.assembly import open_store, store_connection
from levada.runtime.host.stored_progress import is_empty
from levada.runtime.source.destination_place import require_same_place
from levada.runtime.source.record import SourceRecord
from levada.runtime.source.staging_place import other_folder, require_same_staging
from levada.runtime.tables.requests import CopySettings, TableRequest, last_copy_settings, pending_request
from levada.runtime.tables.rules import continues
from levada.runtime.tables.table_names import table_names
from levada.spec import Manifests
from levada.spec.plugins import STORES
from levada.stores.interface import OwnerRecord, TableAction, TableControls
from levada.stores.phases import DataSync, Init
from levada.stores.readiness import check_postgres_store, postgres_store_exists
from levada.values import QualifiedTable, TableId


@dataclass(frozen=True, slots=True)
class StoredState:
    """The part of the store that the checks need.

    ``known`` is set if there are tables, ``begun`` once one was copied, and ``depends`` if a copied table needs the
    slot's changes. ``copied_as`` are the settings of each table's last copy. ``resyncs`` are the tables whose resync
    was requested in the store. ``moved`` is the error of a destination or a staging area that is not the one of the
    state. ``empty`` is True if the store outlives the process and has no record of the pipeline. Otherwise it may be
    ``volatile``. ``server_started`` is the start of the server that the stream has read from, None before. ``whole`` is
    False if only ``known``, ``begun`` and ``depends`` could be read. ``elsewhere`` is the warning of a work folder that
    is not that of the last engine.
    """

    known: bool = False
    begun: bool = False
    depends: bool = False
    owner: OwnerRecord | None = None
    controls: Mapping[TableId, TableControls] = field(default_factory=dict)
    resyncs: frozenset[TableId] = frozenset()
    moved: LevadaError | None = None
    empty: bool = False
    whole: bool = True
    volatile: bool = False
    server_started: str | None = None
    elsewhere: Problem | None = None
    names: frozenset[QualifiedTable] = frozenset()

    @property
    def copied_as(self) -> Mapping[TableId, CopySettings]:
        """Return the settings of each table's last copy."""
        return {t: before for t, its in self.controls.items() if (before := last_copy_settings(its)) is not None}


def read_stored_state(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> StoredState:
    """Return the state of the pipeline's tables in the store.

    The schema of a PostgreSQL store is not created or migrated. If it would have to be, the result only has whether a
    table was copied. Raise the error of a store that cannot be used.
    """
    spec = manifests.pipeline.spec.store
    if spec.postgres is not None:
        connection = store_connection(manifests, config, secrets)
        found = check_postgres_store(connection, config.name, spec.postgres.schema_name)
        if not found.current:
            # Opening the store would create or migrate its schema.
            empty = not postgres_store_exists(connection, spec.postgres.schema_name)
            return StoredState(found.has_copies, found.has_copies, found.has_copies, empty=empty, whole=False)
    with closing(open_store(manifests, config, secrets)) as store, plugin_errors(type(store), STORES, "a read"):
        store.load_table_replication_states()
        store.load_table_controls()
        states = store.get_table_replication_states()
        begun = any(not isinstance(p, Init | DataSync) for p in states.values())
        controls = {t: its for t in states if (its := store.get_table_controls(t)) is not None}
        resyncs = frozenset(t for t, action in store.get_table_actions().items() if action is TableAction.RESYNC)
        depends = any(
            continues(phase) and t not in resyncs and not _copied_again(config, controls.get(t))
            for t, phase in states.items()
        )
        store.load_fingerprints()
        store.load_table_schemas()
        moved: LevadaError | None = None
        try:
            require_same_place(config, store)
            require_same_staging(config, store)
        except InvalidManifest as error:
            moved = error
        server = SourceRecord(store).state.identity
        return StoredState(
            bool(states), begun, depends, store.get_owner_record(), controls, resyncs, moved, is_empty(store),
            volatile=store.volatile, server_started=None if server is None else server.started_at,
            elsewhere=other_folder(config, store), names=frozenset(table_names(store).values()),
        )  # fmt: skip


def _copied_again(config: PipelineConfig, controls: TableControls | None) -> bool:
    """Return True if a start copies the table again because the manifest requests it, or leaves it out."""
    before = last_copy_settings(controls)
    if controls is None or before is None:
        return False
    wanted = CopySettings.of(config, before.table, before)
    request = pending_request(controls, before, config.table(before.table), wanted)
    return request is TableRequest.RESYNC or not config.is_selected(before.table)


def copied_before(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> bool:
    """Return True if the store has a copied table of the pipeline.

    If the store cannot be read for now, return True if the pipeline's slot exists. False if that is unknown too.
    """
    try:
        return read_stored_state(manifests, config, secrets).begun
    except LevadaError as error:
        return error.passes and _has_slot(config)


def _has_slot(config: PipelineConfig) -> bool:
    try:
        with SESSIONS.session(config.source, "check") as connection:
            return inspect_slot(connection, config.slot.name) is not None
    except LevadaError:
        return False


def stored_controls(
    manifests: Manifests, config: PipelineConfig, secrets: Path | None
) -> Mapping[TableId, TableControls]:
    """Return the handled requests of each table. Raise the error of a store that cannot be used."""
    return read_stored_state(manifests, config, secrets).controls


def requested_resyncs(manifests: Manifests, config: PipelineConfig, secrets: Path | None) -> frozenset[TableId]:
    """Return the tables whose resync `levada resync` has requested. Raise the error of a store that cannot be used."""
    return read_stored_state(manifests, config, secrets).resyncs
