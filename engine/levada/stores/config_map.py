"""State in ConfigMaps in the Pipeline's namespace, for sources that cannot be written to, and for few tables.

The *head* ConfigMap holds the epoch, the requests, and the progress of workers that do not belong to a table. Eight
*part* ConfigMaps hold the tables. A table's OID determines its part. A write is a compare-and-set on the
resourceVersion of one ConfigMap, and sends only changed keys.

**Fencing.** Every ConfigMap has an epoch. `next_epoch` raises the head's epoch, then every part's, and returns when all
are raised. A write with an older epoch to a part may come before the part's epoch is raised. The new driver has not
read anything then, so the write belongs to the state that it takes over. If the write comes later, the resourceVersion
does not match. The writer then reads again, finds the higher epoch, and is refused. A driver that dies between two
parts has read and written nothing. The next one raises all of them again.

**Writes to several ConfigMaps** are not atomic: phases of several tables in one call, a table with its request, the
whole pipeline. A takeover in between leaves the first part written, like the end of the process. Each such write is a
set of independent changes that can be repeated.
"""
# ruff: noqa: D102 - the interface documents each method

from __future__ import annotations

import itertools
import json
import logging
import random
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_exponential_jitter

from levada.errors import LevadaError, NeedsOperator, Permanent, StaleEpoch, Transient
from levada.schema import ReplicatedTableSchema
from levada.spec.names import state_names
from levada.stores.cached import CachedStore, retained
from levada.stores.interface import CopyOrder, OwnerRecord, TableAction, TableControls
from levada.stores.phases import TableReplicationPhase, phase_from_json, phase_to_json
from levada.stores.storage import HISTORY, Storage, require_owner, table_worker
from levada.values import Lsn, PipelineOwner, SnapshotId, TableId

if TYPE_CHECKING:
    from levada.stores.config_map_client import ConfigMaps, Version

_log = logging.getLogger(__name__)

MAX_BYTES: Final = 1_000_000
"""The largest size of a ConfigMap's content in bytes. The API server rejects more than 1 MiB."""
ROOM_BYTES: Final = 100_000
"""The part of it in bytes that only phases may use, so that a table without room can still be parked."""

_EPOCH: Final = "epoch"
_OWNER: Final = "owner"
_WRITE: Final = "write"
_PROGRESS: Final = "progress"
_ACTIONS: Final = "actions"
_FINGERPRINTS: Final = "fingerprints"
_TABLE: Final = "table-"

_CONFLICTS: Final = 100
_LONGEST_PAUSE_S: Final = 0.1
_FIRST_DELAY_S: Final = 0.1
_LONGEST_DELAY_S: Final = 5.0
_FIRST_PATIENCE_S: Final = 3.0
_PATIENCE_S: Final = 120.0
"""Seconds to wait for an API server that has answered before. This is about the duration of its upgrade."""

_T = TypeVar("_T")
_Data = dict[str, str]
_Table = dict[str, Any]


class ConfigMapStorage(Storage):
    """One pipeline's ConfigMaps. Raise NeedsOperator ``store_full`` if a ConfigMap would become too large."""

    def __init__(self, maps: ConfigMaps, pipeline: str) -> None:
        self._maps = maps
        self._pipeline = pipeline
        self._head, *self._parts = state_names(pipeline)
        # The content when last read. A write is first tried on it, without another read.
        self._seen: dict[str, Version] = {}
        self._reached = False
        self._closed = False

    # Requests

    def _ask(self, request: Callable[[], _T]) -> _T:
        """Run a request, and repeat it while the API server is unavailable."""
        if self._closed:
            raise Permanent("store_closed", f"the store of pipeline {self._pipeline} is closed")
        retrying = Retrying(
            stop=stop_after_delay(_PATIENCE_S if self._reached else _FIRST_PATIENCE_S),
            wait=wait_exponential_jitter(multiplier=_FIRST_DELAY_S, max=_LONGEST_DELAY_S),
            retry=retry_if_exception(lambda error: isinstance(error, Transient)),
            before_sleep=self._record_error,
            reraise=True,
        )
        answer: _T = retrying(request)
        self._reached, self.last_error = True, None
        return answer

    def _record_error(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        self.last_error = error if isinstance(error, LevadaError) else None
        _log.warning("%s", error)

    def _read(self, name: str) -> Version:
        return self._ask(lambda: self._maps.read(name))

    def _read_tables(self) -> Iterator[tuple[TableId, _Table]]:
        for name in self._parts:
            for key, text in self._read(name).data.items():
                if key.startswith(_TABLE):
                    yield TableId(key.removeprefix(_TABLE)), json.loads(text)

    def _change(self, name: str, epoch: int | None, work: Callable[[_Data], _T], *, room: int = 0) -> _T:
        """Apply ``work`` to a ConfigMap's content and write the result, as one step.

        ``epoch`` None skips the check of the epoch. ``room`` is the number of bytes that must stay free. ``work`` may
        run several times, and its last result counts.
        """
        from levada.stores.config_map_client import Conflict

        sent: tuple[str, _T] | None = None
        for _ in range(_CONFLICTS):
            known = self._seen.pop(name, None)
            seen = known or self._read(name)
            if sent is not None and seen.data.get(_WRITE) == sent[0]:
                return sent[1]  # The write succeeded, but its response was lost.
            current = int(seen.data.get(_EPOCH, 0))
            if epoch is not None and current > epoch:
                raise StaleEpoch(epoch, current)
            data = dict(seen.data)
            answer = work(data)
            if data == seen.data:
                if known is None:
                    return answer
                continue  # Without a write nothing would be compared, so read the current epoch.
            if epoch is not None:
                data[_EPOCH] = str(epoch)
            data[_WRITE] = uuid.uuid4().hex
            sent = data[_WRITE], answer
            self._refuse_overflow(name, seen.data, data, room)
            try:
                self._seen[name] = self._ask(partial(self._send, name, seen, data))
                return answer
            except Conflict:
                time.sleep(random.uniform(0, _LONGEST_PAUSE_S))
        raise Transient(
            "store_contended",
            f"ConfigMap {self._maps.namespace}/{name} was changed by other writers {_CONFLICTS} times in a row",
        )

    def _send(self, name: str, seen: Version, data: _Data) -> Version:
        if seen.number:
            return self._maps.patch(name, seen, data)
        # In a cluster the operator has created it. The driver may not create ConfigMaps there.
        return self._maps.create(name, data, {"levada.dev/pipeline": self._pipeline, "levada.dev/role": "state"})

    def _refuse_overflow(self, name: str, before: Mapping[str, str], after: Mapping[str, str], room: int) -> None:
        size = _size(after)
        if size > MAX_BYTES - room and size > _size(before):
            raise NeedsOperator(
                "store_full",
                f"pipeline {self._pipeline}: its state does not fit into ConfigMap {self._maps.namespace}/{name}:"
                f" {size} bytes, with room for {MAX_BYTES - room}",
                hint="replicate fewer tables (spec.tables), or create a new Pipeline with spec.store.postgres",
            )

    def _part(self, table: TableId) -> str:
        return self._parts[int(table) % len(self._parts)]

    def _change_tables(
        self, epoch: int, tables: Iterable[TableId], work: Callable[[TableId, _Table], _T], *, room: int = 0
    ) -> list[_T]:
        """Apply ``work`` to each table's state. All tables of one ConfigMap are written in one step."""
        answers: list[_T] = []
        for name, group in itertools.groupby(sorted(tables, key=self._part), self._part):
            answers += self._change(name, epoch, partial(_each, list(group), work), room=room)
        return answers

    # Epochs

    def next_epoch(self, owner: PipelineOwner | None = None) -> int:
        def taken(data: _Data) -> int:
            require_owner(_owner(data), owner)
            data[_EPOCH] = str(int(data.get(_EPOCH, 0)) + 1)
            return int(data[_EPOCH])

        epoch = self._change(self._head, None, taken)
        for name in self._parts:
            self._change(name, None, lambda data: data.update({_EPOCH: str(max(epoch, int(data.get(_EPOCH, 0))))}))
        return epoch

    def require_epoch(self, epoch: int) -> None:
        self._change(self._head, epoch, lambda data: None)

    # The owner

    def load_owner(self) -> OwnerRecord | None:
        return _owner(self._read(self._head).data)

    def change_owner(self, expected: OwnerRecord | None, now: OwnerRecord | None) -> bool:
        def change(data: _Data) -> bool:
            if _owner(data) not in (expected, now):
                return False
            data.pop(_OWNER, None)
            if now is not None:
                owner = None if now.owner is None else [now.owner.uid, now.owner.name]
                data[_OWNER] = json.dumps([owner, now.slot, now.publication, now.former])
            return True

        return self._change(self._head, None, change)

    # Requests

    def put_action(self, table: TableId, action: TableAction) -> None:
        asked = {str(int(table)): action.value}
        self._change(self._head, None, lambda data: _edit(data, _ACTIONS, lambda actions: actions.update(asked)))

    def take_actions(self, epoch: int) -> dict[TableId, TableAction]:
        # Kept across attempts: the first write may have succeeded although its response was lost.
        taken: dict[str, str] = {}

        def take(actions: dict[str, Any]) -> None:
            taken.update(actions)
            actions.clear()

        self._seen.pop(self._head, None)  # The last read may not have a request of another process.
        self._change(self._head, epoch, lambda data: _edit(data, _ACTIONS, take))
        return {TableId(table): TableAction(action) for table, action in taken.items()}

    # Phases

    def load_phases(self) -> dict[TableId, TableReplicationPhase]:
        return {t: phase_from_json(state["phases"][-1]) for t, state in self._read_tables() if state.get("phases")}

    def push_phases(self, epoch: int, phases: Mapping[TableId, TableReplicationPhase]) -> None:
        def push(table: TableId, state: _Table) -> None:
            history, phase = state.setdefault("phases", []), phase_to_json(phases[table])
            if history[-1:] != [phase]:
                history.append(phase)
                del history[:-HISTORY]

        self._change_tables(epoch, phases, push)

    def pop_phase(self, epoch: int, table: TableId) -> TableReplicationPhase | None:
        def pop(_: TableId, state: _Table) -> TableReplicationPhase | None:
            history = state.get("phases", [])
            if len(history) < 2:
                return None
            history.pop()
            return phase_from_json(history[-1])

        return self._change_tables(epoch, [table], pop)[0]

    # Schema versions

    def load_schemas(self) -> list[ReplicatedTableSchema]:
        return [
            ReplicatedTableSchema.from_json(s) for _, t in self._read_tables() for s in t.get("schemas", {}).values()
        ]

    def put_schema(self, epoch: int, schema: ReplicatedTableSchema) -> None:
        def put(_: TableId, state: _Table) -> None:
            state.setdefault("schemas", {})[str(schema.snapshot_id)] = schema.to_json()

        self._change_tables(epoch, [schema.id], put, room=ROOM_BYTES)

    def prune_schemas(self, epoch: int, retentions: Mapping[TableId, SnapshotId]) -> int:
        def prune(table: TableId, state: _Table) -> int:
            versions = {SnapshotId.parse(version): version for version in state.get("schemas", {})}
            gone = versions.keys() - retained(versions, retentions[table]).keys()
            for version in gone:
                del state["schemas"][versions[version]]
            return len(gone)

        return sum(self._change_tables(epoch, retentions, prune))

    # Progress

    def load_progress(self) -> dict[str, Lsn]:
        progress = {table_worker(t): Lsn.parse(s[_PROGRESS]) for t, s in self._read_tables() if _PROGRESS in s}
        others = json.loads(self._read(self._head).data.get(_PROGRESS, "{}"))
        return progress | {worker: Lsn.parse(lsn) for worker, lsn in others.items()}

    def raise_progress(self, epoch: int, worker: str, lsn: Lsn) -> Lsn:
        def raised(kept: dict[str, Any], key: str) -> Lsn:
            now = max(lsn, Lsn.parse(kept[key])) if key in kept else lsn
            kept[key] = str(now)
            return now

        if (table := _table_of(worker)) is not None:
            return self._change_tables(epoch, [table], lambda _, state: raised(state, _PROGRESS))[0]
        return self._change(self._head, epoch, lambda data: _edit(data, _PROGRESS, lambda kept: raised(kept, worker)))

    def delete_progress(self, epoch: int, worker: str) -> None:
        if (table := _table_of(worker)) is not None:
            self._change_tables(epoch, [table], lambda _, state: state.pop(_PROGRESS, None))
        else:
            self._change(self._head, epoch, lambda data: _edit(data, _PROGRESS, lambda kept: kept.pop(worker, None)))

    # Controls

    def load_controls(self) -> dict[TableId, TableControls]:
        return {t: TableControls(*state["controls"]) for t, state in self._read_tables() if "controls" in state}

    def put_controls(self, epoch: int, table: TableId, controls: TableControls) -> None:
        stored = [controls.retry_nonce, controls.resync_nonce, controls.made_as]
        self._change_tables(epoch, [table], lambda _, state: state.update(controls=stored), room=ROOM_BYTES)

    # Fingerprints

    def load_fingerprints(self) -> dict[str, str]:
        kept: dict[str, str] = json.loads(self._read(self._head).data.get(_FINGERPRINTS, "{}"))
        return kept | {table_worker(t): s[_FINGERPRINTS] for t, s in self._read_tables() if _FINGERPRINTS in s}

    def put_fingerprint(self, epoch: int, subject: str, fingerprint: str) -> None:
        if (table := _table_of(subject)) is not None:
            work = partial(_put, _FINGERPRINTS, fingerprint)
            self._change_tables(epoch, [table], lambda _, state: work(state), room=ROOM_BYTES)
        else:
            self._change(self._head, epoch, lambda d: _edit(d, _FINGERPRINTS, partial(_put, subject, fingerprint)))

    def delete_fingerprint(self, epoch: int, subject: str) -> None:
        if (table := _table_of(subject)) is not None:
            self._change_tables(epoch, [table], lambda _, state: state.pop(_FINGERPRINTS, None))
        else:
            self._change(self._head, epoch, lambda d: _edit(d, _FINGERPRINTS, lambda kept: kept.pop(subject, None)))

    # Orders

    def load_order(self, table: TableId) -> CopyOrder | None:
        return _order(json.loads(self._read(self._part(table)).data.get(f"{_TABLE}{int(table)}", "{}")))

    def put_order(self, epoch: int, table: TableId, order: CopyOrder | None) -> None:
        def put(_: TableId, state: _Table) -> None:
            state.pop("order", None)
            if order is not None:
                state["order"] = _order_json(order)

        self._change_tables(epoch, [table], put, room=ROOM_BYTES)

    def change_order(self, epoch: int, table: TableId, expected: CopyOrder, now: CopyOrder) -> bool:
        def change(_: TableId, state: _Table) -> bool:
            if _order(state) not in (expected, now):
                return False
            state["order"] = _order_json(now)
            return True

        return self._change_tables(epoch, [table], change)[0]

    # Lifecycle

    def delete_table(self, epoch: int, table: TableId, *, keep_phases: bool) -> None:
        def delete(_: TableId, state: _Table) -> None:
            for what in {*state} - ({"phases", "controls", "order"} if keep_phases else set()):
                del state[what]

        if not keep_phases:
            forget = str(int(table))
            self._change(self._head, epoch, lambda data: _edit(data, _ACTIONS, lambda a: a.pop(forget, None)))
        self._change_tables(epoch, [table], delete)

    def delete_all(self, epoch: int) -> None:
        def delete(data: _Data) -> None:
            for key in data.keys() - {_EPOCH, _WRITE, _OWNER}:
                del data[key]

        for name in (self._head, *self._parts):
            self._change(name, epoch, delete)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._maps.close()


class ConfigMapStore(CachedStore):
    """A store in ConfigMaps in the cluster of this pod, or else of $KUBECONFIG.

    In a pod the namespace is the pod's. Elsewhere it is ``namespace``, or else the kubeconfig's. Raise NeedsOperator
    ``no_cluster`` if there is no cluster, and ``kubernetes_missing`` without the package's extra ``kubernetes``.
    """

    def __init__(self, pipeline: str, namespace: str = "") -> None:
        try:
            # Imported here because the import takes a second, and other stores do not need it.
            from levada.stores.config_map_client import ConfigMaps
        except ModuleNotFoundError as error:
            raise NeedsOperator(
                "kubernetes_missing",
                f"spec.store.configMap needs the Python package {error.name}",
                hint="pip install 'levada[kubernetes]'",
            ) from None
        super().__init__(pipeline, ConfigMapStorage(ConfigMaps(namespace), pipeline))


def _each(tables: list[TableId], work: Callable[[TableId, _Table], _T], data: _Data) -> list[_T]:
    return [_edit(data, f"{_TABLE}{int(table)}", partial(work, table)) for table in tables]


def _edit(data: _Data, key: str, work: Callable[[dict[str, Any]], _T]) -> _T:
    """Apply ``work`` to the JSON object under a key. An empty object is removed."""
    content: dict[str, Any] = json.loads(data.get(key, "{}"))
    answer = work(content)
    if content:
        data[key] = json.dumps(content, separators=(",", ":"))
    else:
        data.pop(key, None)
    return answer


def _put(key: str, value: str, content: dict[str, Any]) -> None:
    content[key] = value


def _owner(data: Mapping[str, str]) -> OwnerRecord | None:
    if _OWNER not in data:
        return None
    owner, slot, publication, former = json.loads(data[_OWNER])
    return OwnerRecord(None if owner is None else PipelineOwner(*owner), slot, publication, tuple(former))


def _order(state: _Table) -> CopyOrder | None:
    return CopyOrder(*state["order"]) if "order" in state else None


def _order_json(order: CopyOrder) -> list[Any]:
    return [order.token, order.epoch, order.worker, order.answer]


def _table_of(worker: str) -> TableId | None:
    digits = worker.removeprefix(table_worker(TableId(0)).removesuffix("0"))
    return TableId(digits) if digits != worker and digits.isdigit() else None


def _size(data: Mapping[str, str]) -> int:
    return sum(len(key) + len(value) for key, value in data.items())
