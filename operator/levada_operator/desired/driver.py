"""The driver's StatefulSet with 0 or 1 replicas, its headless Service, and the volume claim of its staging area."""

from __future__ import annotations

import json
from typing import Any

from levada.spec import DeletionAction, DriverMode, format_bytes
from levada_operator.desired.manifest import manifest_record
from levada_operator.desired.owner import Owner, build_object
from levada_operator.desired.pod import HTTP_PORT, build_driver_template
from levada_operator.desired.spark import BLOCK_PORT, DRIVER_PORT
from levada_operator.names import DRIVER_CONTAINER, OPERATOR, TEMPLATE, digest, driver_name, labels, staging_name


def build_stateful_set(owner: Owner, *, running: bool) -> dict[str, Any]:
    """Return the StatefulSet. A StatefulSet never runs two pods of one identity, so there are never two drivers."""
    spec = {
        "replicas": int(running),
        "serviceName": driver_name(owner.name),
        "selector": {"matchLabels": labels(owner.name, DRIVER_CONTAINER)},
        # With OrderedReady, Kubernetes would not replace a pod that never became ready.
        "podManagementPolicy": "Parallel",
        # A partition that is set by hand would keep every change from the pod.
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
        "revisionHistoryLimit": 2,
        "template": build_driver_template(owner),
    }
    body = build_object(owner, "StatefulSet", "apps/v1", driver_name(owner.name), DRIVER_CONTAINER, {"spec": spec})
    template = digest(json.dumps(spec["template"], sort_keys=True))
    body["metadata"]["annotations"] = {TEMPLATE: template, **manifest_record(owner.manifests)}
    if owner.defaults.identity:
        body["metadata"]["annotations"][OPERATOR] = owner.defaults.identity
    return body


def build_service(owner: Owner) -> dict[str, Any]:
    """Return the headless Service that gives the driver's pod a DNS name."""
    ports = [{"name": "http", "port": HTTP_PORT, "targetPort": "http"}]
    if owner.spec.driver.mode is DriverMode.CLUSTER:
        ports += [
            {"name": "spark", "port": DRIVER_PORT, "targetPort": "spark"},
            {"name": "blocks", "port": BLOCK_PORT, "targetPort": "blocks"},
        ]
    spec = {
        "clusterIP": "None",
        # Executors resolve the driver's name before the driver is ready.
        "publishNotReadyAddresses": True,
        "selector": labels(owner.name, DRIVER_CONTAINER),
        "ports": ports,
    }
    return build_object(owner, "Service", "v1", driver_name(owner.name), DRIVER_CONTAINER, {"spec": spec})


def build_staging_claim(owner: Owner) -> dict[str, Any] | None:
    """Return the PersistentVolumeClaim of the staging area, or None without one.

    It outlives a Pipeline whose state is retained, and with it the slot, which was confirmed for what is on the volume.
    """
    claim = owner.spec.staging.volume_claim
    if claim is None:
        return None
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": format_bytes(claim.size)}},
    }
    if claim.storage_class_name:
        spec["storageClassName"] = claim.storage_class_name
    stays = owner.spec.deletion_policy.state is DeletionAction.RETAIN
    name = staging_name(owner.name)
    return build_object(owner, "PersistentVolumeClaim", "v1", name, "staging", {"spec": spec}, owned=not stays)
