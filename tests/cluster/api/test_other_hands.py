"""Objects of a Pipeline that a person with the role edit changes, of every kind."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.cluster.api.pipelines import condition, driver_pod, events, shop, streaming, told
from tests.cluster.api.processes import FakeDriver, Operator
from tests.cluster.kubectl import Kubectl, eventually

from levada_operator.names import MANAGED_BY, PIPELINE_LABEL, ROLE_LABEL

KINDS: Final = "configmap,networkpolicy,role,rolebinding,service,serviceaccount,statefulset"


def owned(kubectl: Kubectl) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the UID, the labels and the annotations of all that the operator has made, by kind and name."""
    found = [body for body in kubectl.get(KINDS) if body["metadata"]["name"].startswith("shop-")]
    marks = ("uid", "labels", "annotations")
    return {(b["kind"], b["metadata"]["name"]): {m: b["metadata"].get(m) for m in marks} for b in found}


@pytest.mark.parametrize(
    "labels",
    [
        None,
        {PIPELINE_LABEL: None},
        {PIPELINE_LABEL: "another"},
        {PIPELINE_LABEL: "bank"},
        {ROLE_LABEL: "another", MANAGED_BY: None},
    ],
    ids=["none", "no pipeline", "unknown pipeline", "other pipeline", "other role"],
)
def test_labels(kubectl: Kubectl, operator: Operator, driver: FakeDriver, labels: dict[str, Any] | None) -> None:
    """Each is set back, also that by which the operator lists its objects. Nothing is refused or made again."""
    streaming(kubectl, driver, store={"configMap": {}})
    operator.swept_twice()
    before = eventually(lambda: owned(kubectl))
    assert {kind for kind, _ in before} >= {"ConfigMap", "NetworkPolicy", "Role", "Service", "StatefulSet"}
    for kind, name in before:
        kubectl.patch(kind.lower(), name, {"metadata": {"labels": labels}})
    eventually(lambda: owned(kubectl) == before)
    operator.swept_twice()
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))
    assert not events(kubectl, "RefusedByCluster")  # paced: all is written by then


def test_fields_that_others_add(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A selector with one label more chooses no pod, and a partition keeps changes from it. Both are undone."""
    streaming(kubectl, driver)
    operator.swept_twice()
    added = {"team": "data"}
    kubectl.patch("service", "shop-driver", {"spec": {"selector": added}})
    kubectl.patch("networkpolicy", "shop-driver", {"spec": {"podSelector": {"matchLabels": added}}})
    kubectl.patch("statefulset", "shop-driver", {"spec": {"updateStrategy": {"rollingUpdate": {"partition": 1}}}})

    def undone() -> bool:
        service, policy, pods = (kubectl.get(k, "shop-driver")["spec"] for k in KINDS_WITH_SELECTORS)
        strategy = pods["updateStrategy"].get("rollingUpdate") or {}
        selected = {**service["selector"], **policy["podSelector"]["matchLabels"]}
        return "team" not in selected and not strategy.get("partition")

    eventually(undone)


KINDS_WITH_SELECTORS: Final = ("service", "networkpolicy", "statefulset")


def test_table_sync_that_goes_while_it_is_adopted(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """One that is created and deleted at once, again and again, is no refusal of the Pipeline's spec."""
    streaming(kubectl, driver)
    own = {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "spec": {
        "pipelineRef": {"name": "shop"}, "table": {"name": "brief"}}}  # fmt: skip
    for number in range(60):
        kubectl.create(own | {"metadata": {"name": f"brief{number}"}})
        kubectl.delete("tablesync", f"brief{number}")
    operator.swept_twice()
    assert not events(kubectl, "RefusedByCluster")  # paced: all is written by then


def test_object_that_no_apply_changes(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """A manifest that another person made immutable holds up a change, until the command of the message has run."""
    streaming(kubectl, driver)
    kubectl.patch("configmap", "shop-manifest", {"immutable": True})
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30}})
    message = told(kubectl, "RefusedByCluster")
    assert "immutable" in message
    command = message.partition("made again: kubectl ")[2].partition(";")[0]
    kubectl(*command.split())
    eventually(lambda: "freshnessSeconds: 30" in manifest_text(kubectl))
    eventually(lambda: condition(kubectl, "Accepted") == ("True", "Valid"))


def manifest_text(kubectl: Kubectl) -> str:
    """Return the accepted manifest, empty if it is gone for a moment."""
    return str(((kubectl.get("configmap", "shop-manifest") or {}).get("data") or {}).get("pipeline.yaml", ""))


def test_null_that_kubectl_leaves_out(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """The file has Null without quotes, which kubectl apply does not send. The Pipeline and the TableSync say so."""
    streaming(kubectl, driver)
    table = {"apiVersion": "levada.dev/v1alpha1", "kind": "TableSync", "metadata": {"name": "masked"}, "spec": {
        "pipelineRef": {"name": "shop"}, "table": {"name": "people"}, "columns": {"mask": {"ssn": None}}}}  # fmt: skip
    body = shop()
    body["spec"]["onUnrepresentable"] = None
    for written in (body, table):
        # Of a list, kubectl itself refuses it.
        kubectl("apply", "-f", "-", stdin=json.dumps(written))
    eventually(lambda: condition(kubectl, "Accepted") == ("False", "InvalidSpec"))
    assert "put Null in quotes" in told(kubectl, "SpecRefused")
    eventually(lambda: "InvalidSpec" in str((kubectl.get("tablesync", "masked") or {}).get("status")))


def test_driver_whose_label_is_removed(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver, controllers: None
) -> None:
    """Kubernetes gives up the pod, and makes no other of its name. The status has the command, after which it does."""
    streaming(kubectl, driver)
    kubectl.patch("pod", "shop-driver-0", {"metadata": {"labels": {PIPELINE_LABEL: None}}})
    eventually(lambda: condition(kubectl, "DriverAvailable") == ("False", "PodRefused"))
    before = kubectl.get("pod", "shop-driver-0")["metadata"]["uid"]
    message = told(kubectl, "PodRefused")
    kubectl(*message.partition("delete it: kubectl ")[2].split(), "--wait=false")
    eventually(lambda: driver_pod(kubectl, "shop").get("metadata", {}).get("uid", before) != before)
    eventually(lambda: condition(kubectl, "DriverAvailable")[1] != "PodRefused")


def test_foreground_deletion_is_cleaned_up(
    kubectl: Kubectl, controllers: None, operator: Operator, driver: FakeDriver
) -> None:
    """Garbage collection removes neither the clean-up Job nor the evidence that a driver ran."""
    streaming(kubectl, driver)
    uid = kubectl.get("pipeline", "shop")["metadata"]["uid"]
    operator.stop()
    kubectl("delete", "pipeline", "shop", "--cascade=foreground", "--wait=false")
    eventually(lambda: not kubectl.get("configmap", "shop-manifest"))
    kubectl("delete", "pod", "shop-driver-0", "--force", "--ignore-not-found")
    eventually(lambda: not kubectl.get("statefulset", "shop-driver"))
    kubectl.patch("pipeline", "shop", {"status": {"slot": None}}, "status")
    operator.start()
    eventually(lambda: kubectl.get("job", "shop-cleanup"))
    job = kubectl.get("job", "shop-cleanup")["metadata"]["uid"]
    operator.swept_twice()
    assert kubectl.get("job", "shop-cleanup")["metadata"]["uid"] == job
    assert kubectl.get("pipeline", "shop")["metadata"]["uid"] == uid
    assert kubectl.get("configmap", "shop-manifest")
    kubectl("annotate", "pipeline", "shop", "levada.dev/skip-cleanup=true")
    eventually(lambda: not kubectl.get("pipeline", "shop"))
