"""Upgrades on a real node: drivers restart one by one, and of two operators one acts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest
from tests.cluster.bringup.layout import Layout
from tests.cluster.bringup.node import enter
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.cluster.node.installed import Installed
from tests.cluster.node.place import Place

pytestmark = pytest.mark.nightly

NAMES = ("shop", "east", "west")
DEPLOYMENT = "levada-operator"
ACCOUNT = "system:serviceaccount:levada-system:levada-operator"
LIGHT = {"resources": {"requests": {"cpu": "100m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}}


def pods(place: Place) -> dict[str, dict[str, Any]]:
    """Return the drivers' pods by Pipeline."""
    found = place.kubectl.get("pods", labels="levada.dev/role=driver")
    return {pod["metadata"]["labels"]["levada.dev/pipeline"]: pod for pod in found}


def is_ready(pod: dict[str, Any]) -> bool:
    """Return True if a pod is ready and stays."""
    conditions = {c["type"]: c["status"] for c in pod.get("status", {}).get("conditions", ())}
    return conditions.get("Ready") == "True" and "deletionTimestamp" not in pod["metadata"]


@pytest.fixture
def three(place: Place) -> Place:
    """Three Pipelines of one source, each with a slot and a namespace of the lake of its own, all Ready."""
    for name in NAMES:
        body = place.manifest(driver=LIGHT)
        body["metadata"]["name"] = name
        body["spec"]["destination"]["iceberg"]["namespace"] = f"{name}_{{schema}}"
        if "staging" in body["spec"]:
            body["spec"]["staging"] = {}
        place.kubectl.apply(body)
    for name in NAMES:
        place.kubectl("wait", "--for=condition=Ready", f"pipeline/{name}", PATIENCE)
    return place


@pytest.fixture
def deployment(operator: Installed) -> Iterator[Kubectl]:
    """The operator's Deployment, as it was afterwards."""
    kubectl = operator.kubectl
    yield kubectl
    kubectl("set", "env", f"deployment/{DEPLOYMENT}", "LEVADA_UPDATES=1")
    kubectl("scale", f"deployment/{DEPLOYMENT}", "--replicas=1")
    kubectl("rollout", "status", f"deployment/{DEPLOYMENT}", PATIENCE)


def restart_one_by_one(three: Place, deployment: Kubectl, image: str) -> None:
    """Set the drivers' image. At no moment are two drivers away, and each is Ready again in the end."""
    before = {name: pod["metadata"]["uid"] for name, pod in pods(three).items()}
    assert set(before) == set(NAMES)
    deployment("set", "env", f"deployment/{DEPLOYMENT}", f"LEVADA_IMAGE={image}")
    most = 0

    def all_new() -> bool:
        nonlocal most
        now = pods(three)
        most = max(most, sum(name not in now or not is_ready(now[name]) for name in NAMES))
        return all(name in now and now[name]["metadata"]["uid"] != before[name] for name in NAMES) and all(
            is_ready(pod) for pod in now.values()
        )

    eventually(all_new)
    assert most == 1


def test_upgrade_and_rollback_of_three_pipelines(layout: Layout, three: Place, deployment: Kubectl, image: str) -> None:
    """Another image for all drivers, and the former one again: one restarts at a time, and no change is lost."""
    # The same content by another name: what changes is the pod's template.
    other = f"{image}-again"
    subprocess.run(enter(layout, "ctr", "-n", "k8s.io", "images", "tag", "--force", image, other), check=True)
    try:
        restart_one_by_one(three, deployment, other)
        eventually(lambda: updated(three) == set(NAMES))
        three.execute("UPDATE customers SET name = name || '!'")
        restart_one_by_one(three, deployment, image)
    finally:
        deployment("set", "env", f"deployment/{DEPLOYMENT}", f"LEVADA_IMAGE={image}")
    for name in NAMES:
        eventually(lambda name=name: not three.differences(f"{name}_public"))  # type: ignore[misc]  # bound on purpose


def updated(place: Place) -> set[str]:
    """Return the Pipelines with an Event of an updated driver."""
    found = (e for e in place.kubectl.get("events") if e["reason"] == "DriverUpdated")
    return {e["involvedObject"]["name"] for e in found}


def writers(layout: Layout, skip: int) -> list[str]:
    """Return the operator's pods in the order of their writes, each as often as it follows another one.

    The audit log is read from the byte ``skip`` on. Leases and Events do not count, and neither do dry runs and writes
    that were refused.
    """
    with layout.audit_log.open("rb") as log:
        log.seek(skip)
        entries = [json.loads(line) for line in log if line.endswith(b"\n")]
    writes = [
        (entry["requestReceivedTimestamp"], entry["user"]["extra"]["authentication.kubernetes.io/pod-name"][0])
        for entry in entries
        if entry["user"]["username"] == ACCOUNT
        and entry["verb"] in ("create", "update", "patch", "delete")
        and entry["objectRef"]["resource"] not in ("leases", "events")
        and "dryRun" not in entry["requestURI"]
        and entry["responseStatus"]["code"] < 400
    ]
    return [pod for pod, _ in groupby(pod for _, pod in sorted(writes))]


def test_two_replicas(shop: Place, layout: Layout, deployment: Kubectl) -> None:
    """Scaled to two, both are ready and one leads. When the leader ends, or is killed, another one alone goes on."""
    skip = layout.audit_log.stat().st_size
    deployment("scale", f"deployment/{DEPLOYMENT}", "--replicas=2")
    deployment("rollout", "status", f"deployment/{DEPLOYMENT}", PATIENCE)

    def holder() -> str:
        lease = deployment.get("lease", DEPLOYMENT)
        return str(lease["spec"].get("holderIdentity", "")).partition("_")[0]

    def replicas() -> list[str]:
        found = deployment.get("pods", labels="app.kubernetes.io/component=operator")
        return [pod["metadata"]["name"] for pod in found]

    # A pod that is being deleted is listed until it has ended.
    eventually(lambda: len(replicas()) == 2 and holder() in replicas())
    for grace in ("30", "0"):
        first = holder()
        (standby,) = set(replicas()) - {first}
        eventually(lambda standby=standby: "standby: " in deployment("logs", standby))  # type: ignore[misc]  # bound on purpose
        deployment("delete", "pod", first, f"--grace-period={grace}", f"--force={grace == '0'}".lower(), "--wait=false")
        # The pod that replaces the deleted one may take the Lease before the standby does.
        eventually(lambda first=first: holder() not in ("", first))  # type: ignore[misc]  # bound on purpose
        before = shop.driver_uid()
        shop.patch(restartNonce=int(shop.kubectl.get("pipeline", "shop")["metadata"]["generation"]))
        eventually(lambda before=before: shop.driver_uid() not in ("", before))  # type: ignore[misc]  # bound on purpose
        shop.ready()
        eventually(lambda: len(replicas()) == 2 and holder() in replicas())
    turns = writers(layout, skip)
    # The first leader may have had nothing to write.
    assert len(turns) >= 2
    assert len(set(turns)) == len(turns), f"two operators wrote at the same time: {turns}"
