"""A Pipeline's conditions and its phase: tables of what is observed, with the reasons and the Events of each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.decisions import SUSPENDED, conditions, creation_failure, phase
from tests.operator.samples import (
    at,
    error_document,
    merge,
    observed,
    pipeline,
    pod,
    pod_body,
    progress,
    running,
    table_document,
    waiting,
    written,
)

from levada_operator.decide.conditions import PIPELINE_REASONS, TABLE_SYNC_REASONS, Condition
from levada_operator.decide.events import EVENT_REASONS, transitions
from levada_operator.decide.reconcile import reconcile
from levada_operator.observe.objects import ObjectKey, OwnedObjects, Refusal
from levada_operator.observe.observed import Observed
from levada_operator.observe.pods import read_pod

CASES: dict[str, tuple[Observed, str, str, str]] = {
    "streams": (running(), "Streaming", "True", "Streaming"),
    "copies": (running(report=progress(table_document(phase="DataSync"))), "Copying", "False", "InitialCopy"),
    "catches up": (running(report=progress(table_document(phase="Catchup"))), "Copying", "False", "InitialCopy"),
    "a table waits": (
        running(report=progress(table_document(phase="Errored", error=error_document()))),
        "Degraded",
        "False",
        "TablesErrored",
    ),
    "no news": (running(report=progress(fetched=-61)), "Stale", "Unknown", "ProgressStale"),
    "never any news, and ready": (running(report=None), "Stale", "Unknown", "ProgressStale"),
    "no progress": (running(moved_at=at(-901)), "Degraded", "False", "NoProgress"),
    "idle": (running(moved_at=at(-9000), report=progress(slot={"lagBytes": 0})), "Streaming", "True", "Streaming"),
    "new": (observed(), "Starting", "False", "DriverNotReady"),
    "disconnected": (
        running(report=progress(capture={"connected": False, "error": error_document()})),
        "Degraded",
        "False",
        "SourceUnreachable",
    ),
    "opens its stream": (
        running(report=progress(capture={"connected": False})),
        "Starting",
        "False",
        "DriverNotReady",
    ),
    "slot lost": (running(report=progress(slot={"walStatus": "lost"})), "Failed", "False", "SlotUnhealthy"),
    "slot unreserved": (
        running(report=progress(slot={"walStatus": "unreserved"})),
        "Failed",
        "False",
        "SlotUnhealthy",
    ),
    "engine failed": (
        running(report=progress(state="Failed", error=error_document(code="stale_epoch"))),
        "Failed",
        "False",
        "Stopped",
    ),
    "draining": (running(body=SUSPENDED), "Suspending", "False", "Suspended"),
    "drained": (running(body=SUSPENDED, pods=()), "Suspended", "False", "Suspended"),
    "never accepted": (observed(pipeline(spec={"store": {}})), "Failed", "False", "NotAccepted"),
    "refused, but runs": (running(body=pipeline(spec={"store": {}})), "Streaming", "True", "Streaming"),
    "being deleted": (
        running(body=pipeline(metadata={"deletionTimestamp": written(at(-5))})),
        "Deleting",
        "False",
        "Deleting",
    ),
    "cannot be scheduled": (
        running(report=None, pods=(pod(phase="Pending", conditions=[
            {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}]),)),
        "Pending", "False", "DriverNotReady",
    ),
    "crashes": (
        running(report=None, pods=(pod(**waiting("driver", "CrashLoopBackOff", exitCode=1, message="boom")),)),
        "Failed", "False", "DriverNotReady",
    ),
    "refused by the cluster": (
        observed(refusals=(Refusal(ObjectKey("StatefulSet", "shop-driver"), "quota"),)),
        "Failed", "False", "DriverNotReady",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_phase_and_readiness(name: str) -> None:
    """The printed phase and the readiness follow from the conditions alone."""
    seen, expected, status, reason = CASES[name]
    ready = conditions(seen)["Ready"]
    assert (phase(seen), "Unknown" if ready.status is None else str(ready.status), ready.reason) == (
        expected,
        status,
        reason,
    )


@pytest.mark.parametrize("name", CASES)
def test_reasons_are_of_the_closed_lists(name: str) -> None:
    """The conditions are in a fixed order, with reasons of their lists. Each Event has a reason of its list, too."""
    seen = CASES[name][0]
    plan = reconcile(seen)
    told = conditions(seen)
    assert list(told) == list(PIPELINE_REASONS)
    assert all(c.reason in PIPELINE_REASONS[type_] for type_, c in told.items())
    assert all(n.reason in EVENT_REASONS for n in plan.events)
    for write in plan.statuses:
        lists = PIPELINE_REASONS if write.key.kind == "Pipeline" else TABLE_SYNC_REASONS
        assert all(c["reason"] in lists[c["type"]] for c in write.status["conditions"])
        printed = write.status["display"]
        assert all(isinstance(text, str) for text in printed.values())


TROUBLES: dict[str, tuple[dict[str, Any], str, str]] = {
    "killed for memory": (
        waiting("driver", "CrashLoopBackOff", exitCode=137, reason="OOMKilled"), "OutOfMemory", "memory"),
    "claim is missing": (
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                             "message": 'persistentvolumeclaim "shop-staging" not found'}]},
        "Unschedulable", "kubectl describe pvc -n data"),
    "node is cordoned": (
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                             "message": "0/1 nodes are available: 1 node(s) were unschedulable."}]},
        "Unschedulable", "unschedulable.; let pods on a cordoned node again: kubectl uncordon NODE"),
    "node is tainted": (
        {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable",
                                             "message": "1 node(s) had untolerated taint {a: b}, 2 Insufficient cpu"}]},
        "Unschedulable", "or add a node, or tolerate the taint in spec.driver.podTemplate"),
    "image is missing": (
        waiting("driver", "ImagePullBackOff", "no such image"), "ImagePullFailed", "spec.driver.image"),
    "secret key is missing": (
        waiting("driver", "CreateContainerConfigError", 'secret "x" not found'), "SecretMissing", "not found"),
    "config is missing": (
        waiting("driver", "CreateContainerConfigError", 'configmap "x" not found'), "ConfigMissing", "not found"),
    "preflight": (
        waiting("preflight", "CrashLoopBackOff", exitCode=3, message=(
            "error: wal_level is replica: changes cannot be decoded [wal_level_not_logical]\n"
            "  hint: ALTER SYSTEM SET wal_level = 'logical'\n")),
        "PreflightFailed", "ALTER SYSTEM SET wal_level = 'logical' [wal_level_not_logical]"),
    "secret is missing": (
        waiting("preflight", "CrashLoopBackOff", exitCode=1, message=(
            "error: Secret shop-cdc has no key username [secret_missing]\n  hint: write it\n")),
        "SecretMissing", "shop-cdc"),
    "preflight between two attempts": (
        {"phase": "Pending", "conditions": [], "initContainerStatuses": [{"name": "preflight", "state": {
            "terminated": {"exitCode": 3, "message": "error: no [source_auth_failed]"}}}]},
        "PreflightFailed", "source_auth_failed"),
    "evicted": ({"phase": "Failed", "reason": "Evicted", "message": "low on memory", "conditions": []},
                "Evicted", "low on memory"),
}  # fmt: skip


@pytest.mark.parametrize("name", TROUBLES)
def test_trouble_of_the_pod_has_a_reason_and_a_way_out(name: str) -> None:
    """Each way in which a pod fails has a reason of its own, a message with the remedy, and an Event."""
    status, reason, text = TROUBLES[name]
    seen = running(report=None, pods=(pod(**status),))
    told = conditions(seen)["DriverAvailable"]
    assert (told.status, told.reason) == (False, reason)
    assert text in told.message
    assert reason in {n.reason for n in reconcile(seen).events}


REFUSED_PODS = {
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": privileged (container "side" must not set'
    " securityContext.privileged=true)": "spec.driver.podTemplate",
    'pods "x" is forbidden: exceeded quota: small, requested: memory=3Gi, limited: memory=1Gi': "-n data",
    'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0': "; raise the quota",
    'pods "x" is forbidden: failed quota: small: must specify limits.cpu': "spec.driver.resources",
    'pods "x" is forbidden: maximum memory usage per Container is 1Gi, but limit is 3Gi': "describe limitrange -n data",
    'Pod "x" is invalid: spec.containers[0].resources.requests: Invalid value: "1": must be less than or equal to cpu'
    " limit of 10m": "describe limitrange -n data",
}


@pytest.mark.parametrize("message", REFUSED_PODS)
def test_pod_refused_at_creation_has_a_reason_and_a_way_out(message: str) -> None:
    """A driver's pod that the cluster does not let be created is a condition with the cause and what to do."""
    failed = {ObjectKey("StatefulSet", "shop-driver"): creation_failure(message)}
    seen = running(report=None, pods=(), creation_failures=failed)
    told = conditions(seen)["DriverAvailable"]
    assert (told.status, told.reason, phase(seen)) == (False, "PodRefused", "Failed")
    assert told.message.startswith(message)
    assert REFUSED_PODS[message] in told.message.removeprefix(message)
    assert "PodRefused" in {n.reason for n in reconcile(seen).events}
    since = {"type": "DriverAvailable", "status": "False", "reason": "Starting", "message": "",
             "lastTransitionTime": written(at(60))}  # fmt: skip
    later = running(body=pipeline(status={"conditions": [since]}), report=None, pods=(), creation_failures=failed)
    assert conditions(later)["DriverAvailable"].reason == "Starting", "an Event of an earlier trouble"


def test_a_staging_area_that_is_away_is_no_unreachable_source() -> None:
    """The stream ends for it, but the condition with its message is not that of the source."""
    error = error_document(code="staging_unavailable", reason="the volume is gone")
    found = conditions(running(report=progress(capture={"connected": False, "error": error})))
    assert found["SourceReachable"].status is None
    for kind in ("Replicating", "Ready"):
        assert (found[kind].status, found[kind].reason) == (False, "Stopped")
        assert "the volume is gone [staging_unavailable]" in found[kind].message


def test_preflight_tells_of_the_source() -> None:
    """An answer of the source to the preflight counts for SourceReachable, though no driver ever ran."""
    text = "error: password authentication failed [source_auth_failed]"
    seen = running(report=None, pods=(pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message=text)),))
    assert conditions(seen)["SourceReachable"].reason == "Refused"
    status = next(w.status for w in reconcile(seen).statuses if w.key.kind == "Pipeline")
    assert status["driver"]["lastTermination"]["code"] == "source_auth_failed"


SLOT_ERRORS = {"slot_lost": "Lost", "slot_missing": "Missing", "source_changed": "Lost", "slot_foreign": "Missing",
               "slot_released": "Released"}  # fmt: skip


@pytest.mark.parametrize("code", SLOT_ERRORS)
def test_an_error_about_the_slot_makes_it_unhealthy(code: str) -> None:
    """The slot is unhealthy, and the source reachable, whether the engine reports it or has ended with it."""
    error = error_document(code=code)
    text = f"error: no changes [{code}]\n  hint: levada resync MANIFEST --all"
    ended = pod(**waiting("driver", "CrashLoopBackOff", exitCode=1, message=text))
    for seen in (
        running(report=progress(capture={"connected": False, "error": error})),
        running(report=progress(state="Failed", error=error)),
        running(report=None, pods=(ended,)),
    ):
        found = conditions(seen)
        assert (found["SlotHealthy"].status, found["SlotHealthy"].reason) == (False, SLOT_ERRORS[code])
        assert code in found["SlotHealthy"].message
        assert found["SourceReachable"].status is True
        assert (found["Ready"].reason, phase(seen)) == ("SlotUnhealthy", "Failed")


def test_tables_that_are_left_out_of_the_publication_are_told() -> None:
    """The message names them next to errors of tables.

    The pipeline stays Ready, because other tables are replicated.
    """
    error = error_document(
        code="publication_incomplete", reason="publication p lacks t", solution="ALTER PUBLICATION p"
    )
    left_out = {"publication": {"error": error}}
    found = conditions(running(report=progress(**left_out)))
    text = "publication p lacks t [publication_incomplete]; ALTER PUBLICATION p"
    assert found["TablesHealthy"] == Condition("TablesHealthy", True, "AllHealthy", text)
    assert found["Ready"].status is True
    errored = table_document("a", "Errored", error=error_document())
    found = conditions(running(report=progress(errored, **left_out)))
    assert (found["TablesHealthy"].status, found["TablesHealthy"].reason) == (False, "SomeErrored")
    assert found["TablesHealthy"].message.endswith(text)


@pytest.mark.parametrize("container", ["preflight", "driver"])
def test_reason_of_a_failure_is_held_until_it_has_passed(container: str) -> None:
    """A container that runs again has not shown that its failure is gone. The reason stays until the pod is ready."""
    text = "error: password authentication failed [source_auth_failed]"
    failed = waiting(container, "CrashLoopBackOff", exitCode=3, message=text)
    again = merge(failed, {"conditions": [{"type": "Ready", "status": "False"}]})
    (state,) = next(v for k, v in again.items() if k.endswith("Statuses"))
    before = conditions(running(report=None, pods=(pod(**failed),)))
    state["state"] = {"running": {"startedAt": written(at(-5))}}
    assert conditions(running(report=None, pods=(pod(**again),))) == before
    state["state"] = {"running": {"startedAt": written(at(-901))}}
    late = conditions(running(report=None, pods=(pod(**again),)))["DriverAvailable"].reason
    assert late == ("PreflightFailed" if container == "preflight" else "Starting"), "an old failure is not today's"
    state |= {"ready": True, "state": {"terminated": {"exitCode": 0}} if container == "preflight" else state["state"]}
    assert conditions(running(report=None, pods=(pod(**again),)))["DriverAvailable"].reason == "Starting"


def test_every_problem_of_the_preflight_is_in_the_status() -> None:
    """The status has all errors that the preflight found, with hints and codes. Rights in the store are among them."""
    text = (
        "error: wal_level is replica [wal_level_not_logical]\n  hint: ALTER SYSTEM SET wal_level = 'logical'\n"
        "error: role app may not create schema levada [store_privilege_missing]\n"
        "  hint: GRANT CREATE ON DATABASE shop\n"
        "warning: table public.a has no replica identity [identity_missing]\n  hint: ALTER TABLE a\n"
    )
    seen = running(report=None, pods=(pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message=text)),))
    assert conditions(seen)["DriverAvailable"].message.splitlines() == [
        "wal_level is replica; ALTER SYSTEM SET wal_level = 'logical' [wal_level_not_logical]",
        "role app may not create schema levada; GRANT CREATE ON DATABASE shop [store_privilege_missing]",
    ]


def test_stateful_set_that_waits_for_its_finalizers_is_named() -> None:
    """Kubernetes makes no pod of a StatefulSet that is being deleted, however long another one's finalizer stays."""
    seen = running(pods=())
    held = {"deletionTimestamp": written(at(-60)), "finalizers": ["example.com/never"]}
    key = ObjectKey("StatefulSet", "shop-driver")
    bodies = {**seen.owned.bodies, key: merge(dict(seen.owned.bodies[key]), {"metadata": held})}
    available = conditions(replace(seen, owned=OwnedObjects(bodies)))["DriverAvailable"]
    assert (available.status, available.reason) == (False, "Starting")
    text = "StatefulSet shop-driver is being deleted, and waits for its finalizers: example.com/never"
    assert available.message == text


def test_stuck_pod_is_told() -> None:
    """A pod that outlives its grace period by a minute is StuckTerminating."""
    body = {"metadata": {"deletionTimestamp": written(at(-61))}}
    seen = running(pods=(read_pod(merge(pod_body(), body)),))
    assert conditions(seen)["DriverAvailable"].reason == "StuckTerminating"


def test_lost_node_is_named() -> None:
    """The node's controller marks a pod whose kubelet does not report. The containers look as they were."""
    marked = {"spec": {"nodeName": "worker-3"}, "status": {"conditions": [
        {"type": "Ready", "status": "False"}, {"type": "ContainersReady", "status": "True"}]}}  # fmt: skip
    found = conditions(running(pods=(read_pod(merge(pod_body(), marked)),)))["DriverAvailable"]
    assert found.reason == "NodeLost"
    assert found.message.startswith("node worker-3 does not report; see: kubectl describe node worker-3.")
    ended = merge(marked, {"metadata": {"deletionTimestamp": written(at(-61))}})
    found = conditions(running(pods=(read_pod(merge(pod_body(), ended)),)))["DriverAvailable"]
    assert found.reason == "StuckTerminating"
    assert "on node worker-3 (which does not report) does not end" in found.message
    gate = merge(marked, {"status": {"conditions": [
        {"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady"},
        {"type": "ContainersReady", "status": "True"}]}})  # fmt: skip
    assert conditions(running(pods=(read_pod(merge(pod_body(), gate)),)))["DriverAvailable"].reason == "Starting"


def test_a_solution_stands_once() -> None:
    """SQL that the message has already is not repeated as its solution."""
    sql = "ALTER TABLE a REPLICA IDENTITY FULL"
    text = f"error: run: {sql} [identity_missing]\n  hint: {sql}\n"
    seen = running(report=None, pods=(pod(**waiting("preflight", "CrashLoopBackOff", exitCode=3, message=text)),))
    assert conditions(seen)["DriverAvailable"].message.count("ALTER TABLE") == 1


def test_nothing_streams_before_the_driver_is_ready() -> None:
    """A driver that is not ready yet is Starting, also once its stream is open."""
    starting = pod(phase="Running", conditions=[{"type": "Ready", "status": "False"}])
    seen = running(pods=(starting,), report=progress(*(table_document(f"t{i}", "Init", copy=None) for i in range(5))))
    assert phase(seen) == "Starting"


def test_transitions_tell_a_change_once() -> None:
    """A condition with an unchanged reason makes no Event. A good one makes an Event only after a bad one."""
    key = ObjectKey("Pipeline", "shop")
    bad, good = Condition("SlotHealthy", False, "Lost", "gone"), Condition("SlotHealthy", True, "Reserved")
    assert [n.reason for n in transitions(key, (), [good])] == []
    assert [n.reason for n in transitions(key, [{"type": "SlotHealthy", "reason": "Reserved"}], [bad])] == [
        "SlotUnhealthy"
    ]
    assert [n.reason for n in transitions(key, [{"type": "SlotHealthy", "reason": "Lost"}], [bad])] == []
    assert [n.reason for n in transitions(key, [{"type": "SlotHealthy", "reason": "Lost"}], [good])] == ["SlotHealthy"]


def test_passed_limits_of_the_guard_are_told_with_the_last_action() -> None:
    """The reason is the most severe policy in force. A new figure alone changes nothing. Ready is not concerned."""
    limit = {"measure": "staged", "policy": "ParkSlowest", "limit": 2**30, "value": 5 * 2**30, "since": written(at(0))}
    action = {"measure": "staged", "policy": "ParkSlowest", "at": written(at(0)), "message": "orders is parked"}
    guard = {"policy": "ParkSlowest", "pausesCopies": True, "passed": [limit], "actions": [action]}
    found = conditions(running(report=progress(guard=guard)))["WithinLimits"]
    text = "passed: guard.staged.parkSlowest (1Gi); orders is parked"
    assert found == Condition("WithinLimits", False, "ParkSlowest", text)
    fuller = {**guard, "passed": [{**limit, "value": 6 * 2**30}]}
    assert conditions(running(report=progress(guard=fuller)))["WithinLimits"] == found
    assert conditions(running(report=progress(guard=guard)))["Ready"].status is True
    assert conditions(running())["WithinLimits"] == Condition("WithinLimits", True, "NoLimitPassed")
    key, before = ObjectKey("Pipeline", "shop"), [{"type": "WithinLimits", "reason": "NoLimitPassed"}]
    assert [n.reason for n in transitions(key, before, [found])] == ["LimitPassed"]


def test_limits_stay_as_they_were_without_a_report() -> None:
    """While the driver restarts, the last known condition is kept."""
    stored = {"type": "WithinLimits", "status": "False", "reason": "Warn", "message": "passed",
              "lastTransitionTime": written(at(-5))}  # fmt: skip
    body = pipeline(status={"conditions": [stored]})
    assert conditions(running(body=body, report=None))["WithinLimits"] == Condition(
        "WithinLimits", False, "Warn", "passed"
    )
    assert conditions(running(report=None))["WithinLimits"].status is None
    starting = progress(state="Starting", slot={"sampledAt": None})
    assert conditions(running(body=body, report=starting))["WithinLimits"] == Condition(
        "WithinLimits", False, "Warn", "passed"
    )
