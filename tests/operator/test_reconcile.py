"""`reconcile` is level-triggered: from any state it comes to rest, does nothing twice, and touches only its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.operator.cluster import PlanStore
from tests.operator.samples import (
    NOON,
    document,
    error_document,
    merge,
    observed,
    owned,
    owner,
    pipeline,
    pod,
    progress,
    running,
    table_document,
    table_sync,
    waiting,
    written,
)

from levada_operator.decide.comparison import beyond_counters, needs_apply, status_changed, with_applied_hash
from levada_operator.decide.reconcile import MAX_CREATIONS, reconcile
from levada_operator.names import PIPELINE_LABEL
from levada_operator.observe.objects import ObjectKey, OwnedObjects

SPECS: list[dict[str, Any]] = [
    {},
    {"suspend": True},
    {"freshnessSeconds": 0},
    {"source": {"database": "other"}},
    {"driver": {"mode": "Cluster"}},
    {"staging": {"volumeClaim": {"size": "1Gi"}}},
    {"store": {"configMap": {}}},
    {"driver": {"podTemplate": {"spec": {"tolerations": [{"key": "a"}]}}}},
    {"destination": {}},
]
PODS = [(), (pod(),), (pod(**waiting("driver", "CrashLoopBackOff", exitCode=1)),)]
TABLES = [
    None,
    progress(),
    progress(table_document(), table_document("events", "DataSync")),
    progress(table_document(phase="Errored", error=error_document())),
    progress(table_document(phase="DataSync", copyOrder="a token")),
    progress(fetched=-600),
    progress(*(table_document(f"t{i}") for i in range(45))),
]
SYNCS = [
    [],
    [table_sync()],
    [table_sync(ours=False, owned=False, suspend=True)],
    [table_sync("gone"), table_sync("mine", ours=False, resyncNonce=2)],
    [table_sync(resyncNonce=-3)],
]

worlds = st.builds(
    lambda before, now, pods, told, syncs: (
        observed(
            pipeline(spec=now),
            *syncs,
            owned=owned(owner(**before)) if before is not None else OwnedObjects(),
            pods=pods,
            report=told,
        ),
        pipeline(spec=now),
        list(syncs),
    ),
    st.sampled_from([None, {}, {"suspend": True}, {"driver": {"mode": "Cluster"}}]),
    st.sampled_from(SPECS),
    st.sampled_from(PODS),
    st.sampled_from(TABLES),
    st.sampled_from(SYNCS),
)


@settings(max_examples=30)
@given(worlds)
def test_comes_to_rest(world: tuple[Any, dict[str, Any], list[dict[str, Any]]]) -> None:
    """Carried out a few times, the plan is empty, and it stays so: nothing is written for ever."""
    seen, body, syncs = world
    store = PlanStore(seen, body, syncs)
    for _ in range(6):
        store.carry_out(reconcile(store.observe()))
    at_rest = reconcile(store.observe())
    assert (at_rest.apply, at_rest.delete, at_rest.statuses, at_rest.events) == ((), (), (), ())


@settings(max_examples=25)
@given(worlds)
def test_is_the_same_for_the_same(world: tuple[Any, dict[str, Any], list[dict[str, Any]]]) -> None:
    """Two operators that see the same plan the same: a restart changes nothing by itself."""
    seen = world[0]
    assert reconcile(seen) == reconcile(seen)


@settings(max_examples=25)
@given(worlds)
def test_touches_only_its_own(world: tuple[Any, dict[str, Any], list[dict[str, Any]]]) -> None:
    """Each applied object has the Pipeline's label and namespace, and each deleted one was seen with the label.

    No user's TableSync is deleted or rewritten.
    """
    seen = world[0]
    plan = reconcile(seen)
    users = {t.name for t in seen.table_syncs if not t.ours}
    for body in plan.apply:
        assert body["metadata"]["labels"][PIPELINE_LABEL] == "shop"
        assert body["metadata"]["namespace"] == "data"
        assert not (body["kind"] == "TableSync" and body["metadata"]["name"] in users and "spec" in body)
        assert body["kind"] not in ("Secret", "Pod", "Namespace")
    for key in plan.delete:
        assert key in seen.owned.bodies or key.kind == "TableSync"
        assert key.name not in users


def test_objects_are_applied_in_order() -> None:
    """The objects that the driver needs are applied before the driver."""
    kinds = [b["kind"] for b in reconcile(observed()).apply]
    assert kinds == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding", "NetworkPolicy", "Service", "StatefulSet"]


def test_operator_restart_changes_nothing() -> None:
    """From the objects as they were applied, nothing is applied again."""
    assert reconcile(running()).apply == ()


@pytest.mark.parametrize("kind", ["ConfigMap", "Service", "StatefulSet", "NetworkPolicy"])
def test_drift_is_mended(kind: str) -> None:
    """An object that was changed by hand is restored, and no other object is written."""
    there = owned(owner())
    bodies = dict(there.bodies)
    key = next(k for k in bodies if k.kind == kind)
    damaged: dict[str, Any] = {k: v for k, v in bodies[key].items() if k not in ("spec", "data")}
    bodies[key] = damaged | {"spec": {}, "data": {}} if kind != "ConfigMap" else damaged | {"data": bodies[key]["data"]}
    if kind == "ConfigMap":
        bodies[key] = {**bodies[key], "metadata": {**bodies[key]["metadata"], "labels": {}}}
    plan = reconcile(running(owned=OwnedObjects(bodies)))
    assert [b["kind"] for b in plan.apply] == [kind]


@pytest.mark.parametrize("spec", [{"staging": {"uri": "s3://lake/staging"}}, {"staging": {"scratch": True}}])
def test_what_was_retained_stays(spec: dict[str, Any]) -> None:
    """State and staged changes without an owner stay, also if the Pipeline of the name has another place for them."""
    policy = {"slot": "Retain", "state": "Retain"}
    store = {"store": {"configMap": {}}}
    retained = owned(owner(staging={"volumeClaim": {"size": "1Gi"}}, deletionPolicy=policy, **store)).bodies
    kept = {k: b for k, b in retained.items() if "ownerReferences" not in b["metadata"]}
    assert {key.kind for key in kept} == {"ConfigMap", "PersistentVolumeClaim"}
    plan = reconcile(observed(pipeline(spec=spec), owned=OwnedObjects(kept)))
    assert plan.delete == ()
    assert ObjectKey("StatefulSet", "shop-driver") in {ObjectKey(b["kind"], b["metadata"]["name"]) for b in plan.apply}


def test_superfluous_objects_go() -> None:
    """Back from Cluster to Local mode, the executors' account, the policies and the rights over pods are deleted."""
    plan = reconcile(running(owned=owned(owner(driver={"mode": "Cluster"}))))
    assert set(plan.delete) == {
        ObjectKey("NetworkPolicy", "shop-executor"),
        ObjectKey("NetworkPolicy", "shop-copies"),
        ObjectKey("ServiceAccount", "shop-executor"),
    }
    (role,) = (b for b in plan.apply if b["kind"] == "Role")
    assert [rule["resources"] for rule in role["rules"]] == [["namespaces"], ["pipelines/status"]]
    retains = dict.fromkeys(("slot", "state", "publication", "destinationTables"), "Retain")
    kept = running(body=pipeline(spec={"deletionPolicy": retains}))
    assert set(reconcile(kept).delete) == {ObjectKey("Role", "shop-driver"), ObjectKey("RoleBinding", "shop-driver")}


def test_table_syncs_are_made_in_portions() -> None:
    """Thousands of tables do not keep other Pipelines waiting."""
    many = progress(*(table_document(f"t{i}") for i in range(100)))
    plan = reconcile(running(report=many))
    made = [b for b in plan.apply if b["kind"] == "TableSync"]
    assert len(made) == MAX_CREATIONS


def test_a_suspended_pipeline_has_no_driver() -> None:
    """It is stopped by the plan that accepts the change, and stays stopped afterwards and after other changes."""
    suspended = pipeline(spec={"suspend": True})
    plan = reconcile(running(body=suspended))
    assert [b["spec"]["replicas"] for b in plan.apply if b["kind"] == "StatefulSet"] == [0]
    stopped = owned(owner(suspend=True), running=False)
    for spec in ({}, {"freshnessSeconds": 99}):
        plan = reconcile(running(body=pipeline(spec={"suspend": True, **spec}), owned=stopped, pods=()))
        assert [b for b in plan.apply if b["kind"] == "StatefulSet" and b["spec"]["replicas"]] == []


def test_a_paused_pipeline_is_left_alone() -> None:
    """No object of it changes, whatever the spec says, until the annotation is gone. Its deletion is carried out."""
    paused = {"metadata": {"annotations": {"levada.dev/paused": "true"}}}
    changed, before = merge(pipeline(spec={"suspend": True}), paused), owned(owner())
    plan = reconcile(running(body=changed, owned=before))
    assert (plan.apply, plan.delete, plan.rehearse) == ((), (), ())
    conditions = {c["type"]: (c["status"], c["reason"]) for c in plan.statuses[0].status["conditions"]}
    assert conditions["Accepted"] == ("Unknown", "Paused")
    assert conditions["Suspended"] == ("False", "NotRequested")
    assert reconcile(running(body=pipeline(spec={"suspend": True}), owned=before)).apply
    new = reconcile(observed(merge(pipeline(), paused)))
    assert (new.apply, new.release) == ((), False)
    gone = merge(changed, {"metadata": {"deletionTimestamp": written(NOON)}})
    assert [b["kind"] for b in reconcile(running(body=gone, owned=before)).apply] == ["StatefulSet"]


def test_table_sync_of_a_table_that_is_gone() -> None:
    """The operator's own TableSync is deleted, unless it was changed.

    A driver that starts has no tables yet, which deletes none.
    """
    plain, changed = table_sync("gone"), table_sync("parked", suspend=True)
    users = table_sync("mine", ours=False)
    plan = reconcile(running(plain, changed, users))
    assert plan.delete == (ObjectKey("TableSync", "shop-public-gone"),)
    assert "TableSyncRemoved" in {n.reason for n in plan.events}
    starting = progress(table_document("x"), capture={"connected": False})
    assert reconcile(running(plain, changed, report=starting)).delete == ()
    phases = {w.key.name: w.status["phase"] for w in plan.statuses if w.key.kind == "TableSync"}
    assert (phases["shop-public-mine"], phases["shop-public-parked"]) == ("Removed", "Suspended")


def test_users_table_sync_is_tied_to_its_pipeline() -> None:
    """It gets the label and the owner. Its spec is not written."""
    plan = reconcile(running(table_sync(ours=False, owned=False)))
    (tie,) = plan.apply
    assert tie["kind"] == "TableSync"
    assert "spec" not in tie


def test_counters_are_not_urgent_and_times_are_nothing() -> None:
    """A position or a time alone is not written. Counters may wait, and conditions may not."""
    store = PlanStore(running(), pipeline(), [table_sync()])
    store.carry_out(reconcile(store.observe()))
    assert reconcile(store.observe(report=progress(fetched=0.5), moved_at=store.seen.now)).statuses == ()
    later = progress(table_document(appliedLsn="0/9999"), fetched=1, slot={"sampledAt": "2026-01-31T12:00:09+00:00"})
    assert reconcile(store.observe(report=later)).statuses == ()
    more = progress(table_document(lagSeconds=55), slot={"lagBytes": 900 << 20})
    writes = reconcile(store.observe(report=more)).statuses
    assert [w.beyond_counters for w in writes] == [False, False]
    worse = progress(table_document(phase="Errored", error=error_document()))
    writes = reconcile(store.observe(report=worse)).statuses
    assert [w.beyond_counters for w in writes] == [True, True]


def test_status_of_ten_thousand_failed_tables_is_small() -> None:
    """A Pipeline's status names at most 20 tables: far from what etcd takes, however many fail."""
    long = error_document(reason="x" * 5000)
    tables = [table_document(f"t{i}", "Errored", error=long) for i in range(10_000)]
    plan = reconcile(running(report=progress(*tables)))
    status = next(w.status for w in plan.statuses if w.key.kind == "Pipeline")
    assert len(status["tables"]["attention"]) == 20
    assert len(json.dumps(status)) < 16_384
    assert status["tables"]["total"] == 10_000


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v)
    )
)
def test_an_object_does_not_differ_from_itself(value: Any) -> None:
    """An object that has the applied content and the API server's defaults needs no apply."""
    body = with_applied_hash({"metadata": {}, "spec": value})
    assert not needs_apply(body, {**body, "status": {}, "extra": 1})
    assert needs_apply(body, None)


def test_quantities_and_defaults_are_no_drift() -> None:
    """The API server writes quantities its own way, and leaves out what is empty."""
    wanted = {"a": {"cpu": "1000m", "memory": "1024Mi"}, "e": {}, "f": False, "l": [], "s": ""}
    assert not needs_apply(wanted, {"a": {"cpu": "1", "memory": "1Gi"}})
    assert needs_apply(wanted, {"a": {"cpu": "2", "memory": "1Gi"}})
    assert needs_apply({"l": [1]}, {"l": [1, 2]})
    assert not needs_apply({"metadata": {}, "path": None}, {"metadata": {}, "path": "/dev/termination-log"})


def test_what_others_add_to_the_driver_stays() -> None:
    """A container, a volume or a variable that another tool adds to the StatefulSet is neither fought nor an update."""
    there = owned(owner())
    key = ObjectKey("StatefulSet", "shop-driver")
    body = json.loads(json.dumps(there.bodies[key]))
    spec = body["spec"]["template"]["spec"]
    spec["containers"][0]["env"].insert(0, {"name": "DEBUG", "value": "1"})
    spec["containers"][0]["volumeMounts"].append({"name": "side", "mountPath": "/side"})
    spec["containers"].append({"name": "side", "image": "side:1"})
    spec["volumes"].append({"name": "side", "emptyDir": {}})
    plan = reconcile(running(owned=OwnedObjects({**there.bodies, key: body})))
    assert (plan.apply, plan.takes_turn) == ((), False)
    spec["containers"][0]["env"][1]["value"] = "changed by hand"
    plan = reconcile(running(owned=OwnedObjects({**there.bodies, key: body})))
    assert ([b["kind"] for b in plan.apply], plan.takes_turn) == (["StatefulSet"], True)


def test_subject_added_by_hand_is_removed() -> None:
    """The subjects of the driver's RoleBinding are replaced as a whole.

    A subject added by hand loses the driver's rights.
    """
    there = owned(owner(driver={"mode": "Cluster"}))
    key = ObjectKey("RoleBinding", "shop-driver")
    body = json.loads(json.dumps(there.bodies[key]))
    body["subjects"].append({"kind": "ServiceAccount", "name": "other", "namespace": "data"})
    seen = running(body=pipeline(spec={"driver": {"mode": "Cluster"}}), owned=OwnedObjects({**there.bodies, key: body}))
    assert [b["kind"] for b in reconcile(seen).apply] == ["RoleBinding"]


def test_dropped_field_is_seen() -> None:
    """A field that the operator no longer sets is removed, because the hash of the applied content differs."""
    before, after = (
        with_applied_hash({"metadata": {}, "spec": {"a": 1, "b": 2}}),
        with_applied_hash({"metadata": {}, "spec": {"a": 1}}),
    )
    assert needs_apply(after, before)


def test_says_more() -> None:
    """Times and positions say nothing new."""
    assert not status_changed({"phase": "x", "progressAt": "1"}, {"phase": "x", "progressAt": "2"})
    assert status_changed({"phase": "x"}, {"phase": "y"})
    assert not beyond_counters({"display": {"lag": "1"}}, {"display": {"lag": "2"}})
    assert document()["version"] == 1
