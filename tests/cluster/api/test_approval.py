"""A change that copies tables again waits for an annotation, against a real API server."""

from __future__ import annotations

import shlex

from tests.cluster.api.pipelines import condition, is_observed, streaming, told
from tests.cluster.api.processes import FakeDriver, Operator
from tests.cluster.kubectl import Kubectl, eventually

from levada_operator.names import RESTART_ON


def template(kubectl: Kubectl) -> str:
    """Return what the driver's pod is replaced for."""
    body = kubectl.get("statefulset", "shop-driver")["spec"]["template"]
    return str(body["metadata"]["annotations"][RESTART_ON])


def manifest(kubectl: Kubectl) -> str:
    """Return the manifest that the driver reads."""
    return str(kubectl.get("configmap", "shop-manifest")["data"]["pipeline.yaml"])


def message(kubectl: Kubectl) -> str:
    """Return the message of the condition Approved."""
    conditions = kubectl.get("pipeline", "shop")["status"]["conditions"]
    return next(str(c["message"]) for c in conditions if c["type"] == "Approved")


def test_a_resync_waits_for_the_printed_command(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """Nothing of it reaches the driver before the command runs as printed. Another change takes effect meanwhile."""
    streaming(kubectl, driver, approval="Manual")
    eventually(lambda: [t.get("status", {}).get("phase") for t in kubectl.get("tablesyncs")] == ["Ready", "Ready"])
    eventually(lambda: condition(kubectl, "Approved") == ("True", "NothingWaits"))
    before = template(kubectl)
    kubectl.patch("pipeline", "shop", {"spec": {"onUnrepresentable": "Text"}})
    eventually(lambda: condition(kubectl, "Approved") == ("False", "ApprovalRequired"))
    assert "copies again 2 tables, 25.2M rows" in message(kubectl)
    assert told(kubectl, "ApprovalRequired")
    kubectl.patch("pipeline", "shop", {"spec": {"freshnessSeconds": 30}})
    eventually(lambda: "freshnessSeconds: 30" in manifest(kubectl))
    operator.stop()
    operator.start()
    operator.swept_twice()
    assert "onUnrepresentable: Error" in manifest(kubectl)
    assert template(kubectl) == before
    assert condition(kubectl, "Accepted") == ("True", "Valid")
    command = message(kubectl).partition("to approve: ")[2].partition(";")[0]
    kubectl(*shlex.split(command)[1:])
    eventually(lambda: condition(kubectl, "Approved") == ("True", "Approved"))
    eventually(lambda: "onUnrepresentable: Text" in manifest(kubectl))
    eventually(lambda: template(kubectl) != before)


def test_another_key_of_masks_waits_for_the_printed_command(
    kubectl: Kubectl, operator: Operator, driver: FakeDriver
) -> None:
    """The driver asks. The command in the condition runs as printed, and puts the approval where the driver reads."""
    streaming(kubectl, driver, approval="Manual")
    before, command = template(kubectl), f"kubectl annotate pipeline shop -n {kubectl.namespace} --overwrite"
    asking = {"code": "approval_required", "reason": "another key of masks in Secret masks copies 1 table again",
              "solution": f"{command} levada.dev/approve=0123456789abcdef"}  # fmt: skip
    plain = driver.document
    driver.document = plain | {"manifest": plain.get("manifest", {}) | {"approval": asking}}
    eventually(lambda: condition(kubectl, "Approved") == ("False", "ApprovalRequired"))
    eventually(lambda: condition(kubectl, "Reconciling") == ("True", "ApprovalRequired"))
    assert "another key of masks" in told(kubectl, "ApprovalRequired")
    assert "approved" not in kubectl.get("configmap", "shop-manifest")["data"]
    kubectl(*shlex.split(message(kubectl).partition("to approve: ")[2].partition(";")[0])[1:])
    eventually(lambda: kubectl.get("configmap", "shop-manifest")["data"].get("approved") == "0123456789abcdef")
    driver.document = plain
    eventually(lambda: condition(kubectl, "Approved") == ("True", "NothingWaits"))
    assert template(kubectl) == before


def test_a_table_waits_until_it_is_set_back(kubectl: Kubectl, operator: Operator, driver: FakeDriver) -> None:
    """Also a deleted TableSync, whose settings the driver keeps, and which the operator makes again without them."""
    streaming(kubectl, driver, approval="Manual")
    name = "shop-public-orders"
    eventually(lambda: (kubectl.get("tablesync", name) or {}).get("status", {}).get("phase") == "Ready")
    kubectl.patch("tablesync", name, {"spec": {"mode": "Changelog"}})
    eventually(lambda: condition(kubectl, "Approved") == ("False", "ApprovalRequired"))
    assert "public.orders.mode: copies again 1 table, 12.6M rows" in message(kubectl)
    assert "Changelog" not in manifest(kubectl)
    kubectl.patch("tablesync", name, {"spec": {"mode": ""}})
    eventually(lambda: condition(kubectl, "Approved") == ("True", "NothingWaits"))
    kubectl.patch("pipeline", "shop", {"spec": {"approval": "Automatic"}})
    kubectl.patch("tablesync", name, {"spec": {"mode": "Changelog"}})
    eventually(lambda: condition(kubectl, "Approved") == ("True", "Automatic"))
    eventually(lambda: "Changelog" in manifest(kubectl))
    kubectl.patch("pipeline", "shop", {"spec": {"approval": "Manual"}})
    eventually(lambda: is_observed(kubectl))
    kubectl("delete", "tablesync", name)
    eventually(lambda: condition(kubectl, "Approved") == ("False", "ApprovalRequired"))
    eventually(lambda: (kubectl.get("tablesync", name) or {}).get("status", {}).get("phase") == "Ready")
    operator.swept_twice()
    assert condition(kubectl, "Approved") == ("False", "ApprovalRequired")
    assert "Changelog" in manifest(kubectl)
