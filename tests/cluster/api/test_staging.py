"""The claim of a Pipeline that names no place for staged changes, against a real API server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.api.pipelines import condition, shop
from tests.cluster.api.processes import Operator
from tests.cluster.kubectl import Kubectl, eventually


@contextmanager
def default_class(kubectl: Kubectl) -> Iterator[None]:
    """A default StorageClass without volumes behind it."""
    name = f"default-{kubectl.namespace}"
    kubectl.apply(
        {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": name, "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
    )
    try:
        yield
    finally:
        kubectl("delete", "storageclass", name)


def named(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return a Pipeline with a slot of its own."""
    return shop(name, source={"slot": {"name": name}})


def claim(kubectl: Kubectl, name: str) -> Any:
    """Return the claim of a Pipeline whose driver was created."""
    eventually(lambda: kubectl.get("statefulset", f"{name}-driver"))
    return kubectl.get("persistentvolumeclaim", f"{name}-staging")


def test_the_default_class_decides_once(kubectl: Kubectl, operator: Operator) -> None:
    """Pipelines from before and right after a default class: each keeps what it got, also after a restart."""
    operator.swept_twice()
    kubectl.apply(named(kubectl, "early"))
    assert claim(kubectl, "early") is None
    with default_class(kubectl):
        kubectl.apply(named(kubectl, "late"))
        late = claim(kubectl, "late")
        assert late["spec"]["resources"]["requests"]["storage"] == "20Gi"
        assert claim(kubectl, "early") is None
    operator.stop()
    operator.start()
    operator.swept_twice()
    for name, volumes in (("early", []), ("late", ["late-staging"])):
        pod = kubectl.get("statefulset", f"{name}-driver")["spec"]["template"]["spec"]
        claims = [v["persistentVolumeClaim"]["claimName"] for v in pod["volumes"] if "persistentVolumeClaim" in v]
        assert (claims, condition(kubectl, "Accepted", name)) == (volumes, ("True", "Valid"))
    assert claim(kubectl, "late")["metadata"]["uid"] == late["metadata"]["uid"]


def test_a_deleted_manifest_or_claim_comes_back(kubectl: Kubectl, operator: Operator) -> None:
    """Another hand deletes what the decision is in: the Pipeline stays on its volume."""
    with default_class(kubectl):
        kubectl.apply(named(kubectl, "shop"))
        assert claim(kubectl, "shop")
    kubectl("delete", "configmap", "shop-manifest")
    manifest = eventually(lambda: kubectl.get("configmap", "shop-manifest"))
    assert "volumeClaim" in json.dumps(manifest["data"])
    kubectl.patch("persistentvolumeclaim", "shop-staging", {"metadata": {"finalizers": None}})
    kubectl("delete", "persistentvolumeclaim", "shop-staging")
    eventually(lambda: kubectl.get("persistentvolumeclaim", "shop-staging"))
