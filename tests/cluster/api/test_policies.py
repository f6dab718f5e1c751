"""A policy of the cluster refuses one kind of the operator's objects: status says so, and what runs goes on."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.cluster.api.pipelines import condition, shop, streaming, told
from tests.cluster.api.processes import FakeDriver, Operator
from tests.cluster.kubectl import Kubectl, eventually
from tests.operator.samples import document, table_document, table_sync

WORDS = "the platform team allows none of these"
API = "admissionregistration.k8s.io/v1"
KINDS = {
    "ConfigMap": ("", "configmaps"),
    "ServiceAccount": ("", "serviceaccounts"),
    "NetworkPolicy": ("networking.k8s.io", "networkpolicies"),
    "StatefulSet": ("apps", "statefulsets"),
}
ALL = {**KINDS, "Pipeline": ("levada.dev", "pipelines"), "TableSync": ("levada.dev", "tablesyncs")}


@contextmanager
def refused(kubectl: Kubectl, kind: str, *names: str) -> Iterator[None]:
    """Let a ValidatingAdmissionPolicy refuse each new and each changed object of a kind in the namespace.

    With ``names`` it refuses those alone, and their status.
    """
    name, cluster, (group, plural) = f"levada-{uuid.uuid4().hex[:8]}", Kubectl("default"), ALL[kind]
    rule = {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE"],
        "resources": [plural, f"{plural}/status"] if names else [plural],
    }
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": kubectl.namespace}}}
    spec = {"matchConstraints": {**here, "resourceRules": [rule]},
            "validations": [{"expression": f"!(object.metadata.name in {list(names)})" if names else "false",
                             "message": WORDS}]}  # fmt: skip
    binding = {"policyName": name, "validationActions": ["Deny"]}
    kinds = {"ValidatingAdmissionPolicy": spec, "ValidatingAdmissionPolicyBinding": binding}
    for made, its in kinds.items():
        body = {"apiVersion": API, "kind": made, "metadata": {"name": name}, "spec": its}
        cluster.run("apply", "-f", "-", stdin=json.dumps(body))
    try:
        # The API server takes up a policy after a while.
        eventually(lambda: WORDS in _probe(kubectl, kind, *names))
        yield
    finally:
        cluster.run("delete", ",".join(kinds).lower(), name)


def _probe(kubectl: Kubectl, kind: str, name: str = "probe", *_: str) -> str:
    """Return what the API server says of a new object of the kind, which is not kept."""
    labels = {"app": "probe"}
    pod = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "a"}]}}
    spec = {"spec": {"selector": {"matchLabels": labels}, "serviceName": "a", "template": pod}}
    group = ALL[kind][0]
    body: dict[str, Any] = {"apiVersion": f"{group}/v1" if group else "v1", "kind": kind, "metadata": {"name": name}}
    if kind == "Pipeline":
        body = shop(name)
    if kind == "TableSync":
        body = {**table_sync(), "metadata": {"name": name}}
    body |= {"StatefulSet": spec, "NetworkPolicy": {"spec": {"podSelector": {}}}}.get(kind, {})
    return kubectl.run("create", "--dry-run=server", "-f", "-", stdin=json.dumps(body), check=False).stderr


def _condition(kubectl: Kubectl, type_: str) -> dict[str, Any]:
    conditions = kubectl.get("pipeline", "shop")["status"]["conditions"]
    return next(dict(c) for c in conditions if c["type"] == type_)


@pytest.mark.parametrize("kind", KINDS)
def test_new_pipeline_whose_objects_are_refused(kubectl: Kubectl, operator: Operator, kind: str) -> None:
    """The condition has the object and the policy's words. The Pipeline goes on once the policy is gone."""
    with refused(kubectl, kind):
        kubectl.apply(shop())
        eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
        message = _condition(kubectl, "Accepted")["message"]
        assert message.startswith(f"{kind} shop-")
        assert WORDS in message
        assert condition(kubectl, "Ready")[0] == "False"
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))
    eventually(lambda: kubectl.get("statefulset", "shop-driver"))


def test_change_that_is_refused_stops_nothing(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The driver keeps the last accepted spec, whose Ready stays True. It is no Ready of the new generation."""
    streaming(kubectl, driver)
    pod = kubectl.get("pod", "shop-driver-0")["metadata"]["uid"]
    with refused(kubectl, "ConfigMap"):
        kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 7, "driver": {"image": "levada:other"}}})
        eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
        operator.swept_twice()
        assert kubectl.get("pod", "shop-driver-0")["metadata"]["uid"] == pod
        eventually(lambda: condition(kubectl, "Ready")[0] == "True")
        assert _condition(kubectl, "Ready")["observedGeneration"] == 1
        assert condition(kubectl, "Stalled") == ("True", "RefusedByCluster")


def _replicas(kubectl: Kubectl) -> int:
    return int(kubectl.get("statefulset", "shop-driver")["spec"]["replicas"])


def test_refused_object_holds_up_no_suspension_and_no_cleanup(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver
) -> None:
    """The driver stops, and the clean-up Job is created, although a NetworkPolicy cannot be made again."""
    streaming(kubectl, driver)
    with refused(kubectl, "NetworkPolicy"):
        kubectl("delete", "networkpolicy", "shop-driver")
        eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
        kubectl.patch("pipeline", "shop", {"spec": {"suspend": True}})
        eventually(lambda: _replicas(kubectl) == 0)
        if kubectl.get("pod", "shop-driver-0"):
            kubectl("delete", "pod", "shop-driver-0", "--force", "--ignore-not-found")
        kubectl("delete", "pipeline", "shop", "--wait=false")
        eventually(lambda: kubectl.get("job", "shop-cleanup"))
        kubectl("annotate", "pipeline", "shop", "levada.dev/skip-cleanup=true")
        eventually(lambda: not kubectl.get("pipeline", "shop"))


def test_template_that_is_refused_holds_up_no_suspension(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver
) -> None:
    """The driver stops with the last accepted template, and the condition has the server's words."""
    streaming(kubectl, driver)
    typo = {"podTemplate": {"spec": {"tolerationz": []}}}
    kubectl.patch("pipeline", "shop", {"spec": {"suspend": True, "driver": typo}})
    eventually(lambda: _replicas(kubectl) == 0)
    eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
    assert "tolerationz" in _condition(kubectl, "Accepted")["message"]


def test_refused_finalizer_is_reported(kubectl: Kubectl, operator: Operator) -> None:
    """Nothing of a Pipeline is created before its finalizer. An Event has the words of the policy, as no status can."""
    operator.stop()
    kubectl.apply(shop())
    with refused(kubectl, "Pipeline"):
        operator.start()
        assert WORDS in told(kubectl, "ReconcileFailed")
        assert not kubectl.get("statefulset", "shop-driver")
    eventually(lambda: kubectl.get("statefulset", "shop-driver"))


def test_refused_tables_hold_back_no_others(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """Neither a TableSync that cannot be made nor one whose status is refused does. A changed spec takes effect."""
    kubectl.apply({**table_sync("a"), "metadata": {"name": "shop-public-a"}})
    with refused(kubectl, "TableSync", "shop-public-b", "shop-public-a"):
        streaming(kubectl, driver, *map(table_document, "abcd"))
        for name in "cd":
            eventually(lambda name=name: _phase(kubectl, name) == "Ready")  # type: ignore[misc]  # bound on purpose
        assert kubectl.get("tablesync", "shop-public-b") is None
        assert WORDS in told(kubectl, "ReconcileFailed")
        kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 7}})
        eventually(lambda: "freshnessSeconds: 7" in kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])
    eventually(lambda: (_phase(kubectl, "a"), _phase(kubectl, "b")) == ("Ready", "Ready"))


def test_spec_that_runs_is_ready_although_a_table_sync_is_refused(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver
) -> None:
    """Accepted names the TableSync, and says that the rest of the spec is applied. Ready is of the newest spec."""
    streaming(kubectl, driver, table_document("a"))
    with refused(kubectl, "TableSync", "shop-public-b"):
        driver.document = document(*map(table_document, "ab"))
        eventually(lambda: condition(kubectl, "Accepted") == ("False", "RefusedByCluster"))
        kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 7}})
        eventually(lambda: _condition(kubectl, "Ready")["observedGeneration"] == 2)
        assert condition(kubectl, "Ready") == ("True", "Streaming")
        message = _condition(kubectl, "Accepted")["message"]
        assert message.startswith("TableSync shop-public-b: ")
        assert message.endswith("; the rest of the spec is applied")
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))


def _phase(kubectl: Kubectl, table: str) -> str:
    found = kubectl.get("tablesync", f"shop-public-{table}") or {}
    return str(found.get("status", {}).get("phase", ""))
