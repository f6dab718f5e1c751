"""Pipelines that tests apply, and readers of their state."""

from __future__ import annotations

from typing import Any

from tests.cluster.api.processes import FakeDriver, make_pod
from tests.cluster.kubectl import PATIENCE, Kubectl
from tests.operator.samples import document, merge, spec, table_document

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


def events(kubectl: Kubectl, reason: str) -> list[str]:
    """Return the messages of the Events of that reason."""
    return [e["message"] for e in kubectl.get("events") if e["reason"] == reason]


def streaming(kubectl: Kubectl, driver: FakeDriver, *tables: dict[str, Any], **changes: Any) -> None:
    """Bring a Pipeline to where it streams."""
    kubectl.apply(shop(**changes))
    driver.document = document(*(tables or (table_document(), table_document("events"))))
    make_pod(kubectl, driver.address)
    kubectl("wait", "--for=condition=Ready", "pipeline/shop", PATIENCE)
