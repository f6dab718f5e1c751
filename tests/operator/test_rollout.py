"""Updates: another pod of the same spec restarts running drivers one by one, a user's change its own without delay."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.operator.cluster import PlanStore
from tests.operator.samples import (
    DEFAULTS,
    NEW,
    NOON,
    at,
    merge,
    observed,
    owned,
    owner,
    pipeline,
    pod,
    pod_body,
    progress,
    running,
    table_sync,
    upgraded,
    written,
)

from levada_operator.app.update_turns import UpdateTurns
from levada_operator.decide.plan import Plan
from levada_operator.decide.reconcile import reconcile
from levada_operator.decide.rollout import is_updating
from levada_operator.names import UPDATED_AT
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import Body, ObjectKey, PipelineKey, Refusal

DRIVER = ObjectKey("StatefulSet", "shop-driver")
DEADLINE = DEFAULTS.updates.deadline


def driver(plan: Plan) -> dict[str, Any]:
    """Return the StatefulSet that a plan applies, empty if it applies none."""
    return next((b for b in plan.apply if b["kind"] == "StatefulSet"), {})


def image(body: Body) -> str:
    """Return the driver's image."""
    return str(body["spec"]["template"]["spec"]["containers"][0]["image"])


def test_upgrade_takes_its_turn() -> None:
    """A driver is updated with an Event while no other driver restarts. The StatefulSet has the time."""
    plan = reconcile(upgraded())
    assert image(driver(plan)) == "levada:2"
    assert driver(plan)["metadata"]["annotations"][UPDATED_AT] == written(NOON)
    assert plan.takes_turn
    assert "DriverUpdated" in [n.reason for n in plan.events]


def test_upgrade_waits_for_another() -> None:
    """While another driver restarts, neither this one nor its manifest is changed. All other objects are."""
    plan = reconcile(upgraded(updating=1))
    assert not driver(plan)
    assert not plan.takes_turn
    assert not plan.apply
    more = replace(NEW, updates=replace(NEW.updates, max_concurrent=2))
    assert driver(reconcile(upgraded(updating=1, defaults=more)))


def test_update_that_waits_is_in_the_status() -> None:
    """The driver stays available, and its condition says once that an update waits for its turn, without an Event."""
    store = PlanStore(upgraded(updating=1), pipeline(), [table_sync()])
    store.carry_out(reconcile(store.observe()))
    plan = reconcile(store.observe(updating=3))
    assert (plan.apply, plan.statuses, plan.events) == ((), (), ())
    (waits,) = (c for c in store.pipeline["status"]["conditions"] if c["type"] == "DriverAvailable")
    assert (waits["status"], waits["reason"]) == ("True", "PodReady")
    assert waits["message"].startswith("shop-driver-0; an update of the pod waits for its turn")
    assert "updatePolicy.maxConcurrent is 1" in waits["message"]
    plan = reconcile(store.observe(updating=0))
    assert plan.takes_turn
    assert "waits" not in json.dumps([w.status for w in plan.statuses])


def test_manifest_in_a_newer_version_s_words_waits_with_its_driver() -> None:
    """A driver never reads what only the next version writes, unless the user has changed something."""
    seen = upgraded(updating=1)
    key = ObjectKey("ConfigMap", "shop-manifest")
    older = seen.owned.bodies[key]
    text = older["data"]["pipeline.yaml"].replace("  restartNonce: 0\n", "")
    assert text != older["data"]["pipeline.yaml"]
    bodies = dict(seen.owned.bodies) | {key: merge(dict(older), {"data": {"pipeline.yaml": text}})}
    waiting = replace(seen, owned=replace(seen.owned, bodies=bodies))
    assert not reconcile(waiting).apply
    changed = replace(waiting.pipeline, spec=merge(dict(waiting.pipeline.spec), {"freshnessSeconds": 60}))
    assert [b["kind"] for b in reconcile(replace(waiting, pipeline=changed)).apply] == ["ConfigMap"]


@pytest.mark.parametrize("change", [{"restartNonce": 1}, {"driver": {"image": "levada:3"}}])
def test_users_change_waits_for_nobody(change: dict[str, Any]) -> None:
    """A change of the class Restart, ``restartNonce`` among them, restarts its driver while others restart.

    It takes no turn: a tenant who changes it again and again would keep an update from all others.
    """
    seen = upgraded(updating=5)
    changed = replace(seen.pipeline, spec=merge(dict(seen.pipeline.spec), change))
    plan = reconcile(replace(seen, pipeline=changed))
    assert driver(plan)
    assert not plan.takes_turn
    assert UPDATED_AT not in driver(plan)["metadata"]["annotations"]
    assert [n.reason for n in plan.events if n.reason in ("SpecChanged", "DriverUpdated")] == ["SpecChanged"]


def test_restart_nonce_is_one_restart() -> None:
    """The same value asks for nothing more."""
    body = pipeline(spec={"restartNonce": 7})
    seen = running(body=body, owned=owned(owner(restartNonce=7)))
    assert not driver(reconcile(seen))


@pytest.mark.parametrize(
    "pods", [(), (pod(conditions=[{"type": "Ready", "status": "False"}]),)], ids=["no pod", "not ready"]
)
def test_driver_that_is_not_ready_waits_for_nobody(pods: Any) -> None:
    """There is nothing to interrupt: a version that repairs what the former one broke reaches all drivers.

    It takes no turn, because a tenant's driver may never be ready.
    """
    plan = reconcile(upgraded(updating=5, pods=pods))
    assert driver(plan)
    assert not plan.takes_turn


def test_suspended_pipeline_waits_for_nobody() -> None:
    """Neither a driver that goes to 0 nor one that comes back is held up."""
    seen = upgraded(updating=5)
    suspended = replace(seen.pipeline, spec={**seen.pipeline.spec, "suspend": True})
    plan = reconcile(replace(seen, pipeline=suspended))
    assert driver(plan)["spec"]["replicas"] == 0
    assert not plan.takes_turn


def test_change_by_hand_is_put_back_in_turn() -> None:
    """A template that was changed by hand is ours to restore, at the pace of an update."""
    seen = running()
    bodies = dict(seen.owned.bodies)
    bodies[DRIVER] = merge(dict(bodies[DRIVER]), {"spec": {"template": {"spec": {"serviceAccountName": "other"}}}})
    by_hand = replace(seen, owned=replace(seen.owned, bodies=bodies))
    assert driver(reconcile(by_hand))
    assert not driver(reconcile(replace(by_hand, updating=1)))


def test_update_settles() -> None:
    """Once its pod is Ready, an updated Pipeline has nothing left to do, and keeps when it was updated."""
    store = PlanStore(upgraded(), pipeline(), [table_sync()])
    store.owned = {k: dict(b) for k, b in store.seen.owned.bodies.items()}
    store.carry_out(reconcile(store.observe()))
    store.carry_out(reconcile(store.observe(now=at(30), report=progress())))
    later = store.observe(now=at(35), report=progress())
    assert not [b["kind"] for b in reconcile(later).apply]
    assert store.owned[DRIVER]["metadata"]["annotations"][UPDATED_AT] == written(NOON)


def stateful_set(**status: Any) -> dict[str, Any]:
    """Return a driver's StatefulSet that was updated at noon, as its controller sees it."""
    return {
        "kind": "StatefulSet",
        "metadata": {
            "namespace": "data",
            "name": "shop-driver",
            "uid": "uid-shop-driver",
            "labels": {"levada.dev/pipeline": "shop"},
            "ownerReferences": [{"kind": "Pipeline", "name": "shop", "uid": "uid-shop"}],
            "generation": 4,
            "resourceVersion": "7",
            "annotations": {UPDATED_AT: written(NOON)},
        },
        "spec": {"replicas": 1},
        "status": {"observedGeneration": 4, "updateRevision": "b"} | status,
    }


def of_revision(revision: str, **status: Any) -> dict[str, Any]:
    """Return the driver's pod of that revision."""
    return merge(pod_body(**status), {"metadata": {"labels": {"controller-revision-hash": revision}}})


@pytest.mark.parametrize(
    ("updating", "status", "there"),
    [
        (False, {}, of_revision("b")),
        (True, {}, of_revision("a")),
        (True, {}, None),
        (True, {}, of_revision("b", conditions=[{"type": "Ready", "status": "False"}])),
        (True, {}, merge(of_revision("b"), {"metadata": {"deletionTimestamp": written(NOON)}})),
        (True, {"observedGeneration": 3}, of_revision("b")),
    ],
    ids=["ready", "old pod", "no pod", "not ready", "ends", "not seen by its controller"],
)
def test_update_ends_when_the_new_pod_is_ready(
    updating: bool, status: dict[str, Any], there: dict[str, Any] | None
) -> None:
    """Until then the next driver waits, but for no longer than the deadline."""
    assert is_updating(stateful_set(**status), there, at(60), DEADLINE) is updating
    assert not is_updating(stateful_set(**status), there, NOON + DEADLINE + timedelta(seconds=1), DEADLINE)


def test_driver_without_an_update_holds_nobody_up() -> None:
    """One that has crashed since yesterday, one that is new, and one that is suspended do not count."""
    never = merge(stateful_set(), {"metadata": {"annotations": {UPDATED_AT: None}}})
    assert not is_updating(never, None, at(60), DEADLINE)
    assert not is_updating(merge(stateful_set(), {"spec": {"replicas": 0}}), None, at(60), DEADLINE)


def test_one_turn_at_a_time_in_one_process() -> None:
    """From the plan on, before anything is written, the turn is taken. A plan that failed gives it back."""
    cache = ClusterCache(NEW)
    turns = UpdateTurns(cache, NEW.updates.deadline)
    for name in ("shop", "mall"):
        body = pipeline()
        uid = {"uid": f"uid-{name}"}
        cache.put(merge(body, {"metadata": {"name": name, "resourceVersion": "1", **uid}}))
    shop, mall = PipelineKey("data", "shop"), PipelineKey("data", "mall")

    def others(key: PipelineKey) -> int:
        seen = cache.observe(key, NOON, turns.others(key))
        assert seen is not None
        return seen.updating

    # Before the first count other drivers may be restarting.
    assert others(mall) > NEW.updates.max_concurrent
    turns.refresh(NOON)
    turns.begin(shop)
    assert (others(shop), others(mall)) == (0, 1)
    turns.end(shop, NOON)
    turns.refresh(NOON)
    assert others(mall) == 0
    turns.begin(shop)
    cache.record_writes(shop, [stateful_set(observedGeneration=3)], [], NOON)
    turns.end(shop, NOON)
    cache.replace_owned("StatefulSet", "data", [stateful_set(observedGeneration=3)], NOON)
    turns.refresh(NOON)
    assert others(mall) == 1
    pod_ready = merge(of_revision("b"), {"metadata": {"resourceVersion": "9"}})
    current = merge(stateful_set(), {"metadata": {"resourceVersion": "8"}})
    cache.replace_owned("StatefulSet", "data", [current], at(5))
    cache.replace_owned("Pod", "data", [pod_ready], at(5))
    turns.refresh(at(5))
    assert others(mall) == 0
    for hand in ("yesterday", written(at(6)), "9999-12-31T23:59:59-23:59"):
        # Whoever may edit the StatefulSet may write this.
        edited = {"metadata": {"resourceVersion": "10", "annotations": {UPDATED_AT: hand}}}
        cache.replace_owned("StatefulSet", "data", [merge(current, edited)], at(7))
        cache.replace_owned("Pod", "data", [], at(60))
        turns.refresh(at(7))
        assert others(mall) == 0, hand


def test_refused_update_gives_its_turn_back() -> None:
    """A driver whose StatefulSet the API server refuses does not restart, so the next one may."""
    cache = ClusterCache(NEW)
    turns = UpdateTurns(cache, NEW.updates.deadline)
    for name in ("shop", "mall"):
        cache.put(merge(pipeline(), {"metadata": {"name": name, "resourceVersion": "1"}}))
    shop, mall = PipelineKey("data", "shop"), PipelineKey("data", "mall")
    refusal = Refusal(DRIVER, "unknown field")
    turns.refresh(NOON)
    turns.begin(shop)
    cache.record_refusals(shop, (refusal,))
    turns.end(shop, NOON)
    assert turns.others(mall) == 0


def test_first_start_is_no_update() -> None:
    """New Pipelines start together, and hold no upgrade up."""
    plan = reconcile(observed(updating=5))
    assert driver(plan)
    assert UPDATED_AT not in driver(plan)["metadata"]["annotations"]
