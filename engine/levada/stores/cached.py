"""The cache that all kinds of storage share."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from levada.errors import LevadaError, NeedsOperator
from levada.schema import ReplicatedTableSchema
from levada.stores.interface import CopyOrder, OwnerRecord, PipelineStore, TableAction, TableControls
from levada.stores.phases import TableReplicationPhase
from levada.stores.storage import Storage, table_worker
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId

_K = TypeVar("_K")
_V = TypeVar("_V")
_Versions = Mapping[SnapshotId, ReplicatedTableSchema]


class CachedStore(PipelineStore):
    """A store that reads from memory, and writes to a `Storage` before it changes its cache.

    Before `next_epoch` its epoch is 0, so it can write only if no driver has ever started an epoch.
    """

    # A write replaces a cached mapping and never changes it. So readers need no lock and do not wait for storage.
    # Writers take turns, which keeps the cache in storage's order.

    def __init__(self, pipeline: str, storage: Storage) -> None:
        self.pipeline = pipeline
        self._storage = storage
        self._turn = threading.Lock()
        self._epoch = 0
        self._owner: PipelineOwner | None = None
        self._phases: Mapping[TableId, TableReplicationPhase] = {}
        self._schemas: Mapping[TableId, _Versions] = {}
        self._controls: Mapping[TableId, TableControls] = {}
        self._fingerprints: Mapping[str, str] = {}
        self._progress: Mapping[str, Lsn] | None = None

    @property
    def last_error(self) -> LevadaError | None:
        return self._storage.last_error

    def next_epoch(self) -> int:
        with self._turn:
            self._epoch = self._storage.next_epoch(self._owner)
            return self._epoch

    def get_owner_record(self) -> OwnerRecord | None:
        with self._turn:
            return self._storage.load_owner()

    def change_owner_record(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        with self._turn:
            changed = self._storage.change_owner(expected, now)
            if changed:
                self._owner = None if now is None else now.owner
            return changed

    def require_epoch(self) -> None:
        with self._turn:
            self._storage.require_epoch(self._epoch)

    def join(self, epoch: int) -> None:
        with self._turn:
            self._epoch = epoch

    def close(self) -> None:
        with self._turn:
            self._storage.close()

    # Requests

    def request_table_action(self, table: TableId, action: TableAction) -> None:
        with self._turn:
            self._storage.put_action(table, action)

    def take_table_actions(self) -> Mapping[TableId, TableAction]:
        with self._turn:
            return self._storage.take_actions(self._epoch)

    # Phases

    def get_table_replication_state(self, table: TableId) -> TableReplicationPhase | None:
        return self._phases.get(table)

    def get_table_replication_states(self) -> Mapping[TableId, TableReplicationPhase]:
        return MappingProxyType(self._phases)

    def load_table_replication_states(self) -> int:
        with self._turn:
            self._phases = self._storage.load_phases()
            return len(self._phases)

    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        with self._turn:
            persisted = {table: phase for table, phase in updates.items() if phase.persisted}
            if persisted:
                self._storage.push_phases(self._epoch, persisted)
            self._phases = {**self._phases, **updates}

    def rollback_table_replication_state(self, table: TableId) -> TableReplicationPhase:
        with self._turn:
            phase = self._storage.pop_phase(self._epoch, table)
            if phase is None:
                raise NeedsOperator(
                    "no_previous_phase",
                    f"pipeline {self.pipeline}: table {int(table)} has no phase before its current one",
                    hint="copy the table again instead: change spec.resyncNonce of its TableSync",
                )
            self._phases = {**self._phases, table: phase}
            return phase

    # Schema versions

    def get_table_schema(self, table: TableId, snapshot_id: SnapshotId) -> ReplicatedTableSchema | None:
        versions = self._schemas.get(table, {})
        newest = max((v for v in versions if v <= snapshot_id), default=None)
        return None if newest is None else versions[newest]

    def get_table_schemas(self) -> tuple[ReplicatedTableSchema, ...]:
        schemas = self._schemas
        return tuple(schemas[table][version] for table in sorted(schemas) for version in sorted(schemas[table]))

    def load_table_schemas(self) -> int:
        with self._turn:
            loaded: dict[TableId, dict[SnapshotId, ReplicatedTableSchema]] = {}
            for schema in self._storage.load_schemas():
                loaded.setdefault(schema.id, {})[schema.snapshot_id] = schema
            self._schemas = loaded
            return sum(map(len, loaded.values()))

    def store_table_schema(self, schema: ReplicatedTableSchema) -> None:
        with self._turn:
            self._storage.put_schema(self._epoch, schema)
            versions = {**self._schemas.get(schema.id, {}), schema.snapshot_id: schema}
            self._schemas = {**self._schemas, schema.id: versions}

    def prune_table_schemas(self, retentions: Mapping[TableId, SnapshotId]) -> int:
        with self._turn:
            removed = self._storage.prune_schemas(self._epoch, retentions)
            pruned = {table: retained(self._schemas.get(table, {}), retentions[table]) for table in retentions}
            self._schemas = {**self._schemas, **{table: kept for table, kept in pruned.items() if kept}}
            return removed

    # Progress

    def get_replication_progress(self, worker: str) -> Lsn | None:
        progress = self._progress
        if progress is None:
            with self._turn:
                progress = self._loaded_progress()
        return progress.get(worker)

    def upsert_replication_progress(self, worker: str, lsn: Lsn) -> Lsn:
        with self._turn:
            now = self._storage.raise_progress(self._epoch, worker, lsn)
            self._progress = {**self._loaded_progress(), worker: now}
            return now

    def delete_replication_progress(self, worker: str) -> None:
        with self._turn:
            self._storage.delete_progress(self._epoch, worker)
            self._progress = {w: lsn for w, lsn in self._loaded_progress().items() if w != worker}

    def _loaded_progress(self) -> Mapping[str, Lsn]:
        if self._progress is None:
            self._progress = self._storage.load_progress()
        return self._progress

    # Controls

    def get_table_controls(self, table: TableId) -> TableControls | None:
        return self._controls.get(table)

    def store_table_controls(self, table: TableId, controls: TableControls) -> None:
        with self._turn:
            self._storage.put_controls(self._epoch, table, controls)
            self._controls = {**self._controls, table: controls}

    def load_table_controls(self) -> int:
        with self._turn:
            self._controls = self._storage.load_controls()
            return len(self._controls)

    # Fingerprints

    def get_fingerprint(self, subject: str) -> str | None:
        return self._fingerprints.get(subject)

    def store_fingerprint(self, subject: str, fingerprint: str) -> None:
        with self._turn:
            self._storage.put_fingerprint(self._epoch, subject, fingerprint)
            self._fingerprints = {**self._fingerprints, subject: fingerprint}

    def delete_fingerprint(self, subject: str) -> None:
        with self._turn:
            self._storage.delete_fingerprint(self._epoch, subject)
            self._fingerprints = without(self._fingerprints, subject)

    def load_fingerprints(self) -> int:
        with self._turn:
            self._fingerprints = self._storage.load_fingerprints()
            return len(self._fingerprints)

    # Orders

    def order_copy(self, table: TableId, order: CopyOrder | None) -> None:
        with self._turn:
            self._storage.put_order(self._epoch, table, order)

    def get_copy_order(self, table: TableId) -> CopyOrder | None:
        with self._turn:
            return self._storage.load_order(table)

    def change_copy_order(self, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        with self._turn:
            return self._storage.change_order(self._epoch, table, expected, now)

    # Lifecycle

    def clear_table_copy_state(self, table: TableId) -> None:
        with self._turn:
            self._storage.delete_table(self._epoch, table, keep_phases=True)
            self._forget(table)

    def delete_table_pipeline_state(self, table: TableId) -> None:
        with self._turn:
            self._storage.delete_table(self._epoch, table, keep_phases=False)
            self._forget(table)
            self._phases = without(self._phases, table)
            self._controls = without(self._controls, table)

    def _forget(self, table: TableId) -> None:
        self._schemas = without(self._schemas, table)
        self._progress = without(self._loaded_progress(), table_worker(table))
        self._fingerprints = without(self._fingerprints, table_worker(table))

    def delete_pipeline_state(self) -> None:
        with self._turn:
            self._storage.delete_all(self._epoch)
            self._phases, self._schemas, self._progress = {}, {}, {}
            self._controls, self._fingerprints = {}, {}


def retained(versions: _Versions, retention: SnapshotId) -> _Versions:
    """Return the newest version not above ``retention`` and all newer ones. Return all if every version is above it."""
    oldest = max((v for v in versions if v <= retention), default=SnapshotId(0))
    return {version: schema for version, schema in versions.items() if version >= oldest}


def without(mapping: Mapping[_K, _V], key: _K) -> Mapping[_K, _V]:
    """Return the mapping without one key."""
    return {k: v for k, v in mapping.items() if k != key}
