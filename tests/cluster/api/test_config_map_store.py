"""The store in ConfigMaps, over a real API server: what every store promises, and what this one does beyond that."""
# ruff: noqa: F811 - a fixture's name is a parameter's name

from __future__ import annotations

import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kubectl import Kubectl, allowed
from tests.rigs.storages import (
    OpenStorage,
    OpenStore,
    store,  # noqa: F401 - a fixture
)
from tests.stores.model_suite import *  # noqa: F403
from tests.stores.storage_suite import *  # noqa: F403
from tests.stores.storage_suite import NUMBER, ONE, increment

from levada.errors import NeedsOperator, Permanent, StaleEpoch, Transient
from levada.schema import ReplicatedTableSchema
from levada.spec import state_names
from levada.stores import Document, Key, PipelineStore, Storage
from levada.stores.config_map import MAX_BYTES, ConfigMapStorage, ConfigMapStore
from levada.stores.config_map_client import ConfigMaps, Version
from levada.stores.phases import DataSync, Init, Ready, SyncDone
from levada.testing import StoreConformance
from levada.testing.store_samples import ITEMS, ORDERS, fill, kept, loaded, schema
from levada.values import Lsn, SnapshotId, TableId

HEAD, *PARTS = state_names("shop")


@pytest.fixture(scope="module")
def namespace(cluster: Kubectl) -> Iterator[Kubectl]:
    """One namespace for all tests: to make one and remove it costs more than most of them."""
    one = cluster.make_namespace(f"levada-{uuid.uuid4().hex[:8]}")
    yield one
    one.remove_namespace()


@pytest.fixture
def kubectl(namespace: Kubectl) -> Iterator[Kubectl]:
    """The namespace, in which no test leaves a ConfigMap."""
    yield namespace
    namespace.delete_all("configmaps")


@pytest.fixture
def open_store(kubectl: Kubectl) -> Iterator[OpenStore]:
    """Open stores in one namespace. They are closed after the test."""
    opened: list[PipelineStore] = []

    def opening(pipeline: str) -> PipelineStore:
        opened.append(ConfigMapStore(pipeline, kubectl.namespace))
        return opened[-1]

    yield opening
    for each in opened:
        each.close()


@pytest.fixture
def open_storage(kubectl: Kubectl) -> Iterator[OpenStorage]:
    """Open storages in one namespace. They are closed after the test."""
    opened: list[Storage] = []

    def opening(pipeline: str) -> Storage:
        opened.append(ConfigMapStorage(ConfigMaps(kubectl.namespace), pipeline))
        return opened[-1]

    yield opening
    for each in opened:
        each.close()


class TestConformance(StoreConformance):
    """The store in ConfigMaps."""

    @pytest.fixture
    def open_store(self, open_store: OpenStore) -> OpenStore:
        """Return the stores of the module's fixture."""
        return open_store


def losing_the_first_answer(monkeypatch: pytest.MonkeyPatch, store: PipelineStore) -> list[str]:
    """Let the store's next patch arrive, and lose its answer. Return the names of the patched ConfigMaps."""
    maps = store._storage._maps  # type: ignore[attr-defined]  # this storage has it
    sent: list[str] = []
    patch = maps.patch

    def losing(name: str, seen: Version, data: dict[str, str]) -> Version:
        answer: Version = patch(name, seen, data)
        sent.append(name)
        if len(sent) == 1:
            raise Transient("store_unreachable", "the connection broke after the change")
        return answer

    monkeypatch.setattr(maps, "patch", losing)
    return sent


def test_change_whose_answer_was_lost_is_done_once(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change that arrived although its connection broke is recognised when it is tried again."""
    for phase in (Init(), DataSync(), Ready()):
        store.update_table_replication_states({ORDERS: phase})
    sent = losing_the_first_answer(monkeypatch, store)
    assert store.rollback_table_replication_state(ORDERS) == DataSync()
    assert len(sent) == 1
    assert store.rollback_table_replication_state(ORDERS) == Init()


def test_change_whose_answer_was_lost_before_another_writers(
    store: PipelineStore, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollback that arrived steps back once, also if another process of the driver has written to the part since."""
    other = open_store("shop")
    other.join(epoch=1)
    for phase in (Init(), DataSync(), Ready()):
        store.update_table_replication_states({ORDERS: phase})
    maps = store._storage._maps  # type: ignore[attr-defined]  # this storage has it
    patch, lost = maps.patch, []

    def losing(name: str, seen: Version, data: dict[str, str]) -> Version:
        answer: Version = patch(name, seen, data)
        if not lost:
            lost.append(name)
            other.store_table_schema(schema(7, ORDERS))
            raise Transient("store_unreachable", "the connection broke after the change")
        return answer

    monkeypatch.setattr(maps, "patch", losing)
    assert store.rollback_table_replication_state(ORDERS) == DataSync()
    assert lost
    assert store.rollback_table_replication_state(ORDERS) == Init()
    assert loaded(open_store("shop")).get_table_schema(ORDERS, SnapshotId(7)) == schema(7, ORDERS)


def test_trouble_shows_until_an_attempt_succeeds(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver is not ready while its store does not answer, so the store says so without being asked."""
    maps = store._storage._maps  # type: ignore[attr-defined]  # this storage has it
    read, seen = maps.read, []

    def away_at_first(name: str) -> Version:
        seen.append(store.last_error)
        if len(seen) == 1:
            raise Transient("store_unreachable", "the API server does not answer")
        answer: Version = read(name)
        return answer

    monkeypatch.setattr(maps, "read", away_at_first)
    store.load_table_replication_states()
    assert seen[0] is None
    assert seen[1] is not None
    assert seen[1].code == "store_unreachable"
    assert store.last_error is None


def test_request_whose_taking_lost_its_answer_is_taken(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is neither lost nor taken twice when the answer to its removal is lost."""
    fill(store)
    losing_the_first_answer(monkeypatch, store)
    assert set(store.take_table_actions()) == {ORDERS, ITEMS}
    assert store.take_table_actions() == {}


def test_takeover_between_two_parts(store: PipelineStore, open_store: OpenStore, kubectl: Kubectl) -> None:
    """A takeover that has raised the head alone leaves the parts to the old driver, until they are raised too."""
    fill(store)
    kubectl.patch("configmap", HEAD, {"data": {"epoch": "2"}})
    store.update_table_replication_states({ORDERS: Ready()})
    with pytest.raises(StaleEpoch):
        store.take_table_actions()
    third = open_store("shop")
    assert third.next_epoch() == 3
    with pytest.raises(StaleEpoch):
        store.update_table_replication_states({ORDERS: SyncDone(Lsn(1))})
    assert loaded(third).get_table_replication_state(ORDERS) == Ready()


def test_what_others_wrote_beside_is_kept(store: PipelineStore, kubectl: Kubectl) -> None:
    """Labels, owners and keys of others outlive the store's changes. A change made meanwhile is seen."""
    store.update_table_replication_states({ORDERS: Init()})
    part = PARTS[int(ORDERS) % len(PARTS)]
    theirs = {"metadata": {"labels": {"team": "data"}}, "data": {"note": "theirs"}}
    kubectl.patch("configmap", part, theirs)
    store.update_table_replication_states({ORDERS: DataSync()})
    found = kubectl.get("configmap", part)
    assert found["metadata"]["labels"] == {"team": "data", "levada.dev/pipeline": "shop", "levada.dev/role": "state"}
    assert found["data"]["note"] == "theirs"
    assert store.rollback_table_replication_state(ORDERS) == Init()


def test_a_change_is_one_small_request(store: PipelineStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that shares its ConfigMaps with no other sends one patch of the changed part, and reads nothing."""
    fill(store)
    maps = store._storage._maps  # type: ignore[attr-defined]  # this storage has it
    asked: list[Any] = []
    api = maps._api.patch_namespaced_config_map
    monkeypatch.setattr(maps, "read", lambda name: pytest.fail("read"))
    monkeypatch.setattr(
        maps._api,
        "patch_namespaced_config_map",
        lambda n, ns, body, **kw: (asked.append(body), api(n, ns, body, **kw))[1],
    )
    store.upsert_replication_progress("capture", Lsn(99))
    assert [set(body["data"]) for body in asked] == [{"progress..capture", "write"}]
    store.update_table_replication_states({ORDERS: Ready()})
    assert set(asked[1]["data"]) == {f"phases.{int(ORDERS)}", "write"}


def wide(table: TableId) -> ReplicatedTableSchema:
    """A table of 1,600 columns, PostgreSQL's most."""
    one = schema(0, table)
    columns = tuple(
        one.columns[0].__class__(n, f"{'a' * 50}{n}", one.columns[0].type, "bigint", 20, -1) for n in range(1, 1600)
    )
    return ReplicatedTableSchema(table, one.name, columns, one.identity, (1,), (1,), one.snapshot_id)


def test_pipeline_that_outgrows_it_is_told_so(store: PipelineStore, open_store: OpenStore, kubectl: Kubectl) -> None:
    """The store refuses what would not fit before the API server does, names the way out, and still takes phases."""
    tables = [TableId(8 * n) for n in range(1, 50)]
    with pytest.raises(NeedsOperator) as caught:
        list(map(store.store_table_schema, map(wide, tables)))
    assert caught.value.code == "store_full"
    assert "spec.store.postgres" in caught.value.hint
    before = loaded(open_store("shop")).get_table_schemas()
    assert before == store.get_table_schemas()
    assert len(before) > 1
    store.update_table_replication_states({table: Ready() for table in tables})
    size = sum(map(len, kubectl.get("configmap", PARTS[0])["data"].values()))
    assert MAX_BYTES // 2 < size < MAX_BYTES
    store.delete_table_pipeline_state(tables[0])
    store.store_table_schema(wide(tables[0]))


def role(kubectl: Kubectl, account: str, names: tuple[str, ...]) -> Callable[..., Any]:
    """Give an account the driver's rights. Return a function that makes a token of it."""
    rules = [{"apiGroups": [""], "resources": ["configmaps"], "resourceNames": list(names), "verbs": ["get", "patch"]}]
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": account}}
    group = "rbac.authorization.k8s.io"
    kubectl.apply(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": account}},
        {**kind, "kind": "Role", "rules": rules},
        {
            **kind,
            "kind": "RoleBinding",
            "roleRef": {"apiGroup": group, "kind": "Role", "name": account},
            "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": kubectl.namespace}],
        },
    )
    user = f"system:serviceaccount:{kubectl.namespace}:{account}"
    allowed(kubectl, user, f"patch configmap/{names[0]}")
    return lambda: kubectl("create", "token", account).strip()


def as_account(store: PipelineStore, token: str) -> None:
    """Let the store's requests be the account's."""
    api = store._storage._maps._api  # type: ignore[attr-defined]  # this storage has it
    configuration = api.api_client.configuration
    configuration.cert_file = configuration.key_file = None
    configuration.api_key["BearerToken"] = f"Bearer {token}"
    api.api_client.__init__(configuration)


def test_driver_needs_no_more_than_its_role(open_store: OpenStore, kubectl: Kubectl) -> None:
    """A driver needs no right but get and patch on its ConfigMaps, which exist already.

    Without them the error says so.
    """
    token = role(kubectl, "driver", (HEAD, *PARTS))()
    store = open_store("shop")
    as_account(store, token)
    with pytest.raises(NeedsOperator) as caught:
        store.next_epoch()
    assert caught.value.code == "store_privilege_missing"
    for name in (HEAD, *PARTS):
        kubectl("create", "configmap", name)
    assert store.next_epoch() == 1
    fill(store)
    store.delete_table_pipeline_state(ORDERS)
    store.delete_pipeline_state()
    assert set(kept(loaded(open_store("shop")), ITEMS)) == {None}


def test_closed_store_says_so(store: PipelineStore) -> None:
    """A write after close is an error."""
    store.close()
    with pytest.raises(Permanent) as closed:
        store.update_table_replication_states({ORDERS: Init()})
    assert closed.value.code == "store_closed"


def test_a_missing_namespace_is_named(cluster: Kubectl) -> None:
    """The first write creates the ConfigMaps, and the hint creates the namespace."""
    store = ConfigMapStore("shop", "levada-nowhere")
    with pytest.raises(NeedsOperator) as refused:
        store.next_epoch()
    store.close()
    assert refused.value.code == "store_refused"
    assert "namespace levada-nowhere for ConfigMap" in refused.value.message
    assert refused.value.hint == "kubectl create namespace levada-nowhere"


def test_a_refusal_has_the_words_of_the_api_server(store: PipelineStore, kubectl: Kubectl, tmp_path: Path) -> None:
    """An immutable ConfigMap, for example, takes no change, until the command of the hint has made it again."""
    store.update_table_replication_states({ORDERS: SyncDone(Lsn(5))})
    part = PARTS[int(ORDERS) % len(PARTS)]
    kubectl.patch("configmap", part, {"immutable": True})
    with pytest.raises(NeedsOperator) as refused:
        store.update_table_replication_states({ORDERS: Init()})
    assert refused.value.code == "store_refused"
    assert f"ConfigMap {kubectl.namespace}/{part}: the API server refused the request (422)" in refused.value.message
    assert "immutable" in refused.value.message
    command = refused.value.hint.partition("without immutable: ")[2]
    subprocess.run(["bash", "-c", command], check=True, capture_output=True, cwd=tmp_path)
    assert store.load_table_replication_states() == 1
    assert store.get_table_replication_states() == {ORDERS: SyncDone(Lsn(5))}
    store.update_table_replication_states({ORDERS: Init()})


def test_a_head_that_was_emptied_by_hand(store: PipelineStore, open_store: OpenStore, kubectl: Kubectl) -> None:
    """The next engine has a higher epoch than the last one, and writes its tables."""
    epochs = [store.next_epoch() for _ in range(3)]
    store.update_table_replication_states({ORDERS: Init()})
    kubectl.patch("configmap", HEAD, {"data": None})
    following = open_store("shop")
    assert following.next_epoch() > max(epochs)
    following.update_table_replication_states({ORDERS: DataSync()})
    with pytest.raises(StaleEpoch):
        store.update_table_replication_states({ORDERS: Ready()})


def test_an_epoch_that_was_changed_by_hand(store: PipelineStore, open_store: OpenStore, kubectl: Kubectl) -> None:
    """One that is no number is an error with the name of its ConfigMap."""
    store.next_epoch()
    kubectl.patch("configmap", PARTS[3], {"data": {"epoch": "the last one"}})
    with pytest.raises(NeedsOperator) as damaged:
        open_store("shop").next_epoch()
    assert damaged.value.code == "store_damaged"
    assert f"epoch in ConfigMap {kubectl.namespace}/{PARTS[3]}" in damaged.value.message


def test_a_writer_without_end_is_an_error(open_storage: OpenStorage, kubectl: Kubectl) -> None:
    """A change that is overtaken each time ends with the ConfigMap and the command that lists its writers."""
    storage, other = open_storage("shop"), open_storage("shop")
    storage.put(0, {Key(NUMBER, ONE): {"n": 0}})

    def overtaken(key: Key[Any], found: Document | None) -> Document:
        other.update(0, [key], increment)
        return {"n": -1}

    with pytest.raises(Transient) as contended:
        storage.update(0, [Key(NUMBER, ONE)], overtaken)
    assert contended.value.code == "store_contended"
    assert "was changed by other writers 100 times in a row" in contended.value.message
    assert f"kubectl -n {kubectl.namespace} get configmap shop-state-" in contended.value.hint
    assert (storage.get(Key(NUMBER, ONE)) or {})["n"] >= 100
