"""Pipelines that tests apply, and readers of their state."""

from __future__ import annotations

from typing import Any

from tests.cluster.api.processes import FakeDriver, make_pod
from tests.cluster.kubectl import PATIENCE, Kubectl, eventually
from tests.operator.samples import document, merge, spec, table_document

from levada.spec import default_object_name

NO_NODE = {"driver": {"podTemplate": {"spec": {"schedulerName": "nobody"}}}}


"""A node would start the pods of the cluster. Without one, the tests write them by hand."""


def shop(name: str = "shop", **changes: Any) -> dict[str, Any]:
    """Return a Pipeline whose pods no node takes."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": name},
        "spec": merge(spec(**changes), NO_NODE),
    }


def condition(kubectl: Kubectl, type_: str, name: str = "shop") -> tuple[str, str]:
    """Return a condition's status and reason."""
    status = (kubectl.get("pipeline", name) or {}).get("status", {})
    return next(((c["status"], c["reason"]) for c in status.get("conditions", ()) if c["type"] == type_), ("", ""))


def is_observed(kubectl: Kubectl, name: str = "shop") -> bool:
    """Return True if the operator has read the newest spec."""
    body = kubectl.get("pipeline", name)
    return bool(body.get("status", {}).get("observedGeneration") == body["metadata"]["generation"])


def events(kubectl: Kubectl, reason: str) -> list[str]:
    """Return the messages of the Events of that reason, so far."""
    return [e["message"] for e in kubectl.get("events") if e["reason"] == reason]


def told(kubectl: Kubectl, reason: str) -> str:
    """Wait for an Event of that reason and return its message. The operator writes Events after the status."""
    return eventually(lambda: events(kubectl, reason))[0]


def streaming(kubectl: Kubectl, driver: FakeDriver, *tables: dict[str, Any], **changes: Any) -> None:
    """Bring a Pipeline to where it streams."""
    kubectl.apply(shop(**changes))
    driver.document = document(*(tables or (table_document(), table_document("events"))))
    make_pod(kubectl, driver.address)
    kubectl("wait", "--for=condition=Ready", "pipeline/shop", PATIENCE)


def driver_image(kubectl: Kubectl, name: str) -> str:
    """Return the image that a Pipeline's driver is to have."""
    found = kubectl.get("statefulset", f"{name}-driver")
    return str(found["spec"]["template"]["spec"]["containers"][0]["image"]) if found else ""


def driver_pod(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return a Pipeline's pod, empty if there is none."""
    return dict(kubectl.get("pod", f"{name}-driver-0") or {})


def has_pod_of(kubectl: Kubectl, name: str, image: str) -> bool:
    """Return True if a Pipeline's pod has that image."""
    return [c["image"] for c in driver_pod(kubectl, name).get("spec", {}).get("containers", ())] == [image]


def make_ready(kubectl: Kubectl, name: str) -> None:
    """Report a driver's pod as ready, as a kubelet would, once its controller has made it of the wanted image."""
    wanted = driver_image(kubectl, name)
    eventually(
        lambda: [c["image"] for c in driver_pod(kubectl, name).get("spec", {}).get("containers", [])] == [wanted]
    )
    ready = {"phase": "Running", "conditions": [{"type": t, "status": "True"} for t in ("Ready", "PodScheduled")]}
    kubectl.patch("pod", f"{name}-driver-0", {"status": ready}, "status")


def sql(kubectl: Kubectl) -> str:
    """Return the statement that drops the slot of the namespace's Pipeline."""
    return f"SELECT pg_drop_replication_slot('{default_object_name('shop', kubectl.namespace)}')"
