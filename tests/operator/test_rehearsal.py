"""Dry runs of pods: a change whose pod the cluster refuses leaves everything as it is, and says so."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from tests.operator.requests import Requests, carry_out
from tests.operator.samples import (
    NEW,
    at,
    merge,
    observed,
    owned,
    owner,
    pipeline,
    pod_body,
    progress,
    running,
    table_document,
)

from levada_operator.decide.plan import Plan
from levada_operator.decide.reconcile import reconcile
from levada_operator.decide.rehearsal import proves_nothing
from levada_operator.kube.interface import RequestFailed
from levada_operator.observe.objects import OwnedObjects
from levada_operator.observe.pods import read_pod

FORBIDDEN = 'pods "shop-driver-0" is forbidden: violates PodSecurity "restricted:latest": host namespaces'
HOST = pipeline(spec={"driver": {"podTemplate": {"spec": {"hostNetwork": True}}}}, metadata={"generation": 2})


def pods(plan: Plan) -> list[dict[str, Any]]:
    """Return the pods of which the plan makes a dry run."""
    return [body for body in plan.rehearse if body["kind"] == "Pod"]


def accepted(plan: Plan) -> tuple[str, str, str]:
    """Return the condition Accepted that the plan writes."""
    (status,) = (w.status for w in plan.statuses if w.key.kind == "Pipeline")
    return next((c["status"], c["reason"], c["message"]) for c in status["conditions"] if c["type"] == "Accepted")


def test_pod_that_replaces_a_running_one_is_rehearsed() -> None:
    """The dry run has the pod as its controller would make it. Without a pod that would be replaced there is none."""
    (pod,) = pods(reconcile(running(body=HOST)))
    assert pod["metadata"]["name"] == pod["spec"]["hostname"] == "shop-driver-0"
    assert pod["metadata"]["labels"]["statefulset.kubernetes.io/pod-name"] == "shop-driver-0"
    assert pod["metadata"]["ownerReferences"][0]["uid"] == "uid-shop-driver"
    assert (pod["spec"]["subdomain"], pod["spec"]["hostNetwork"]) == ("shop-driver", True)
    assert pods(reconcile(replace(running(), defaults=NEW)))
    hot = pipeline(spec={"freshnessSeconds": 30})
    suspended = merge(HOST, {"spec": {"suspend": True}})
    for none in (running(), running(body=hot), running(body=suspended), observed(HOST)):
        assert not pods(reconcile(none))


def test_account_that_the_same_plan_creates_is_not_asked_for() -> None:
    """The dry run names an account that exists already, or one of the user's, which must exist."""
    named = pipeline(spec={"driver": {"serviceAccount": {"name": "theirs"}}})
    seen = running(body=named)
    assert pods(reconcile(seen))[0]["spec"]["serviceAccountName"] == "theirs"
    bodies = {k: b for k, b in running().owned.bodies.items() if k.kind != "ServiceAccount"}
    (key,) = (k for k in bodies if k.kind == "StatefulSet")
    theirs = {"template": {"spec": {"serviceAccountName": "theirs"}}}
    bodies[key] = merge(dict(bodies[key]), {"spec": theirs})
    back = running(owned=replace(seen.owned, bodies=bodies))
    assert pods(reconcile(back))[0]["spec"]["serviceAccountName"] == "theirs"


def test_refused_pod_changes_nothing() -> None:
    """Nothing is applied or deleted, the status has the server's words and a remedy, and the driver is available."""
    cluster, seen = Requests(Pod=RequestFailed(403, FORBIDDEN)), running(body=HOST)
    outcome = asyncio.run(carry_out(cluster, seen))
    assert not [w for w in cluster.writes if w[0] in ("apply", "delete") and w[1] != "Event"]
    assert not [w for w in cluster.writes if w[:2] == ("status", "Pipeline")]
    plan = reconcile(replace(seen, refusals=outcome.refusals))
    status, reason, message = accepted(plan)
    assert (status, reason) == ("False", "RefusedByCluster")
    assert FORBIDDEN in message
    assert "spec.driver.podTemplate" in message
    assert "keeps running" in message
    assert not plan.apply
    assert not plan.delete
    assert pods(plan)


def test_nothing_keeps_running_that_never_ran() -> None:
    """A name that is taken may refuse an object of the first spec after its manifest was written."""
    taken = RequestFailed(409, "it is there already")
    seen = running(body=pipeline(), pods=(), report=None)
    bodies = {k: b for k, b in seen.owned.bodies.items() if k.kind == "ConfigMap"}
    first = replace(seen, owned=replace(seen.owned, bodies=bodies))
    outcome = asyncio.run(carry_out(Requests(Service=taken), first))
    assert outcome.refusals
    message = accepted(reconcile(replace(first, refusals=outcome.refusals)))[2]
    assert "it is there already" in message
    assert "keeps running" not in message


def test_refused_template_does_not_hold_a_suspension_up() -> None:
    """The driver stops with the last accepted template. Executors are not validated, because none will start."""
    typo = pipeline(spec={"suspend": True, "driver": {"podTemplate": {"spec": {"tolerationz": []}}}})
    seen = running(body=typo)
    outcome = asyncio.run(carry_out(Requests(StatefulSet=RequestFailed(422, "not declared in schema")), seen))
    plan = reconcile(replace(seen, refusals=outcome.refusals))
    assert accepted(plan)[:2] == ("False", "RefusedByCluster")
    assert "suspended" in accepted(plan)[2]
    (stops,) = (b for b in plan.apply if b["kind"] == "StatefulSet")
    assert stops["spec"]["replicas"] == 0
    assert "tolerationz" not in stops["spec"]["template"]["spec"]
    cluster = {"driver": {"mode": "Cluster"}, "executor": {"podTemplate": {"spec": {"hostNetwork": True}}}}
    for suspend in (False, True):
        body = pipeline(spec={**cluster, "suspend": suspend, "freshnessSeconds": 7})
        kinds = [b["kind"] for b in reconcile(running(body=body, owned=owned(owner(**cluster)))).rehearse]
        assert ("Job" in kinds) is not suspend


def test_refused_object_does_not_hold_a_suspension_up() -> None:
    """The StatefulSet that stops the driver is applied before all else, of which a policy may refuse anything."""
    for kind in ("ConfigMap", "NetworkPolicy", "Service", "ServiceAccount"):
        bodies = {key: body for key, body in running().owned.bodies.items() if key.kind != kind}
        seen = running(body=pipeline(spec={"suspend": True}), owned=OwnedObjects(bodies))
        cluster = Requests(**{kind: RequestFailed(403, "none of these")})
        outcome = asyncio.run(carry_out(cluster, seen))
        assert outcome.refusals[0].key.kind == kind
        assert ("apply", "StatefulSet", "shop-driver") in cluster.writes


def test_driver_is_served_while_a_change_is_refused() -> None:
    """The dedicated copies that the running driver orders are made, with the pod template that was accepted."""
    refusals = asyncio.run(carry_out(Requests(Pod=RequestFailed(403, FORBIDDEN)), running(body=HOST))).refusals
    report = progress(table_document(phase="DataSync", copyOrder="7"))
    seen = running(body=HOST, refusals=refusals, report=report)
    (job,) = reconcile(seen).apply
    assert job["metadata"]["labels"]["levada.dev/role"] == "copy"
    assert "hostNetwork" not in job["spec"]["template"]["spec"]
    cluster = Requests(Pod=RequestFailed(403, FORBIDDEN))
    asyncio.run(carry_out(cluster, seen))
    assert [w[1] for w in cluster.writes if w[0] == "apply" and w[1] != "Event"] == ["Job"]


def test_operators_own_change_is_held_too() -> None:
    """A new image of the operator's default waits while the namespace refuses the driver's pod."""
    seen = replace(running(), defaults=NEW)
    refusals = asyncio.run(carry_out(Requests(Pod=RequestFailed(403, FORBIDDEN)), seen)).refusals
    plan = reconcile(replace(seen, refusals=refusals))
    assert accepted(plan)[1] == "RefusedByCluster"
    assert not plan.apply


def test_refusal_is_of_one_content() -> None:
    """Another spec is not refused before it is tried, and the same one is tried again and takes effect once it may."""
    refusals = asyncio.run(carry_out(Requests(Pod=RequestFailed(403, FORBIDDEN)), running(body=HOST))).refusals
    other = merge(HOST, {"spec": {"driver": {"podTemplate": {"spec": {"hostNetwork": False}}}}})
    assert accepted(reconcile(running(body=other, refusals=refusals)))[0] == "True"
    again = asyncio.run(carry_out(Requests(), running(body=HOST, refusals=refusals, now=at(60))))
    assert (again.refusals, again.unfinished) == ((), True)
    assert "StatefulSet" in [b["kind"] for b in reconcile(running(body=HOST)).apply]


def quota(requested: str, used: str, limited: str) -> str:
    """Return the message of a quota that refuses a pod."""
    return f'pods "p" is forbidden: exceeded quota: q, requested: {requested}, used: {used}, limited: {limited}'


def driver(**resources: Any) -> Any:
    """Return a running driver of these resources."""
    containers = [{"name": "driver", "resources": resources}, {"name": "side", "resources": {"requests": {"cpu": 1}}}]
    init = [{"name": "preflight", "resources": resources}]
    return read_pod({**pod_body(), "spec": {"containers": containers, "initContainers": init}})


TWO_CPUS = {"requests": {"cpu": "2"}, "limits": {"memory": "1Gi"}}
QUOTAS: dict[str, tuple[str, bool]] = {
    "room once it ends": (quota("requests.cpu=3500m", "requests.cpu=4", "requests.cpu=5"), True),
    "no room ever": (quota("requests.cpu=4500m", "requests.cpu=4", "requests.cpu=4"), False),
    "short form": (quota("cpu=3", "cpu=3", "cpu=3"), True),
    "limits": (quota("limits.memory=1Gi", "limits.memory=1Gi", "limits.memory=1536Mi"), True),
    "two of one": (quota("pods=1,requests.cpu=9", "pods=3,requests.cpu=3", "pods=3,requests.cpu=4"), False),
    "count": (quota("pods=1", "pods=3", "pods=3"), True),
    "unreadable": (quota("pods=x", "pods=3", "pods=3"), False),
    "other words": (FORBIDDEN, False),
    "no right": ('pods is forbidden: User "x" cannot create resource "pods" in API group ""', True),
}


@pytest.mark.parametrize("name", QUOTAS)
def test_quota_has_what_the_running_pod_takes(name: str) -> None:
    """A quota that is full because of the pod that ends refuses nothing, nor does the want of the right to ask."""
    message, expected = QUOTAS[name]
    assert proves_nothing(message, driver(**TWO_CPUS), of_driver=True) is expected
    assert proves_nothing(message, None, of_driver=True) is (name == "no right")
    assert proves_nothing(message, driver(), of_driver=False) is ("exceeded quota" in message or name == "no right")


def test_pod_that_is_not_refused_for_good_is_applied() -> None:
    """Without the right to create pods, and within a quota that will have room, the change takes effect."""
    for message in (QUOTAS["no right"][0], quota("pods=1", "pods=1", "pods=1")):
        cluster = Requests(Pod=RequestFailed(403, message))
        assert asyncio.run(carry_out(cluster, running(body=HOST))).refusals == ()
        assert ("apply", "StatefulSet", "shop-driver") in cluster.writes
