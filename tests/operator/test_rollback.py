"""Rollback: a change whose pod does not become Ready goes back to the last spec whose pod did."""

from __future__ import annotations

import base64
import bz2
import json
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.kstatus import kstatus, waited_for
from tests.operator.samples import at, error_document, merge, waiting, written
from tests.operator.world import DRIVER, World

from levada_operator.decide.reconcile import reconcile
from levada_operator.names import CHANGED_AT, PAUSED, READY, READY_SPEC, REJECTED
from levada_operator.observe.objects import ObjectKey

OLD, BAD, FIXED = "levada:1", "levada:none", "levada:2"
NO_IMAGE = waiting("driver", "ImagePullBackOff", "no such image")
AWAY = waiting("preflight", "CrashLoopBackOff", exitCode=1, message="error: cannot connect [source_unreachable]")
NO_START = waiting("preflight", "CrashLoopBackOff", exitCode=1, message="error: it is minimal [wal_level_not_logical]")
CRASHES = waiting("driver", "CrashLoopBackOff", exitCode=1, message="error: no place is left [work_folder_full]")
NO_NODE = {
    "phase": "Pending",
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}],
}
DEADLINE = 900


def changed(world: World, status: dict[str, Any] | None = None, **spec: Any) -> World:
    """Change the spec, and let its pod fail with that status."""
    world.edit(**spec or {"driver": {"image": BAD}})
    world.passes(2)
    world.replaces()
    world.fails(**NO_IMAGE if status is None else status)
    world.passes(2)
    return world


def rolled_back(world: World) -> World:
    """Let the deadline pass, and let the former spec's pod become Ready."""
    world.later(DEADLINE + 1)
    world.passes(2)
    assert world.condition("Accepted")["reason"] == "RolledBack"
    world.replaces()
    world.ready()
    world.reads()
    world.passes(2)
    return world


def days_pass(world: World) -> None:
    """Let days pass, in which the operator often reconciles."""
    for _ in range(5):
        world.later(50_000)
        world.passes(2)


def events(world: World, reason: str) -> list[str]:
    """Return the messages of the Events of that reason."""
    return [event.message for plan in world.plans for event in plan.events if event.reason == reason]


def text(world: World) -> str:
    """Return the manifest that the driver reads."""
    return str(world.store.owned[ObjectKey("ConfigMap", "shop-manifest")]["data"]["pipeline.yaml"])


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        (NO_IMAGE, "ImagePullFailed: no such image"),
        (NO_NODE, "Unschedulable: no node takes the pod: 0/1 nodes"),
        (NO_START, "PreflightFailed: it is minimal"),
        (CRASHES, "CrashLooping: no place is left"),
        ({"conditions": [{"type": "Ready", "status": "False"}]}, "Starting: pod shop-driver-0 is not ready yet"),
    ],
    ids=["image", "node", "preflight", "crash", "not ready"],
)
def test_goes_back_and_stays(status: dict[str, Any], cause: str) -> None:
    """After the deadline the former spec runs again. The change is Failed with its cause, and is not tried again."""
    world = changed(World(), status)
    world.later(DEADLINE - 100)
    world.passes(2)
    assert (world.image, kstatus(world.store.pipeline)) == (BAD, "InProgress")
    rolled_back(world)
    refused = world.condition("Accepted")
    assert f"spec.driver.image: the driver was not ready within 900 s: {cause}" in refused["message"]
    assert (world.image, refused["status"]) == (OLD, "False")
    assert (len(events(world, "RolledBack")), len(events(world, "SpecChanged"))) == (1, 1)
    ready = world.condition("Ready")
    assert (ready["status"], ready["reason"], ready["observedGeneration"]) == ("True", "Streaming", 1)
    assert not waited_for(world.store.pipeline)
    world.store.applied.clear()
    days_pass(world)
    assert (world.store.applied, world.image, kstatus(world.store.pipeline)) == ([], OLD, "Failed")
    assert world.condition("Stalled")["reason"] == "RolledBack"


def test_source_that_is_away_breaks_no_change() -> None:
    """While it is away nothing goes back. Once the preflight has passed, the pod has the whole deadline."""
    world = changed(World(), AWAY)
    days_pass(world)
    assert (world.image, world.condition("Accepted")["status"], world.condition("Stalled")["status"]) == (
        BAD, "True", "True")  # fmt: skip
    passed = {"name": "preflight", "restartCount": 90, "state": {"terminated": {
        "exitCode": 0, "finishedAt": written(at(world.seconds))}}}  # fmt: skip
    world.fails(initContainerStatuses=[passed], conditions=[{"type": "Ready", "status": "False"}])
    world.later(DEADLINE - 10)
    world.passes(2)
    assert (world.image, world.condition("Accepted")["status"]) == (BAD, "True")
    rolled_back(world)
    assert world.image == OLD


def test_source_that_goes_away_before_the_driver_is_ready() -> None:
    """The driver that waits for it does not go back, nor in the moment between its connection and its readiness."""
    world = changed(World(), {"conditions": [{"type": "Ready", "status": "False"}]})
    world.later(DEADLINE + 1)
    world.reports(capture={"connected": False, "error": error_document(code="source_unreachable")})
    world.passes(2)
    assert world.image == BAD
    world.later(10_000)
    world.reports()
    world.passes(2)
    world.later(30)
    world.passes(2)
    assert world.image == BAD
    world.ready()
    world.reads()
    world.passes(2)
    assert (kstatus(world.store.pipeline), world.image) == ("Current", BAD)


@pytest.mark.parametrize(
    "change",
    [{"source": {"host": "nowhere"}}, {"driver": {"podTemplate": {"spec": {"dnsPolicy": "None"}}}}],
    ids=["host", "template"],
)
def test_change_of_the_way_to_the_source_goes_back(change: dict[str, Any]) -> None:
    """A source that cannot be reached may be the fault of the address, or of the pod's network."""
    world = changed(World(), AWAY, **change)
    rolled_back(world)
    assert "cannot connect" in world.condition("Accepted")["message"]


def test_is_at_no_moment_current() -> None:
    """From the change to the end of the rollback no tool takes the Pipeline for ready."""
    world = changed(World())
    seen = {kstatus(world.store.pipeline)}
    for step in (World.passes, World.sees, World.passes, World.end, World.passes, World.start, World.passes,
                 World.ready, World.passes, World.reads, World.passes):  # fmt: skip
        world.later(DEADLINE // 2)
        step(world)
        seen.add(kstatus(world.store.pipeline))
        assert not waited_for(world.store.pipeline)
    assert (seen, world.image) == ({"InProgress", "Failed"}, OLD)


def test_pod_that_is_never_created_goes_back() -> None:
    """A change whose pod the controller cannot create goes back too."""
    world = changed(World())
    world.end()
    world.later(DEADLINE)
    world.passes(2)
    assert world.image == OLD


def test_restart_nonce_tries_again() -> None:
    """The command in the message tries the same values again. Once they run, nothing is left of the rollback."""
    world = rolled_back(changed(World()))
    command = world.condition("Accepted")["message"]
    assert """kubectl patch pipeline shop -n data --type=merge -p '{"spec": {"restartNonce": 1}}'""" in command
    world.edit(restartNonce=1)
    world.passes(2)
    assert (world.image, world.condition("Accepted")["status"]) == (BAD, "True")
    world.replaces()
    world.ready()
    world.reads()
    world.passes(2)
    assert (kstatus(world.store.pipeline), waited_for(world.store.pipeline)) == ("Current", True)
    assert not {REJECTED, READY_SPEC, CHANGED_AT} & world.annotations.keys()


def test_second_rollback_names_another_nonce() -> None:
    """A change that was tried again and went back again has a command that tries it once more."""
    world = rolled_back(changed(World()))
    rolled_back(changed(world, restartNonce=1))
    assert '{"spec": {"restartNonce": 2}}' in world.condition("Accepted")["message"]
    assert len(events(world, "RolledBack")) == 2


def test_other_fields_still_take_effect() -> None:
    """While a change is rolled back, other fields take effect without another try."""
    world = rolled_back(changed(World()))
    world.edit(freshnessSeconds=77, suspend=False)
    world.passes(2)
    assert (world.image, "freshnessSeconds: 77" in text(world)) == (OLD, True)
    assert world.condition("Accepted")["reason"] == "RolledBack"
    assert events(world, "SpecChanged")[-1] == "Hot: spec.freshnessSeconds"


def test_user_sets_the_change_back() -> None:
    """A change that the user sets back restarts nothing, and the Pipeline is Current."""
    world = rolled_back(changed(World()))
    world.edit(driver=None)
    pod = world.store.seen.pods
    world.passes(2)
    assert (kstatus(world.store.pipeline), world.image) == ("Current", OLD)
    assert (world.store.seen.pods, REJECTED in world.annotations) == (pod, False)


def test_correction_before_the_deadline_has_all_of_it() -> None:
    """Another change before the deadline is tried for as long. The spec to go back to is still the one that ran."""
    world = changed(World())
    world.later(DEADLINE - 50)
    world.passes(2)
    changed(world, driver={"image": "levada:wrong"})
    world.later(DEADLINE - 100)
    world.passes(2)
    assert world.image == "levada:wrong"
    rolled_back(world)
    assert world.image == OLD


def test_edit_during_the_rollback_is_tried() -> None:
    """A change made while the former spec's pod starts is tried, and goes back to that spec too."""
    world = changed(World())
    world.later(DEADLINE + 1)
    world.passes(2)
    world.edit(driver={"image": FIXED})
    world.passes(2)
    assert (world.image, world.condition("Accepted")["status"]) == (FIXED, "True")
    world.replaces()
    world.fails(**NO_IMAGE)
    assert rolled_back(world).image == OLD


def test_former_spec_that_fails_too_stays() -> None:
    """If the former spec's pod does not become Ready either, nothing is changed any more, and Ready has its cause."""
    world = changed(World())
    world.later(DEADLINE + 1)
    world.passes(2)
    world.replaces()
    world.fails(**CRASHES)
    world.passes(2)
    world.store.applied.clear()
    days_pass(world)
    assert ([k for k in world.store.applied if k.kind != "Job"], world.image) == ([], OLD)
    assert "no place is left" in world.condition("Ready")["message"]
    assert kstatus(world.store.pipeline) == "Failed"


def test_first_spec_has_nothing_to_go_back_to() -> None:
    """A Pipeline none of whose pods was ever Ready keeps its newest spec."""
    world = World()
    del world.store.owned[DRIVER]["metadata"]["annotations"][READY]
    world.end()
    changed(world)
    days_pass(world)
    assert (world.image, world.condition("Accepted")["status"]) == (BAD, "True")
    assert READY_SPEC not in world.annotations


def test_policy_none_keeps_the_change() -> None:
    """With rollback None the change stays. Set after a rollback, it applies the change again."""
    world = changed(World(), rollback="None", driver={"image": BAD})
    days_pass(world)
    assert (world.image, world.condition("Stalled")["reason"]) == (BAD, "ImagePullFailed")
    world = rolled_back(changed(World()))
    world.edit(rollback="None")
    world.passes(2)
    assert (world.image, REJECTED in world.annotations) == (BAD, False)


def test_pod_that_breaks_without_a_change_keeps_its_spec() -> None:
    """If a Secret changes and the pod restarts broken, no spec goes back. Stalled has the cause."""
    world = World()
    world.fails(**NO_START)
    world.passes(2)
    world.store.applied.clear()
    days_pass(world)
    assert [k for k in world.store.applied if k.kind != "Job"] == []
    assert (world.condition("Accepted")["status"], world.condition("Stalled")["reason"]) == ("True", "PreflightFailed")


def test_suspended_pipeline_is_given_its_time_when_it_resumes() -> None:
    """The deadline of a change that is made while a Pipeline is suspended begins when it resumes."""
    world = World()
    world.edit(suspend=True, driver={"image": BAD})
    world.passes(2)
    world.sees()
    world.end()
    days_pass(world)
    assert world.condition("Accepted")["status"] == "True"
    world.edit(suspend=False)
    world.passes(2)
    world.replaces()
    world.fails(**NO_IMAGE)
    world.later(DEADLINE - 100)
    world.passes(2)
    assert world.image == BAD
    assert rolled_back(world).image == OLD


def test_suspension_ends_no_rollback() -> None:
    """A rolled-back Pipeline that is suspended and resumed runs the former spec."""
    world = rolled_back(changed(World()))
    for suspend in (True, False):
        world.edit(suspend=suspend)
        world.passes(2)
        world.sees()
        days_pass(world)
    assert (world.image, world.condition("Accepted")["reason"]) == (OLD, "RolledBack")


@pytest.mark.parametrize("only", range(3))
def test_operator_ends_in_the_middle(only: int) -> None:
    """An operator that ends after a part of the writes of a change or of a rollback leaves both as good as whole."""
    world = World()
    world.edit(driver={"image": BAD})
    world.passes(1, only)
    changed(world)
    world.later(DEADLINE + 1)
    world.passes(1, only)
    rolled_back(world)
    assert (world.image, len(events(world, "RolledBack")) > 0) == (OLD, True)
    days_pass(world)
    assert world.image == OLD


def test_former_pod_that_does_not_end_proves_nothing() -> None:
    """While the former pod ends, the change was not tried. Its pod has the whole deadline after that."""
    world = World()
    world.edit(driver={"image": BAD})
    world.passes(2)
    world.sees()
    days_pass(world)
    assert world.image == BAD
    world.replaces()
    world.fails(**NO_IMAGE)
    world.later(DEADLINE - 100)
    world.passes(2)
    assert world.image == BAD
    assert rolled_back(world).image == OLD


def test_drain_of_the_former_pod_costs_the_next_one_no_time() -> None:
    """The former pod's last batch does not count, and the pods that follow the first one have no more time."""
    world = World()
    world.edit(driver={"image": BAD})
    world.passes(2)
    world.later(290)
    world.replaces()
    world.fails(**NO_IMAGE)
    world.later(DEADLINE - 30)
    world.passes(2)
    assert world.image == BAD
    world.start()
    world.fails(**NO_IMAGE)
    world.later(100)
    world.passes(2)
    assert world.image == OLD


def test_pod_that_was_ready_while_no_operator_watched() -> None:
    """A change whose pod was Ready while the operator was away stays, also if the pod is not Ready now."""
    world = changed(World(), {})
    fell = {"type": "Ready", "status": "False", "lastTransitionTime": written(at(world.created + 400))}
    world.fails(startTime=written(at(world.created + 2)), conditions=[fell])
    days_pass(world)
    assert (world.image, READY_SPEC in world.annotations) == (BAD, False)
    world = changed(World(), {})
    never = fell | {"lastTransitionTime": written(at(world.created + 2))}
    world.fails(startTime=written(at(world.created + 2)), conditions=[never])
    assert rolled_back(world).image == OLD


def test_deadline_passes_while_no_operator_watches() -> None:
    """An operator that returns after the deadline goes back without waiting, unless the pod is a new one."""
    world = changed(World())
    world.later(100_000)
    world.passes()
    assert world.image == OLD
    world = changed(World())
    world.later(100_000)
    world.start()
    world.fails(**NO_IMAGE)
    world.later(DEADLINE - 100)
    world.passes(2)
    assert world.image == BAD
    assert rolled_back(world).image == OLD


@pytest.mark.parametrize("began", [False, True])
def test_what_the_engine_may_have_begun_stays(began: bool) -> None:
    """Tables never go back. What else an engine with the change may have begun stays if its container ran."""
    spec = {
        "driver": {"image": BAD},
        "source": {"host": "other.pg.svc", "credentialsSecretRef": {"name": "other"}},
        "tables": {"include": [{"schema": "sales"}]},
        "onUnrepresentable": "Text",
    }
    world = rolled_back(changed(World(), CRASHES if began else NO_START, **spec))
    kept = text(world)
    assert ("schema: sales" in kept, "onUnrepresentable: Text" in kept) == (True, True)
    assert (world.image, "name: shop-cdc" in kept, "host: shop-rw.pg.svc" in kept) == (OLD, True, not began)
    assert ("spec.source.host" in world.condition("Accepted")["message"]) is not began
    days_pass(world)
    assert world.condition("Accepted")["reason"] == "RolledBack"


def test_change_of_data_alone_stalls() -> None:
    """A change that has nothing to go back to stays, and is Failed with its cause."""
    world = changed(World(), CRASHES, onUnrepresentable="Text")
    days_pass(world)
    assert "onUnrepresentable: Text" in text(world)
    assert (world.condition("Accepted")["status"], world.condition("Stalled")["reason"]) == ("True", "CrashLooping")


def test_mixture_that_breaks_a_rule_is_not_made() -> None:
    """Former values that do not fit the fields that stay are not taken."""
    world = changed(World(), CRASHES, driver={"image": BAD})
    record = yaml_of(world).replace("mode: Local", "mode: Elsewhere")
    packed = base64.b64encode(bz2.compress(record.encode())).decode()
    world.store.owned[DRIVER]["metadata"]["annotations"][READY_SPEC] = packed
    days_pass(world)
    assert world.image == BAD


def yaml_of(world: World) -> str:
    """Return the Pipeline that is kept."""
    return bz2.decompress(base64.b64decode(world.annotations[READY_SPEC])).decode()


@pytest.mark.parametrize(
    "odd",
    [
        {READY_SPEC: "?"},
        {READY_SPEC: base64.b64encode(bz2.compress(bytes(1 << 24))).decode()},
        {READY_SPEC: "A" * 60_000},
        {CHANGED_AT: "yesterday"},
        {CHANGED_AT: "9999-12-31T23:59:59Z"},
        {REJECTED: "{" * 5000},
        {REJECTED: "[]"},
        {REJECTED: json.dumps({"digest": "1", "reason": "x" * 100_000})},
        {READY: "?"},
    ],
    ids=["record", "bomb", "large", "word", "future", "nesting", "list", "reason", "digest"],
)
def test_record_that_was_changed_by_hand(odd: dict[str, str]) -> None:
    """Whatever is written into the annotations, the Pipeline is reconciled and one of its own specs runs."""
    world = changed(World())
    world.store.owned[DRIVER]["metadata"]["annotations"] |= odd
    days_pass(world)
    assert world.image in (OLD, BAD)


def test_invalid_spec_during_the_trial() -> None:
    """A refused edit is reported, and the change that runs goes back all the same."""
    world = changed(World())
    world.edit(batch={"maxFillMs": -1})
    world.later(DEADLINE + 1)
    world.passes(2)
    assert (world.image, world.condition("Accepted")["reason"]) == (OLD, "InvalidSpec")
    world.edit(batch=None)
    world.passes(2)
    assert (world.image, world.condition("Accepted")["reason"]) == (OLD, "RolledBack")


def test_paused_pipeline_stays_as_it_is() -> None:
    """The operator rolls back nothing of a paused Pipeline. It does at the end of the pause."""
    world = changed(World())
    world.store.pipeline = merge(world.store.pipeline, {"metadata": {"annotations": {PAUSED: "true"}}})
    days_pass(world)
    assert world.image == BAD
    world.store.pipeline = merge(world.store.pipeline, {"metadata": {"annotations": {PAUSED: None}}})
    world.passes(2)
    assert world.image == OLD


def test_cleanup_has_the_image_that_ran() -> None:
    """The clean-up of a Pipeline whose change was rolled back has the former image."""
    world = rolled_back(changed(World()))
    deleted = {"metadata": {"deletionTimestamp": written(at(world.seconds))}}
    world.store.pipeline = merge(world.store.pipeline, deleted)
    world.passes(2)
    world.end()
    plan = reconcile(replace(world.store.observe(), pods=()))
    (job,) = (body for body in plan.apply if body["kind"] == "Job")
    assert job["spec"]["template"]["spec"]["containers"][0]["image"] == OLD
