"""The cache that all kinds of storage share."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, TypeVar

from levada.errors import LevadaError, NeedsOperator
from levada.owners import not_the_owner
from levada.schema import ReplicatedTableSchema
from levada.stores.checked import CheckedStorage
from levada.stores.codecs import (
    ACTION,
    CONTROLS,
    CUT,
    DESTINATION,
    FINGERPRINT,
    KINDS,
    ORDER,
    OWNER,
    PHASES,
    PROGRESS,
    SCHEMA,
    action_key,
    key_worker,
    phase_before_error,
    pop_phase,
    push_phase,
    schema_key,
    worker_key,
)
from levada.stores.interface import (
    CopyOrder,
    Cut,
    DestinationTableMetadata,
    OwnerRecord,
    PipelineStore,
    TableAction,
    TableControls,
)
from levada.stores.phases import TableReplicationPhase
from levada.stores.retrying import RetryingStorage
from levada.stores.storage import Change, Document, DocumentKind, Key, Storage, decoded, state_lost
from levada.stores.workers import table_worker
from levada.stores.write_batch import WriteBatch
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId

_K = TypeVar("_K")
_V = TypeVar("_V")
_T = TypeVar("_T")
_Versions = Mapping[SnapshotId, ReplicatedTableSchema]


class CachedStore(PipelineStore):
    """A store that reads from memory, and writes to a `Storage` before it changes its cache.

    A call of the storage that raises Transient is repeated for ten minutes, unless the storage does that itself.

    Before `next_epoch` its epoch is 0, so it can write only if no driver has ever started an epoch.
    """

    # A write replaces a cached mapping and never changes it. So readers need no lock and do not wait for storage.
    # Writers take turns, which keeps the cache in storage's order.

    def __init__(self, pipeline: str, storage: Storage) -> None:
        self.pipeline = pipeline
        self._storage = storage if storage.retries else RetryingStorage(storage)
        self._checked = CheckedStorage(self._storage, type(storage))
        self.volatile = storage.volatile
        self._turn = threading.RLock()
        self._batch = WriteBatch()
        self._together = False
        self._epoch = 0
        self._owner: PipelineOwner | None = None
        self._phases: Mapping[TableId, TableReplicationPhase] = {}
        self._schemas: Mapping[TableId, _Versions] = {}
        self._controls: Mapping[TableId, TableControls] = {}
        self._fingerprints: Mapping[str, str] = {}
        self._cuts: Mapping[str, Cut] = {}
        self._progress: Mapping[str, Lsn] | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}(pipeline={self.pipeline!r})"

    @property
    def last_error(self) -> LevadaError | None:
        return self._storage.last_error

    def stop_waiting(self) -> None:
        # Not in turn, because the call that waits has the turn.
        self._storage.stop_waiting()

    @contextmanager
    def together(self) -> Iterator[None]:
        with self._turn:
            if self._together:
                yield
                return
            self._together = True
            try:
                yield
            finally:
                self._together = False
                self._flush()

    def require_epoch(self) -> None:
        with self._turn:
            self._write((), lambda _, document: document)

    def join(self, epoch: int) -> None:
        with self._turn:
            self._epoch = epoch

    def close(self) -> None:
        with self._turn:
            self._storage.close()

    # Documents

    @property
    def _up_to_date(self) -> Storage:
        """The storage, after the writes of `together` so far."""
        self._flush()
        return self._checked

    def _flush(self) -> None:
        batch, self._batch = self._batch, WriteBatch()
        if batch.keys:
            self._checked.update(self._epoch, batch.keys, batch.change)
        elif batch:
            self._checked.require_epoch(self._epoch)

    def _write(self, keys: Collection[Key[Any]], change: Change) -> None:
        """Replace documents of which the caller does not need the result."""
        self._batch.add(keys, change)
        if not self._together:
            self._flush()

    def _scan(self, kind: DocumentKind[_T]) -> dict[Key[_T], _T]:
        return {key: self._decode(key, document) for key, document in self._up_to_date.scan(kind).items()}

    def _get(self, key: Key[_T]) -> _T | None:
        return self._decoded(key, self._up_to_date.get(key))

    def _decoded(self, key: Key[_T], document: Document | None) -> _T | None:
        return None if document is None else self._decode(key, document)

    def _decode(self, key: Key[_T], document: Document) -> _T:
        of = "" if key.table is None else f" of table {int(key.table)}"
        name = f" {key.name}" if key.name else ""
        return decoded(key.kind, document, f"pipeline {self.pipeline}: the stored {key.kind.name}{name}{of}")

    def _put(self, key: Key[_T], value: _T) -> None:
        document = key.kind.encode(value)
        self._write([key], lambda *_: document)

    def _delete(self, *keys: Key[Any]) -> None:
        self._write(keys, lambda *_: None)

    def _take(self, *keys: Key[Any]) -> dict[Key[Any], Document]:
        return self._up_to_date.delete(self._epoch, keys)

    def _change(self, key: Key[_T], work: Callable[[_T | None], _T | None], epoch: int | None) -> _T | None:
        """Replace the value of a key by the result of ``work``, in one step, and return it."""

        def change(_: Key[Any], document: Document | None) -> Document | None:
            before = self._decoded(key, document)
            after = work(before)
            # A kept value keeps its document, which a former release may have encoded differently.
            return document if after == before else None if after is None else key.kind.encode(after)

        return self._decoded(key, self._up_to_date.update(epoch, [key], change)[key].after)

    def _exchange(self, key: Key[_T], expected: _T | None, now: _T | None, epoch: int | None) -> bool:
        """Replace the value ``expected`` by ``now``. Return True if it is ``now`` afterwards."""
        return self._change(key, lambda found: now if found == expected else found, epoch) == now

    # The owner

    def next_epoch(self) -> int:
        with self._turn:
            self._epoch = self._up_to_date.next_epoch(Key(OWNER), self._require_owner)
            return self._epoch

    def get_owner_record(self) -> OwnerRecord | None:
        with self._turn:
            return self._get(Key(OWNER))

    def change_owner_record(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        with self._turn:
            changed = self._exchange(Key(OWNER), expected, now, None)
            if changed:
                self._owner = None if now is None else now.owner
            return changed

    def _require_owner(self, document: Document | None) -> None:
        record = self._decoded(Key(OWNER), document)
        theirs = None if record is None else record.owner
        if self._owner is not None and theirs is not None and theirs.uid != self._owner.uid:
            raise not_the_owner("the state in the store", theirs, self._owner)

    # Requests

    def request_table_action(self, table: TableId, action: TableAction) -> None:
        with self._turn:
            self._up_to_date.put(None, {action_key(table): ACTION.encode(action)})

    def get_table_actions(self) -> Mapping[TableId, TableAction]:
        with self._turn:
            return {TableId(key.name): action for key, action in self._scan(ACTION).items()}

    def take_table_actions(self) -> Mapping[TableId, TableAction]:
        with self._turn:
            # The only document that every state has. It is read with the requests, which costs no call of its own.
            owner = [] if self._owner is None else [Key(OWNER)]
            taken = self._up_to_date.update(self._epoch, [Key(ACTION), *owner], self._taken)
            return {
                TableId(key.name): self._decode(key, before)
                for key, (before, _) in taken.items()
                if key.kind is ACTION and before is not None
            }

    def _taken(self, key: Key[Any], document: Document | None) -> Document | None:
        """Keep the owner's record, and no request. Raise `state_lost` if there is no record any more."""
        if key.kind is not OWNER:
            return None
        if document is None:
            raise state_lost(self.pipeline, "the store", "it has no owner")
        return document

    # Phases

    def get_table_replication_state(self, table: TableId) -> TableReplicationPhase | None:
        return self._phases.get(table)

    def get_table_replication_states(self) -> Mapping[TableId, TableReplicationPhase]:
        return MappingProxyType(self._phases)

    def load_table_replication_states(self) -> int:
        with self._turn:
            self._phases = {_table(key): phase for key, phase in self._scan(PHASES).items()}
            return len(self._phases)

    def update_table_replication_states(self, updates: Mapping[TableId, TableReplicationPhase]) -> None:
        with self._turn:
            persisted = {Key(PHASES, table): phase for table, phase in updates.items() if phase.persisted}
            if persisted:
                self._write(persisted.keys(), lambda key, document: push_phase(document, persisted[key]))
            self._phases = {**self._phases, **updates}

    def rollback_table_replication_state(self, table: TableId) -> TableReplicationPhase:
        with self._turn:
            key = Key(PHASES, table)
            before, after = self._up_to_date.update(self._epoch, [key], lambda _, document: pop_phase(document))[key]
            if after is None or after == before:
                raise NeedsOperator(
                    "no_previous_phase",
                    f"pipeline {self.pipeline}: the table with OID {int(table)} has no phase before its current one",
                    hint="copy the table again instead: change spec.resyncNonce of its TableSync",
                )
            phase = self._decode(key, after)
            self._phases = {**self._phases, table: phase}
            return phase

    def get_phase_before_error(self, table: TableId) -> TableReplicationPhase | None:
        with self._turn:
            return phase_before_error(self._up_to_date.get(Key(PHASES, table)))

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
            for schema in self._scan(SCHEMA).values():
                loaded.setdefault(schema.id, {})[schema.snapshot_id] = schema
            self._schemas = loaded
            return sum(map(len, loaded.values()))

    def store_table_schema(self, schema: ReplicatedTableSchema) -> None:
        with self._turn:
            self._put(schema_key(schema.id, schema.snapshot_id), schema)
            versions = {**self._schemas.get(schema.id, {}), schema.snapshot_id: schema}
            self._schemas = {**self._schemas, schema.id: versions}

    def prune_table_schemas(self, retentions: Mapping[TableId, SnapshotId]) -> int:
        with self._turn:
            tables = self._schemas.keys() & retentions.keys()
            kept = {table: retained(self._schemas[table], retentions[table]) for table in tables}
            old = [schema_key(table, v) for table in tables for v in self._schemas[table].keys() - kept[table].keys()]
            removed = self._take(*old)
            self._schemas = {**self._schemas, **kept}
            return len(removed)

    # Progress

    def get_replication_progress(self, worker: str) -> Lsn | None:
        progress = self._progress
        if progress is None:
            with self._turn:
                progress = self._loaded_progress()
        return progress.get(worker)

    def upsert_replication_progress(self, worker: str, lsn: Lsn) -> Lsn:
        with self._turn:
            key = worker_key(PROGRESS, worker)
            now = self._change(key, lambda found: lsn if found is None else max(found, lsn), self._epoch)
            assert now is not None
            self._progress = {**self._loaded_progress(), worker: now}
            return now

    def delete_replication_progress(self, worker: str) -> None:
        with self._turn:
            self._delete(worker_key(PROGRESS, worker))
            self._progress = without(self._loaded_progress(), worker)

    def _loaded_progress(self) -> Mapping[str, Lsn]:
        if self._progress is None:
            self._progress = {key_worker(key): lsn for key, lsn in self._scan(PROGRESS).items()}
        return self._progress

    # Controls

    def get_table_controls(self, table: TableId) -> TableControls | None:
        return self._controls.get(table)

    def store_table_controls(self, table: TableId, controls: TableControls) -> None:
        with self._turn:
            self._put(Key(CONTROLS, table), controls)
            self._controls = {**self._controls, table: controls}

    def load_table_controls(self) -> int:
        with self._turn:
            self._controls = {_table(key): controls for key, controls in self._scan(CONTROLS).items()}
            return len(self._controls)

    # Fingerprints

    def get_fingerprint(self, subject: str) -> str | None:
        return self._fingerprints.get(subject)

    def store_fingerprint(self, subject: str, fingerprint: str) -> None:
        with self._turn:
            self._put(worker_key(FINGERPRINT, subject), fingerprint)
            self._fingerprints = {**self._fingerprints, subject: fingerprint}

    def delete_fingerprint(self, subject: str) -> None:
        with self._turn:
            self._delete(worker_key(FINGERPRINT, subject))
            self._fingerprints = without(self._fingerprints, subject)

    def load_fingerprints(self) -> int:
        with self._turn:
            self._fingerprints = {key_worker(key): text for key, text in self._scan(FINGERPRINT).items()}
            return len(self._fingerprints)

    # Cuts

    def get_cuts(self) -> Mapping[str, Cut]:
        return MappingProxyType(self._cuts)

    def store_cut(self, cut: Cut) -> None:
        with self._turn:
            self._put(Key(CUT, None, cut.name), cut)
            self._cuts = {**self._cuts, cut.name: cut}

    def delete_cut(self, name: str) -> None:
        with self._turn:
            self._delete(Key(CUT, None, name))
            self._cuts = without(self._cuts, name)

    def load_cuts(self) -> int:
        with self._turn:
            self._cuts = {key.name: cut for key, cut in self._scan(CUT).items()}
            return len(self._cuts)

    # Records of the destination

    def get_destination_table_metadata(self, table: TableId) -> DestinationTableMetadata | None:
        with self._turn:
            return self._get(Key(DESTINATION, table))

    def store_destination_table_metadata(self, table: TableId, metadata: DestinationTableMetadata | None) -> None:
        with self._turn:
            self._change(Key(DESTINATION, table), lambda _: metadata, self._epoch)

    # Orders

    def order_copy(self, table: TableId, order: CopyOrder | None) -> None:
        with self._turn:
            self._change(Key(ORDER, table), lambda _: order, self._epoch)

    def get_copy_order(self, table: TableId) -> CopyOrder | None:
        with self._turn:
            return self._get(Key(ORDER, table))

    def change_copy_order(self, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        with self._turn:
            return self._exchange(Key(ORDER, table), expected, now, self._epoch)

    # Lifecycle

    def clear_table_copy_state(self, table: TableId) -> None:
        with self._turn:
            self._delete(*(Key(kind, table) for kind in KINDS if kind.cleared_by_copy))
            self._forget(table)

    def delete_table_pipeline_state(self, table: TableId) -> None:
        with self._turn:
            self._delete(action_key(table), *(Key(kind, table) for kind in KINDS))
            self._forget(table)
            self._phases = without(self._phases, table)
            self._controls = without(self._controls, table)

    def _forget(self, table: TableId) -> None:
        self._schemas = without(self._schemas, table)
        self._progress = without(self._loaded_progress(), table_worker(table))
        self._fingerprints = without(self._fingerprints, table_worker(table))

    def delete_pipeline_state(self) -> None:
        with self._turn:
            self._up_to_date.clear(self._epoch, Key(OWNER))
            self._phases, self._schemas, self._progress = {}, {}, {}
            self._controls, self._fingerprints, self._cuts = {}, {}, {}


def _table(key: Key[Any]) -> TableId:
    assert key.table is not None
    return key.table


def retained(versions: _Versions, retention: SnapshotId) -> _Versions:
    """Return the newest version not above ``retention`` and all newer ones. Return all if every version is above it."""
    oldest = max((v for v in versions if v <= retention), default=SnapshotId(0))
    return {version: schema for version, schema in versions.items() if version >= oldest}


def without(mapping: Mapping[_K, _V], key: _K) -> Mapping[_K, _V]:
    """Return the mapping without one key."""
    if key not in mapping:
        return mapping
    kept = dict(mapping)
    del kept[key]
    return kept
