"""Jobs that must not fail with a broken change run with the image and the pod template that ran last."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.cluster import PlanStore
from tests.operator.samples import at, merge, pipeline, pod, pod_body, progress, running, table_sync, waiting, written

from levada_operator.decide.acceptance import accept
from levada_operator.decide.reconcile import reconcile
from levada_operator.decide.slot import lag_turn, slot_sample
from levada_operator.names import READY_IMAGE, READY_SPEC
from levada_operator.observe.objects import ObjectKey
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import PodState, read_pod

DRIVER = ObjectKey("StatefulSet", "shop-driver")
ZONE = {"spec": {"nodeSelector": {"zone": "a"}}}
BROKEN: dict[str, Any] = {"image": "nowhere:1", "podTemplate": {"spec": {"nodeSelector": {"zone": "none"}}}}
REFUSED = 'error: password authentication failed for user "levada" [source_auth_failed]'


def changed(driver: dict[str, Any], *, suspend: bool = False) -> dict[str, Any]:
    """Return the Pipeline with that section of the driver. Its slot was sampled before."""
    body = pipeline(spec={"suspend": suspend}, status={"slot": {"sampledAt": written(at(-3000))}})
    return merge(body, {"spec": {"driver": driver}})


def streaming() -> PlanStore:
    """Return a Pipeline that streams with an image and a pod template of its own."""
    store = PlanStore(running(), changed({"image": "good:1", "podTemplate": ZONE}), [table_sync()])
    store.carry_out(reconcile(store.observe()))
    store.carry_out(reconcile(store.observe()))
    assert annotations(store)[READY_IMAGE] == "good:1"
    return store


def annotations(store: PlanStore) -> dict[str, str]:
    """Return the annotations of the driver's StatefulSet."""
    found: dict[str, str] = store.owned[DRIVER]["metadata"]["annotations"]
    return found


def job(seen: Observed, role: str = "lag") -> tuple[str, dict[str, Any]]:
    """Return the image and the node selector of the Job that is due."""
    jobs = (b for b in reconcile(seen).apply if b["metadata"]["labels"]["levada.dev/role"] == role)
    spec = next(jobs)["spec"]["template"]["spec"]
    return spec["containers"][0]["image"], spec["nodeSelector"]


def down() -> PodState:
    """Return the pod of an image that cannot be pulled."""
    return pod(**waiting("driver", "ErrImagePull"))


def test_lag_is_sampled_with_what_ran_last() -> None:
    """After a broken change, and after another one, until the driver is Ready again."""
    store = streaming()
    for turn, image in enumerate(("nowhere:1", "nowhere:2")):
        store.pipeline = changed({**BROKEN, "image": image})
        store.carry_out(reconcile(store.observe()))
        # The StatefulSet's status is older than its spec, as in the answer of the API server.
        store.owned[DRIVER] |= {"status": {"observedGeneration": 0}}
        store.owned[DRIVER]["metadata"]["generation"] = 1
        assert job(store.observe(pods=(down(),), report=None, now=at(600 * turn))) == ("good:1", {"zone": "a"})
    store.owned[DRIVER] |= {"status": {}}
    store.carry_out(reconcile(store.observe(pods=(pod(),), report=progress())))
    assert READY_SPEC not in annotations(store)
    assert job(store.observe(pods=(down(),), report=None, now=at(1800)))[0] == "nowhere:2"


def test_suspended_pipeline_is_sampled_with_what_ran_last() -> None:
    """A change that is made while no driver runs has not run either."""
    store = streaming()
    store.pipeline = changed({"image": "good:1", "podTemplate": ZONE}, suspend=True)
    store.carry_out(reconcile(store.observe()))
    store.pipeline = changed(BROKEN, suspend=True)
    store.carry_out(reconcile(store.observe(pods=(), report=None)))
    assert job(store.observe(now=at(400))) == ("good:1", {"zone": "a"})


def test_clean_up_runs_with_what_ran_last() -> None:
    """A Pipeline that is deleted after a broken change is cleaned up."""
    store = streaming()
    store.pipeline = changed(BROKEN)
    store.carry_out(reconcile(store.observe()))
    store.pipeline["metadata"]["deletionTimestamp"] = written(at(60))
    store.carry_out(reconcile(store.observe(pods=(down(),), report=None, now=at(60))))
    assert store.owned[DRIVER]["spec"]["replicas"] == 0
    assert job(store.observe(pods=(), now=at(61)), "cleanup") == ("good:1", {"zone": "a"})


def test_upgrade_of_the_operator_to_a_broken_image() -> None:
    """The image of drivers is no part of the spec then. The slot is sampled with the one that ran last all the same."""
    store = PlanStore(running(), changed({"podTemplate": ZONE}), [table_sync()])
    for _ in range(2):
        store.carry_out(reconcile(store.observe()))
    ran = store.seen.defaults.image
    broken = replace(store.seen.defaults, image="nowhere:1")
    store.carry_out(reconcile(store.observe(defaults=broken)))
    assert "nowhere:1" in str(store.owned[DRIVER]["spec"])
    assert job(store.observe(pods=(down(),), report=None, now=at(600))) == (ran, {"zone": "a"})


@pytest.mark.parametrize("record", ["x", "QlpoOTFBWQ==", "A" * 60_000])
def test_record_that_was_changed_by_hand_does_not_count(record: str) -> None:
    """Anybody with rights over StatefulSets can write the annotation. The newest template is used then."""
    store = streaming()
    store.pipeline = changed(BROKEN)
    store.carry_out(reconcile(store.observe()))
    annotations(store)[READY_SPEC] = record
    assert job(store.observe(pods=(down(),), report=None)) == ("good:1", {"zone": "none"})


def test_record_has_a_limit() -> None:
    """A template that is too large for an annotation is not kept. The image is."""
    large = {"metadata": {"annotations": {f"k{n}": f"{hash((n, 'a'))}" for n in range(5000)}}, **ZONE}
    store = PlanStore(running(), changed({"image": "good:1", "podTemplate": large}), [table_sync()])
    for _ in range(2):
        store.carry_out(reconcile(store.observe()))
    store.pipeline = changed(BROKEN)
    store.carry_out(reconcile(store.observe()))
    assert READY_SPEC not in annotations(store)
    assert job(store.observe(pods=(down(),), report=None)) == ("good:1", {"zone": "none"})


def failed_probe(made: float) -> PodState:
    """Return the pod of a Job whose login was refused."""
    state = {"name": "lag", "state": {"terminated": {"exitCode": 1, "message": REFUSED}}}
    body = pod_body("lag", "shop-lag-1-x", phase="Failed", containerStatuses=[state])
    return read_pod(merge(body, {"metadata": {"creationTimestamp": written(at(made))}}))


def test_failure_before_the_secret_changed_counts_no_more() -> None:
    """Once the driver's preflight has logged in, a Job's refused login is past. A later one counts."""
    passed = {"name": "preflight", "state": {"terminated": {"exitCode": 0, "finishedAt": written(at(-60))}}}
    starting = pod(conditions=[{"type": "Ready", "status": "False"}], initContainerStatuses=[passed])
    for made, counts in ((-120, False), (-30, True)):
        seen = running(pods=(starting, failed_probe(made)), report=None)
        sample = slot_sample(seen)
        assert bool(sample is not None and sample.failure) is counts
        reachable = next(c for c in reconcile(seen).statuses[0].status["conditions"] if c["type"] == "SourceReachable")
        assert reachable["status"] == ("False" if counts else "Unknown")


def test_refused_login_is_tried_again_within_a_minute() -> None:
    """The operator does not read Secrets, so only another Job finds a corrected one."""
    body = pipeline(spec={"suspend": True})
    seen = running(body=body, pods=(failed_probe(-70),), report=None)
    accepted = accept(seen).manifests
    assert accepted is not None
    assert lag_turn(seen, accepted) == int(at(0).timestamp()) // 60
