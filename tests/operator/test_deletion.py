"""Deletion stops the driver, cleans up, lets go, and always ends."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.samples import (
    at,
    deleting,
    job,
    merge,
    owned,
    owner,
    pipeline,
    pod,
    pod_body,
    waiting,
    written,
)

from levada_operator.decide.deletion import left_without_finalizer
from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.creation import CreationFailure
from levada_operator.observe.objects import ObjectKey, OwnedObjects, Refusal
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import read_pod

SQL = "SELECT pg_drop_replication_slot('levada_data__shop')"


def test_first_the_driver_is_stopped() -> None:
    """The StatefulSet is scaled to 0, and nothing else is done while the pod is there."""
    plan = reconcile(deleting())
    assert [(b["kind"], b["spec"]["replicas"]) for b in plan.apply] == [("StatefulSet", 0)]
    assert not plan.release
    stopped = owned(owner(), running=False)
    for ends in (pod(), pod(**waiting("driver", "CrashLoopBackOff", exitCode=1))):
        waits = reconcile(deleting(owned=stopped, pods=(ends,)))
        assert (waits.apply, waits.release) == ((), False)


def test_then_the_cleanup_runs_and_lets_go() -> None:
    """The clean-up Job is created once, after the pod has gone. When it has succeeded, the Pipeline is released."""
    stopped = owned(owner(), running=False)
    plan = reconcile(deleting(owned=stopped, pods=()))
    assert [b["kind"] for b in plan.apply] == ["Job"]
    there = OwnedObjects({**stopped.bodies, ObjectKey("Job", "shop-cleanup"): plan.apply[0]})
    waits = reconcile(deleting(owned=there, pods=(), jobs=(job(),)))
    assert (waits.apply, waits.release) == ((), False)
    done = reconcile(deleting(owned=there, pods=(), jobs=(job(succeeded=True),)))
    assert done.release
    assert [n.reason for n in done.events if n.reason.startswith("Cleanup")] == ["CleanupFinished"]


STOPPED = owned(owner(), running=False)


def ended(message: str) -> dict[str, Any]:
    """Return the status of a pod whose clean-up ended with that error."""
    state = {"name": "cleanup", "state": {"terminated": {"exitCode": 1, "message": message}}}
    return {"phase": "Failed", "containerStatuses": [state]}


ENDED = ended("error: no user [secret_missing]")
WAYS_OUT: dict[str, Observed] = {
    "time is over": deleting(-601, owned=STOPPED, pods=(), jobs=(job(),)),
    "time is over while the pod does not end": deleting(-601),
    "the namespace goes": deleting(
        owned=STOPPED, pods=(), refusals=(Refusal(ObjectKey("Job", "shop-cleanup"), "no", namespace_terminating=True),)
    ),
    "the Job has failed": deleting(owned=STOPPED, pods=(), jobs=(job(failed=True),)),
    "the Secret is gone": deleting(owned=STOPPED, pods=(pod("cleanup", "shop-cleanup-x", **ENDED),), jobs=(job(),)),
    "the password is wrong": deleting(
        owned=STOPPED,
        jobs=(job(),),
        pods=(pod("cleanup", "shop-cleanup-x", **ended("error: wrong password [source_auth_failed]")),),
    ),
    "the image is nowhere": deleting(
        -120,
        owned=STOPPED,
        jobs=(job(),),
        pods=(pod("cleanup", "shop-cleanup-x", **waiting("cleanup", "ImagePullBackOff", "no such image")),),
    ),
    "the pod of the Job is refused": deleting(
        -120,
        owned=STOPPED,
        pods=(),
        jobs=(replace(job(), created=at(-61)),),
        creation_failures={ObjectKey("Job", "shop-cleanup"): CreationFailure("j", "exceeded quota: small", at(-60))},
    ),
    "it is skipped": deleting(body=pipeline(metadata={"annotations": {"levada.dev/skip-cleanup": "true"}})),
    "the namespace has lost the manifest": deleting(
        -601, body=pipeline(status={"slot": {"sampledAt": "2026-01-31T11:00:00Z"}}), owned=OwnedObjects(), pods=()
    ),
}


@pytest.mark.parametrize("name", WAYS_OUT)
def test_always_ends_and_names_what_is_left(name: str) -> None:
    """Whatever is in the way, the Pipeline goes, and an Event names the slot and the SQL that drops it."""
    plan = reconcile(WAYS_OUT[name])
    assert plan.release
    (draft,) = (n for n in plan.events if n.reason == "CleanupAbandoned")
    assert SQL in draft.message
    assert "levada.dev/take-over-from=uid-shop" in draft.message
    assert draft.type == "Warning"


def test_refused_spec_does_not_hold_the_deletion_up() -> None:
    """A pod template that the API server does not take neither keeps the driver running nor the clean-up away."""
    typo = pipeline(spec={"driver": {"podTemplate": {"spec": {"tolerationz": []}}}})
    refused = (Refusal(ObjectKey("StatefulSet", "shop-driver"), "field not declared in schema"),)
    (scaled,) = reconcile(deleting(body=typo, refusals=refused)).apply
    assert scaled["spec"]["replicas"] == 0
    assert "tolerationz" not in scaled["spec"]["template"]["spec"]
    refused = (Refusal(ObjectKey("Job", "shop-cleanup"), "field not declared in schema"),)
    plan = reconcile(deleting(body=typo, owned=STOPPED, pods=(), refusals=refused))
    (job,) = (b for b in plan.apply if b["kind"] == "Job")
    assert "tolerationz" not in job["spec"]["template"]["spec"]


@pytest.mark.parametrize("kind", ["NetworkPolicy", "StatefulSet", "Service"])
def test_refused_object_holds_no_cleanup_up(kind: str) -> None:
    """The Job comes after what its pod needs, and before all else, of which one may be refused."""
    bodies = {key: body for key, body in STOPPED.bodies.items() if key.kind != kind}
    plan = reconcile(deleting(owned=OwnedObjects(bodies), pods=()))
    assert [b["kind"] for b in plan.apply] == ["Job", kind]
    without = {key: body for key, body in bodies.items() if key.kind not in ("ConfigMap", "ServiceAccount")}
    kinds = [b["kind"] for b in reconcile(deleting(owned=OwnedObjects(without), pods=())).apply]
    assert set(kinds[: kinds.index("Job")]) == {"ConfigMap", "ServiceAccount"}
    assert kinds[-1] == kind


def test_refused_manifest_does_not_hold_the_cleanup_up() -> None:
    """The accepted manifest has the same policy. Another policy waits for its manifest."""
    refused = (Refusal(ObjectKey("ConfigMap", "shop-manifest"), "none of these"),)
    changed = pipeline(spec={"freshnessSeconds": 7})
    plan = reconcile(deleting(body=changed, owned=STOPPED, pods=(), refusals=refused))
    assert [b["kind"] for b in plan.apply] == ["Job"]
    other = pipeline(spec={"deletionPolicy": {"slot": "Retain"}})
    plan = reconcile(deleting(body=other, owned=STOPPED, pods=(), refusals=refused))
    assert [b["kind"] for b in plan.apply][:2] == ["ConfigMap", "Job"]


def test_nothing_to_clean() -> None:
    """A Pipeline whose manifest was never created, or that lost to an older one, goes without a clean-up."""
    refused = (Refusal(ObjectKey("ConfigMap", "shop-manifest"), "none of these"),)
    for seen in (
        deleting(owned=OwnedObjects(), pods=(), report=None, refusals=refused),
        deleting(owned=OwnedObjects(), pods=(), report=None, conflicts=("data/older",)),
        deleting(body=pipeline(spec={"store": {}}), owned=OwnedObjects(), pods=()),
    ):
        plan = reconcile(seen)
        assert plan.release
        assert plan.apply == ()
        assert not any(n.reason == "CleanupAbandoned" for n in plan.events)


def test_removed_objects_do_not_hide_that_it_ran() -> None:
    """In a foreground deletion garbage collection may remove every object before the operator sees the deletion."""
    plan = reconcile(deleting(body=pipeline(status={}), owned=OwnedObjects(), pods=(), report=None))
    kinds = [b["kind"] for b in plan.apply]
    assert (kinds[:2], plan.release) == (["ConfigMap", "ServiceAccount"], False)
    assert "Job" in kinds
    gone = OwnedObjects({k: b for k, b in STOPPED.bodies.items() if k.kind not in ("ConfigMap", "ServiceAccount")})
    missing = reconcile(deleting(owned=gone, pods=(), jobs=(job(),)))
    assert {b["kind"] for b in missing.apply} == {"ConfigMap", "ServiceAccount"}
    ends = (Refusal(ObjectKey("ConfigMap", "shop-manifest"), "no", namespace_terminating=True),)
    assert SQL in reconcile(deleting(owned=OwnedObjects(), pods=(), report=None, refusals=ends)).abandoned


def test_what_is_retained_is_released() -> None:
    """A policy that retains everything has a clean-up too, which lets another Pipeline claim what stays."""
    all_stay = {"deletionPolicy": {"slot": "Retain", "state": "Retain"}}
    body, stopped = pipeline(spec=all_stay), owned(owner(**all_stay), running=False)
    plan = reconcile(deleting(body=body, owned=stopped, pods=()))
    assert ([b["kind"] for b in plan.apply], plan.release) == (["Job"], False)
    done = reconcile(deleting(body=body, owned=stopped, pods=(), jobs=(job(succeeded=True),)))
    assert done.release
    (draft,) = (n for n in done.events if n.reason == "CleanupFinished")
    assert (
        draft.message == "retained for another Pipeline: slot levada_data__shop, state, publication, destination tables"
    )


def test_what_belongs_to_another_is_left_alone() -> None:
    """A clean-up that met another Pipeline's property ends the deletion, and no SQL that drops it is printed."""
    said = (
        "error: the state belongs to Pipeline a/shop, and this is Pipeline data/shop [not_the_owner]\n  hint: rename\n"
    )
    ended = merge(ENDED, {"containerStatuses": [{"name": "cleanup", "state": {"terminated": {
        "exitCode": 1, "message": said}}}]})  # fmt: skip
    plan = reconcile(deleting(owned=STOPPED, pods=(pod("cleanup", "shop-cleanup-x", **ended),), jobs=(job(),)))
    assert plan.release
    (draft,) = (n for n in plan.events if n.reason == "CleanupAbandoned")
    assert "nothing was removed: the state belongs to Pipeline a/shop, and this is Pipeline data/shop" in draft.message
    assert "pg_drop_replication_slot" not in draft.message


def test_what_the_cleanup_kept_is_reported() -> None:
    """A clean-up without a proof that the slot is the Pipeline's keeps it and succeeds. The Event has its lines."""
    told = f"slot levada_data__shop: kept, because of no state. If nothing needs it: {SQL};\nownership: released"
    state = {"name": "cleanup", "state": {"terminated": {"exitCode": 0, "message": told}}}
    cleaned = pod("cleanup", "shop-cleanup-x", phase="Succeeded", containerStatuses=[state])
    plan = reconcile(deleting(owned=STOPPED, pods=(cleaned,), jobs=(job(succeeded=True),)))
    assert plan.release
    (draft,) = (n for n in plan.events if n.reason == "CleanupFinished")
    assert draft.message == "; ".join(told.splitlines())


def test_policy_changed_last_is_the_one_that_holds() -> None:
    """The Job reads the policy as it is when the Pipeline is deleted, not as it was when the driver started."""
    body = pipeline(spec={"deletionPolicy": {"publication": "Delete"}})
    plan = reconcile(deleting(body=body, owned=STOPPED, pods=()))
    assert [b["kind"] for b in plan.apply] == ["ConfigMap", "Job", "StatefulSet"]
    assert "publication: Delete" in plan.apply[0]["data"]["pipeline.yaml"]


def test_a_cleanup_that_no_node_takes_says_so() -> None:
    """In Ready, and after a minute in an Event. It is not given up, because a node may come."""
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}
    for age, said in ((30, False), (61, True)):
        body = merge(pod_body("cleanup", "shop-cleanup-x", phase="Pending", conditions=[scheduled]),
                     {"metadata": {"creationTimestamp": written(at(-age))}})  # fmt: skip
        plan = reconcile(deleting(owned=STOPPED, pods=(read_pod(body),), jobs=(job(),)))
        assert not plan.release
        assert ("CleanupWaiting" in [e.reason for e in plan.events]) is said
        ready = next(c for c in plan.statuses[0].status["conditions"] if c["type"] == "Ready")
        assert "the clean-up waits: no node takes the pod: 0/3 nodes" in ready["message"]
        assert "kubectl annotate pipeline shop -n data levada.dev/skip-cleanup=true" in ready["message"]
    over = reconcile(deleting(-601, owned=STOPPED, pods=(read_pod(body),), jobs=(job(),)))
    [abandoned] = [e.message for e in over.events if e.reason == "CleanupAbandoned"]
    assert "was not done within 600 s: no node takes the pod" in abandoned


def test_a_cleanup_whose_image_is_not_pulled_yet_says_so() -> None:
    """Ready names the cause while the pod waits, and so does the Event if the time is over within the first minute."""
    waiting = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
    pulling = pod("cleanup", "shop-cleanup-x", containerStatuses=[{"name": "cleanup", "state": waiting}])
    plan = reconcile(deleting(owned=STOPPED, pods=(pulling,), jobs=(job(),)))
    ready = next(c for c in plan.statuses[0].status["conditions"] if c["type"] == "Ready")
    assert ready["message"].startswith("the clean-up waits: no such image; check spec.driver.image")
    stopping = reconcile(deleting()).statuses[0].status["conditions"]
    assert next(c["message"] for c in stopping if c["type"] == "Ready") == "the driver is being stopped"
    brief = pipeline(spec={"deletionPolicy": {"cleanupTimeoutSeconds": 30}})
    young = replace(pulling, created=at(-5))
    over = reconcile(deleting(-31, body=brief, owned=STOPPED, pods=(young,), jobs=(job(),)))
    [abandoned] = [e.message for e in over.events if e.reason == "CleanupAbandoned"]
    assert "was not done within 30 s: no such image" in abandoned


def test_sql_stands_once() -> None:
    """A clean-up whose error has the SQL that drops the slot is not followed by the same SQL."""
    failed = pod("cleanup", "shop-cleanup-x", **ended(f"error: in use; {SQL} [slot_in_use]"))
    plan = reconcile(deleting(owned=STOPPED, pods=(failed,), jobs=(job(failed=True),)))
    [abandoned] = [e.message for e in plan.events if e.reason == "CleanupAbandoned"]
    assert abandoned.count(SQL) == 1


def test_sql_is_not_cut_off() -> None:
    """However long the error of a clean-up is, the SQL and the annotation are in what an Event has room for."""
    failed = pod("cleanup", "shop-cleanup-x", **ended(f"error: {'no route ' * 300} [source_unreachable]"))
    plan = reconcile(deleting(owned=STOPPED, pods=(failed,), jobs=(job(failed=True),)))
    [abandoned] = [e.message for e in plan.events if e.reason == "CleanupAbandoned"]
    assert SQL in abandoned[:1024]
    assert "levada.dev/take-over-from=uid-shop" in abandoned[:1024]


def test_what_may_be_left_is_listed() -> None:
    """A clean-up that is given up is listed, except where nothing was due to be removed, or another one owns it all."""
    failed = {"owned": STOPPED, "pods": (), "jobs": (job(failed=True),)}
    assert SQL in reconcile(deleting(**failed)).abandoned
    retains = dict.fromkeys(("slot", "state", "publication", "destinationTables"), "Retain")
    kept = deleting(**failed | {"body": pipeline(spec={"deletionPolicy": retains})})
    assert reconcile(kept).release
    assert not reconcile(kept).abandoned
    others = pod("cleanup", "shop-cleanup-x", **ended("error: the state belongs to a/shop [not_the_owner]"))
    assert not reconcile(deleting(owned=STOPPED, pods=(others,), jobs=(job(),))).abandoned


def test_what_the_driver_cleaned_up_is_not_listed() -> None:
    """In a namespace that is being deleted the driver cleans up when it ends, and its status has what it removed."""
    body = pipeline(status={"cleanup": "slot levada_data__shop: dropped"})
    assert not reconcile(deleting(body=body, owned=STOPPED)).release
    terminating = (Refusal(ObjectKey("Job", "shop-cleanup"), "no", namespace_terminating=True),)
    plan = reconcile(deleting(body=body, owned=STOPPED, pods=(), refusals=terminating))
    assert (plan.release, plan.abandoned) == (True, "")
    (draft,) = plan.events
    assert (draft.reason, draft.message) == ("CleanupFinished", "by the driver: slot levada_data__shop: dropped")


def test_what_is_left_of_a_pipeline_whose_finalizer_was_removed() -> None:
    """It is listed with the SQL, unless its policy removes nothing, it never ran, or its clean-up Job succeeded."""
    seen = deleting(pods=())
    assert SQL in left_without_finalizer(seen)
    assert "finalizer was removed by hand" in left_without_finalizer(seen)
    assert left_without_finalizer(replace(seen, jobs=(job(),)))
    assert not left_without_finalizer(replace(seen, jobs=(job(succeeded=True),)))
    reported = left_without_finalizer(deleting(body=pipeline(status={"cleanup": "slot: dropped"}), owned=seen.owned))
    assert SQL in reported
    assert reported.endswith("its status.cleanup has: slot: dropped")
    assert not left_without_finalizer(deleting(body=pipeline(status={}), owned=OwnedObjects()))
