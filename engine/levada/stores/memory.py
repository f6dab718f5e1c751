"""State in the memory of the process, for tests and trials. After a restart every table is copied again."""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from levada.errors import StaleEpoch
from levada.schema import ReplicatedTableSchema
from levada.stores.cached import CachedStore, retained
from levada.stores.interface import CopyOrder, OwnerRecord, TableAction, TableControls
from levada.stores.phases import TableReplicationPhase
from levada.stores.storage import HISTORY, Storage, require_owner, table_worker
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId


@dataclass(slots=True)
class _Kept:
    epoch: int = 0
    owner: OwnerRecord | None = None
    histories: dict[TableId, list[TableReplicationPhase]] = field(default_factory=dict)
    schemas: dict[TableId, dict[SnapshotId, ReplicatedTableSchema]] = field(default_factory=dict)
    progress: dict[str, Lsn] = field(default_factory=dict)
    controls: dict[TableId, TableControls] = field(default_factory=dict)
    fingerprints: dict[str, str] = field(default_factory=dict)
    orders: dict[TableId, CopyOrder] = field(default_factory=dict)
    actions: dict[TableId, TableAction] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryStorage(Storage):
    """A pipeline's state in this process. Stores with the same instance share the state."""

    def __init__(self) -> None:
        self._kept = _Kept()

    @contextmanager
    def _write(self, epoch: int) -> Iterator[_Kept]:
        with self._kept.lock:
            if self._kept.epoch > epoch:
                raise StaleEpoch(epoch, self._kept.epoch)
            yield self._kept

    @contextmanager
    def _locked(self) -> Iterator[_Kept]:
        with self._kept.lock:
            yield self._kept

    def next_epoch(self, owner: PipelineOwner | None = None) -> int:
        with self._locked() as kept:
            require_owner(kept.owner, owner)
            kept.epoch += 1
            return kept.epoch

    def require_epoch(self, epoch: int) -> None:
        with self._write(epoch):
            pass

    def load_owner(self) -> OwnerRecord | None:
        with self._locked() as kept:
            return kept.owner

    def change_owner(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        with self._locked() as kept:
            if kept.owner not in (expected, now):
                return False
            kept.owner = now
            return True

    def put_action(self, table: TableId, action: TableAction) -> None:
        with self._locked() as kept:
            kept.actions[table] = action

    def take_actions(self, epoch: int) -> dict[TableId, TableAction]:
        with self._write(epoch) as kept:
            taken, kept.actions = kept.actions, {}
            return taken

    def load_phases(self) -> dict[TableId, TableReplicationPhase]:
        with self._locked() as kept:
            return {table: history[-1] for table, history in kept.histories.items()}

    def push_phases(self, epoch: int, phases: Mapping[TableId, TableReplicationPhase]) -> None:
        with self._write(epoch) as kept:
            for table, phase in phases.items():
                history = kept.histories.setdefault(table, [])
                if history[-1:] != [phase]:
                    history.append(phase)
                    del history[:-HISTORY]

    def pop_phase(self, epoch: int, table: TableId) -> TableReplicationPhase | None:
        with self._write(epoch) as kept:
            history = kept.histories.get(table, [])
            if len(history) < 2:
                return None
            history.pop()
            return history[-1]

    def load_schemas(self) -> list[ReplicatedTableSchema]:
        with self._locked() as kept:
            return [schema for versions in kept.schemas.values() for schema in versions.values()]

    def put_schema(self, epoch: int, schema: ReplicatedTableSchema) -> None:
        with self._write(epoch) as kept:
            kept.schemas.setdefault(schema.id, {})[schema.snapshot_id] = schema

    def prune_schemas(self, epoch: int, retentions: Mapping[TableId, SnapshotId]) -> int:
        with self._write(epoch) as kept:
            before = sum(map(len, kept.schemas.values()))
            for table in kept.schemas.keys() & retentions.keys():
                kept.schemas[table] = dict(retained(kept.schemas[table], retentions[table]))
            return before - sum(map(len, kept.schemas.values()))

    def load_progress(self) -> dict[str, Lsn]:
        with self._locked() as kept:
            return dict(kept.progress)

    def raise_progress(self, epoch: int, worker: str, lsn: Lsn) -> Lsn:
        with self._write(epoch) as kept:
            kept.progress[worker] = max(lsn, kept.progress.get(worker, lsn))
            return kept.progress[worker]

    def delete_progress(self, epoch: int, worker: str) -> None:
        with self._write(epoch) as kept:
            kept.progress.pop(worker, None)

    def load_controls(self) -> dict[TableId, TableControls]:
        with self._locked() as kept:
            return dict(kept.controls)

    def put_controls(self, epoch: int, table: TableId, controls: TableControls) -> None:
        with self._write(epoch) as kept:
            kept.controls[table] = controls

    def load_fingerprints(self) -> dict[str, str]:
        with self._locked() as kept:
            return dict(kept.fingerprints)

    def put_fingerprint(self, epoch: int, subject: str, fingerprint: str) -> None:
        with self._write(epoch) as kept:
            kept.fingerprints[subject] = fingerprint

    def delete_fingerprint(self, epoch: int, subject: str) -> None:
        with self._write(epoch) as kept:
            kept.fingerprints.pop(subject, None)

    def load_order(self, table: TableId) -> CopyOrder | None:
        with self._locked() as kept:
            return kept.orders.get(table)

    def put_order(self, epoch: int, table: TableId, order: CopyOrder | None) -> None:
        with self._write(epoch) as kept:
            if order is None:
                kept.orders.pop(table, None)
            else:
                kept.orders[table] = order

    def change_order(self, epoch: int, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        with self._write(epoch) as kept:
            if kept.orders.get(table) not in (expected, now):
                return False
            kept.orders[table] = now
            return True

    def delete_table(self, epoch: int, table: TableId, *, keep_phases: bool) -> None:
        with self._write(epoch) as kept:
            kept.schemas.pop(table, None)
            kept.progress.pop(table_worker(table), None)
            kept.fingerprints.pop(table_worker(table), None)
            if not keep_phases:
                for part in (kept.histories, kept.actions, kept.controls, kept.orders):
                    part.pop(table, None)

    def delete_all(self, epoch: int) -> None:
        with self._write(epoch) as kept:
            for part in (kept.histories, kept.schemas, kept.progress, kept.fingerprints):
                part.clear()
            for requests in (kept.controls, kept.orders, kept.actions):
                requests.clear()

    def close(self) -> None:
        """Do nothing: another store may use this storage later."""


class MemoryStore(CachedStore):
    """A store in memory. With another store's ``storage`` it starts from that store's state."""

    def __init__(self, pipeline: str = "", storage: MemoryStorage | None = None) -> None:
        self.storage = storage or MemoryStorage()
        super().__init__(pipeline, self.storage)
