"""Objects of every kind that the operator reads or writes, made by a tenant under the names that it would give them."""

from __future__ import annotations

from typing import Any, Final

import pytest
from tests.cluster.api.pipelines import condition, events
from tests.cluster.api_server import api_server
from tests.cluster.kubectl import eventually
from tests.cluster.tenants import hostile
from tests.cluster.tenants.place import Place

from levada_operator.kube.interface import RESOURCES

_RULES: Final = [{"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "list"]}]
_CLAIM: Final = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
_JOB: Final = {"template": {"spec": hostile.pod_spec() | {"restartPolicy": "Never"}}, "suspend": True}
_ROLE: Final = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:aggregate-to-view"}
CONTENTS: Final[dict[str, dict[str, Any]]] = {
    "ConfigMap": {"data": {"pipeline.yaml": "kind: Pipeline"}},
    "Event": {"reason": "FailedCreate", "type": "Warning", "message": "x"},
    "Job": {"spec": _JOB},
    "Lease": {"spec": {"holderIdentity": "mallory", "renewTime": "2030-01-01T00:00:00.000000Z"}},
    "NetworkPolicy": {"spec": {"podSelector": {}}},
    "PersistentVolumeClaim": {"spec": _CLAIM},
    "Pod": {"spec": hostile.pod_spec()},
    "Role": {"rules": _RULES},
    "RoleBinding": {"roleRef": _ROLE, "subjects": []},
    "Secret": {"stringData": {"x": "y"}},
    "Service": {"spec": {"clusterIP": "None", "selector": {"levada.dev/role": "driver"}}},
    "ServiceAccount": {},
    "StatefulSet": {"spec": hostile.stateful_set("x")["spec"]},
}
"""The content of an object of each kind, apart from its metadata."""
NAMES: Final = {
    "ConfigMap": "manifest", "Job": "cleanup", "Lease": "lease", "PersistentVolumeClaim": "staging",
    "Pod": "driver-0", "Secret": "secret", "Event": "event",
}  # fmt: skip
"""The ends of their names. Those of the others are ``driver``."""


def body(kind: str, pipeline: str, place: Place, **metadata: Any) -> dict[str, Any]:
    """Return an object with the name of one that the operator makes for a Pipeline."""
    name = f"{pipeline}-{NAMES.get(kind, 'driver')}"
    made = hostile.claimed(name, kind, **metadata)
    made["apiVersion"] = api_server().resource(kind).version
    made["metadata"]["labels"]["levada.dev/pipeline"] = pipeline
    if kind == "Event":
        made["involvedObject"] = {"kind": "Pipeline", "name": pipeline, "namespace": place.tenant.kubectl.namespace}
    return made | CONTENTS[kind]


def make(place: Place, made: dict[str, Any]) -> None:
    """Create an object as the tenant, or what the role edit does not allow as the admin of her namespace."""
    if made["kind"] in ("Role", "RoleBinding"):
        place.tenant.kubectl.create(made)
    else:
        place.tenant.create(made)


def test_every_kind_is_attacked() -> None:
    """No kind that the operator reads or writes is left out, but those that tenants' tests make anyway."""
    assert RESOURCES.keys() - CONTENTS.keys() == {"Pipeline", "TableSync", "StorageClass"}


def test_objects_that_claim_another_tenants_pipeline(place: Place) -> None:
    """Of every kind, with its name, label, UID as owner and a finalizer. Nothing of that Pipeline changes."""
    eventually(lambda: place.honest.get("statefulset", "shop-driver"))
    place.operator.swept_twice()
    honest = place.honest.get("pipeline", "shop")
    owner = {"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline", "name": "shop", "uid": honest["metadata"]["uid"],
             "controller": True, "blockOwnerDeletion": False}  # fmt: skip
    there = place.honest.get("statefulset,configmap,service,serviceaccount,networkpolicy")
    before = {(b["kind"], b["metadata"]["name"]): b["metadata"]["uid"] for b in there}
    for kind in CONTENTS:
        make(place, body(kind, "shop", place, ownerReferences=[owner], finalizers=["example.com/never"]))
    place.holds()
    there = place.honest.get("statefulset,configmap,service,serviceaccount,networkpolicy")
    assert {(b["kind"], b["metadata"]["name"]): b["metadata"]["uid"] for b in there} == before
    eventually(lambda: not events(place.honest, "ObjectsUnread"))
    for kind in CONTENTS:
        made = place.tenant.kubectl.get(kind.lower(), body(kind, "shop", place)["metadata"]["name"])
        managers = {f["manager"] for f in made["metadata"].get("managedFields", ())}
        assert "levada-operator" not in managers, kind
        place.tenant.kubectl.patch(kind.lower(), made["metadata"]["name"], {"metadata": {"finalizers": None}})


@pytest.mark.parametrize("labelled", [False, True])
def test_objects_that_are_there_before_their_pipeline(place: Place, labelled: bool) -> None:
    """The Pipeline says which object is not its own, or takes it over with the label. No other one waits."""
    name = f"squat{labelled}".lower()
    for kind in CONTENTS:
        made = body(kind, name, place, finalizers=["example.com/never"])
        if not labelled:
            del made["metadata"]["labels"]
        make(place, made)
    place.tenant.pipeline(name, suspend=True, store={"configMap": {}})
    kubectl = place.tenant.kubectl
    eventually(lambda: condition(kubectl, "Accepted", name) == ("False", "RefusedByCluster"))
    message = next(
        c["message"] for c in kubectl.get("pipeline", name)["status"]["conditions"] if c["type"] == "Accepted"
    )
    assert name in message
    place.holds()
    assert kubectl.get("rolebinding", f"{name}-driver")["roleRef"]["name"] == "system:aggregate-to-view"
    assert kubectl.get("rolebinding", f"{name}-driver").get("subjects", []) == []
