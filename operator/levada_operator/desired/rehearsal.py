"""Objects for dry runs only: the pods that Kubernetes' controllers and Spark would make of a pod template."""

from __future__ import annotations

from typing import Any

from levada_operator.desired.owner import Owner, build_object
from levada_operator.desired.spark import build_executor_template
from levada_operator.names import executor_name
from levada_operator.observe.objects import Body


def build_driver_rehearsal(stateful_set: Body, uid: str, account: str) -> dict[str, Any]:
    """Return the pod that the controller would make of a StatefulSet, with the UID of the StatefulSet."""
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    name, template = f"{metadata['name']}-0", spec["template"]
    own = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": metadata["name"], "uid": uid}
    added = {"statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **template["metadata"],
            "name": name,
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"] | added,
            "ownerReferences": [own | {"controller": True}],
        },
        "spec": template["spec"] | {"serviceAccountName": account, "hostname": name, "subdomain": spec["serviceName"]},
    }


def build_executor_rehearsal(owner: Owner, account: str) -> list[dict[str, Any]]:
    """Return a Job and, with an account, a pod with the executors' pod template. Nothing without executors.

    Otherwise only Spark would find a mistake in the template, when it starts executors.
    """
    template = build_executor_template(owner)
    if template is None:
        return []
    name = executor_name(owner.name)
    pod = {"metadata": template["metadata"], "spec": template["spec"] | {"restartPolicy": "Never"}}
    job = build_object(owner, "Job", "batch/v1", name, "executor", {"spec": {"template": pod}})
    if not account:
        return [job]
    metadata = {**pod["metadata"], "name": name, "namespace": owner.namespace}
    spec = pod["spec"] | {"serviceAccountName": account}
    return [job, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}]
