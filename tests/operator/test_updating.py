"""Readiness is of the newest spec: no tool takes an object for ready before its driver runs what is written there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.kstatus import kstatus, waited_for
from tests.operator.samples import (
    NOON,
    at,
    error_document,
    merge,
    observed,
    pipeline,
    pod,
    progress,
    running,
    table_document,
    table_sync,
    waiting,
)
from tests.operator.world import DRIVER, MANIFEST, World, of_revision

from levada_operator.decide.plan import Plan
from levada_operator.decide.reconcile import reconcile
from levada_operator.names import MANIFEST_DIGEST
from levada_operator.observe.objects import ObjectKey, Refusal

RESTART: list[Callable[[World], None]] = [
    World.passes, World.passes, World.reports, World.passes, World.sees, World.passes, World.end, World.passes,
    World.start, World.passes, World.ready, World.passes, World.reads, World.passes, World.passes,
]  # fmt: skip
HOT: list[Callable[[World], None]] = [
    World.passes, World.passes, World.reports, World.passes, World.sees, World.passes, World.reads, World.passes
]  # fmt: skip
CHANGES: dict[str, tuple[dict[str, Any], list[Callable[[World], None]]]] = {
    "image": ({"driver": {"image": "levada:9"}}, RESTART),
    "hot": ({"freshnessSeconds": 30}, HOT),
    "both": ({"freshnessSeconds": 30, "driver": {"image": "levada:9"}}, RESTART),
}


@pytest.mark.parametrize("name", CHANGES)
def test_nothing_is_ready_before_it_runs(name: str) -> None:
    """At each moment of a change kstatus and kubectl wait call the Pipeline ready only if the driver runs its spec."""
    change, steps = CHANGES[name]
    world = World()
    assert (kstatus(world.store.pipeline), waited_for(world.store.pipeline)) == ("Current", True)
    world.edit(**change)
    reasons = set()
    for step in steps:
        assert kstatus(world.store.pipeline) != "Failed"
        if not world.runs_it:
            assert kstatus(world.store.pipeline) == "InProgress"
            assert not waited_for(world.store.pipeline)
        step(world)
        reasons |= {c["reason"] for c in world.store.pipeline["status"]["conditions"] if c["type"] == "Ready"}
    assert (kstatus(world.store.pipeline), waited_for(world.store.pipeline)) == ("Current", True)
    assert "Updating" in reasons


def ready(seen: Any, kind: str = "Pipeline") -> dict[str, Any]:
    """Return the condition Ready that the plan for what is seen writes."""
    (status,) = (w.status for w in reconcile(seen).statuses if w.key.kind == kind)
    return next(c for c in status["conditions"] if c["type"] == "Ready")


def stored(seen: Any, generation: int = 2, **changes: Any) -> dict[str, Any]:
    """Return the Pipeline of the next generation, with the status that was written for the one that is seen."""
    (status,) = (w.status for w in reconcile(seen).statuses if w.key.kind == "Pipeline")
    return pipeline(status=status, metadata={"generation": generation}, **changes)


@pytest.mark.parametrize("refusal", [False, True], ids=["invalid", "refused by the cluster"])
def test_refused_spec_fails_and_is_never_waited_for(refusal: bool) -> None:
    """A refused spec is Failed, and not Ready in its generation, while the former one is Ready in its own."""
    seen = running()
    body = stored(seen, spec={"driver": {"image": "nowhere"}} if refusal else {"store": {}})
    refusals = (Refusal(ObjectKey("Pod", "shop-driver-0"), "violates PodSecurity"),) if refusal else ()
    plan = reconcile(running(body=body, refusals=refusals))
    (status,) = (w.status for w in plan.statuses if w.key.kind == "Pipeline")
    now = {**body, "status": status}
    assert kstatus(now) == "Failed"
    assert not waited_for(now)
    (is_ready,) = (c for c in status["conditions"] if c["type"] == "Ready")
    assert (is_ready["status"], is_ready["observedGeneration"], status["observedGeneration"]) == ("True", 1, 2)


def test_image_that_cannot_be_pulled_stalls() -> None:
    """A failure is in progress until health.progressDeadlineSeconds have passed, and Failed after that."""
    no_image = pod(**waiting("driver", "ImagePullBackOff", "no such image"))
    first = running(report=None, pods=(no_image,))
    body = stored(first, generation=1)
    assert kstatus(body) == "InProgress"
    for seconds, expected in ((899, "InProgress"), (901, "Failed")):
        later = running(body=body, report=None, pods=(no_image,), now=at(seconds))
        status = next((w.status for w in reconcile(later).statuses if w.key.kind == "Pipeline"), body["status"])
        assert kstatus({**body, "status": status}) == expected


def test_pipeline_that_rests_or_waits_is_no_failure() -> None:
    """A suspended Pipeline is not stalled however long that lasts. One that copies for days makes progress."""
    for seen in (
        running(body=pipeline(spec={"suspend": True}), pods=(), now=at(90_000)),
        running(report=progress(table_document(phase="DataSync"), fetched=90_000), now=at(90_000), moved_at=at(90_000)),
        observed(),
    ):
        assert kstatus(stored(seen, generation=1)) == "InProgress"


def test_pod_of_an_earlier_template_is_not_ready() -> None:
    """The StatefulSet's controller decides which pod is the newest one, and until it has seen it, none is."""
    bodies = dict(running().owned.bodies)
    newest = {"observedGeneration": 2, "updateRevision": "new"}
    for status, revision, expected in (
        (newest, "old", "Updating"),
        ({**newest, "observedGeneration": 1}, "new", "Updating"),
        (newest, "new", "Streaming"),
        ({}, "old", "Streaming"),
    ):
        body = merge(dict(bodies[DRIVER]), {"metadata": {"generation": 2}, "status": status})
        its = replace(running().owned, bodies=bodies | {DRIVER: body})
        assert ready(running(owned=its, pods=(of_revision(revision),)))["reason"] == expected


def test_report_of_the_former_pod_is_none() -> None:
    """A pod that started after the last report has reported nothing yet."""
    assert ready(running(pods=(of_revision("", created=5),), now=at(10)))["reason"] == "Updating"


def test_driver_that_cannot_read_the_manifest_says_why() -> None:
    """The message has the driver's own error. A driver of an earlier version, which knows no digest, is believed."""
    error = error_document(code="invalid_manifest", reason="line 3")
    seen = running(report=progress(manifest={"digest": "another", "error": error}))
    assert "line 3 [invalid_manifest]" in ready(seen)["message"]
    assert ready(running(report=progress(manifest={})))["status"] == "True"


def test_changed_table_sync_is_ready_once_the_driver_has_read_it() -> None:
    """A TableSync's Ready is of its newest generation only when the driver runs it. Others stay Ready meanwhile."""
    key = MANIFEST
    digest = running().owned.bodies[key]["metadata"]["annotations"][MANIFEST_DIGEST]
    report = progress(manifest={"digest": digest})
    (status,) = (w.status for w in reconcile(running(report=report)).statuses if w.key.kind == "TableSync")
    other = {**table_sync("events"), "status": status}
    changed = merge(table_sync(), {"status": status, "metadata": {"generation": 2}, "spec": {"retryNonce": 1}})
    plan = reconcile(running(changed, other, report=progress(table_document(), table_document("events"),
                                                             manifest={"digest": digest})))  # fmt: skip
    told = {w.key.name: next(c for c in w.status["conditions"] if c["type"] == "Ready") for w in plan.statuses[1:]}
    assert (told["shop-public-orders"]["reason"], told["shop-public-orders"]["observedGeneration"]) == ("Updating", 1)
    assert told.get("shop-public-events", {"reason": "Streaming"})["reason"] == "Streaming"


def test_refused_table_sync_fails() -> None:
    """A TableSync with an invalid spec is Failed, and so is one whose table only a person can help."""
    (status,) = (w.status for w in reconcile(running()).statuses if w.key.kind == "TableSync")
    bad = merge(table_sync(), {"status": status, "metadata": {"generation": 2}, "spec": {"mode": "Sideways"}})
    for body, report in (
        (bad, progress()),
        (table_sync(), progress(table_document(phase="Errored", error=error_document()))),
    ):
        (now,) = (w.status for w in reconcile(running(body, report=report)).statuses if w.key.kind == "TableSync")
        assert kstatus({**body, "status": now}) == "Failed"
        assert not waited_for({**body, "status": now})


def test_object_without_a_status_is_in_progress() -> None:
    """The CRDs give each object a status before the operator does."""
    body = pipeline(status={"observedGeneration": -1})
    assert kstatus(body) == "InProgress"
    assert reconcile(observed(body, now=NOON)).statuses


def test_refused_change_leaves_ready_true() -> None:
    """A manifest that the API server refuses is not being applied: Ready stays that of the last accepted spec."""
    body = pipeline(spec={"freshnessSeconds": 30}, metadata={"generation": 2})
    refused = (Refusal(ObjectKey("ConfigMap", "shop-manifest"), "a policy allows no ConfigMaps"),)
    plan = reconcile(running(body=body, refusals=refused))
    status = next(w.status for w in plan.statuses if w.key.kind == "Pipeline")
    ready, accepted, stalled = (
        next(c for c in status["conditions"] if c["type"] == type_) for type_ in ("Ready", "Accepted", "Stalled")
    )
    assert (ready["status"], ready["observedGeneration"]) == ("True", 1)
    assert (accepted["status"], accepted["reason"]) == ("False", "RefusedByCluster")
    assert (stalled["status"], kstatus({**body, "status": status})) == ("True", "Failed")


def conditions(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the conditions of the Pipeline that a plan writes, by type."""
    status = next(w.status for w in plan.statuses if w.key.kind == "Pipeline")
    return {c["type"]: c for c in status["conditions"]}


def test_spec_that_runs_is_ready_although_a_table_sync_is_refused() -> None:
    """Accepted names each refused object, and says that the rest is applied. Ready is of the newest spec."""
    refused = tuple(
        Refusal(ObjectKey("TableSync", f"shop-public-{n}"), "a policy allows none of these") for n in "abcdefg"
    )
    report = progress(*(table_document(n) for n in "abcdefg"))
    seen = running(report=report)
    body = stored(seen)
    told = conditions(reconcile(running(body=body, report=report, refusals=refused)))
    assert told["Accepted"]["message"] == (
        "TableSync shop-public-a: a policy allows none of these; also refused: TableSync shop-public-b,"
        " TableSync shop-public-c, TableSync shop-public-d, TableSync shop-public-e and 2 more;"
        " the rest of the spec is applied"
    )
    assert (told["Accepted"]["status"], told["Accepted"]["reason"]) == ("False", "RefusedByCluster")
    assert (told["Ready"]["status"], told["Ready"]["observedGeneration"]) == ("True", 2)


def test_refused_table_sync_is_no_reason_for_a_missing_pod() -> None:
    """No pod waits for a table's object."""
    refused = (Refusal(ObjectKey("TableSync", "shop-public-a"), "a policy allows none of these"),)
    seen = running(report=progress(table_document("a")), refusals=refused, pods=())
    assert conditions(reconcile(seen))["DriverAvailable"]["reason"] == "Starting"


@pytest.mark.parametrize(
    ("kind", "name", "text"),
    [
        ("ConfigMap", "shop-manifest", "the last accepted spec keeps running"),
        ("Service", "shop-driver", "the manifest is applied, but the driver's StatefulSet stays as it is"),
        ("StatefulSet", "shop-driver", "the last accepted spec keeps running"),
    ],
)
def test_refusal_says_what_runs(kind: str, name: str, text: str) -> None:
    """Objects before a refused one are applied, and those after it are not. A rehearsed one holds back all."""
    body = stored(running(), spec={"freshnessSeconds": 30, "driver": {"image": "levada:9"}})
    owned = running().owned
    bodies = {key: its for key, its in owned.bodies.items() if key.kind != "Service"}
    refused = (Refusal(ObjectKey(kind, name), "a policy allows none of these"),)
    seen = running(body=body, refusals=refused, owned=replace(owned, bodies=bodies))
    told = conditions(reconcile(seen))
    assert told["Accepted"]["message"].endswith(text)
    assert told["Ready"]["observedGeneration"] == 1


def test_change_is_an_event_although_a_table_sync_is_refused() -> None:
    """The change takes effect, so it is reported. One that is held back is not."""
    body = stored(running(), spec={"freshnessSeconds": 30})
    report = progress(table_document("a"))
    for key, reported in (
        (ObjectKey("TableSync", "shop-public-a"), True),
        (ObjectKey("ConfigMap", MANIFEST.name), False),
    ):
        refused = (Refusal(key, "a policy allows none of these"),)
        events = [e.reason for e in reconcile(running(body=body, report=report, refusals=refused)).events]
        assert ("SpecChanged" in events) is reported
