"""The rules of kstatus, by which Flux, Argo CD and ``helm --wait`` read an object, and the rule of ``kubectl wait``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def kstatus(body: Mapping[str, Any]) -> str:
    """Return the status of a custom resource, as `sigs.k8s.io/cli-utils/pkg/kstatus/status` computes it."""
    metadata, status = body["metadata"], body.get("status") or {}
    if metadata.get("deletionTimestamp"):
        return "Terminating"
    if status.get("observedGeneration", metadata["generation"]) != metadata["generation"]:
        return "InProgress"
    conditions = {c["type"]: c["status"] for c in status.get("conditions") or ()}
    if conditions.get("Reconciling") == "True":
        return "InProgress"
    if conditions.get("Stalled") == "True":
        return "Failed"
    return "Current" if conditions.get("Ready", "True") == "True" else "InProgress"


def waited_for(body: Mapping[str, Any]) -> bool:
    """Return True if ``kubectl wait --for=condition=Ready`` ends well."""
    conditions = {c["type"]: c for c in (body.get("status") or {}).get("conditions") or ()}
    ready = conditions.get("Ready")
    return (
        ready is not None
        and ready["status"] == "True"
        and (ready.get("observedGeneration", body["metadata"]["generation"]) >= body["metadata"]["generation"])
    )
