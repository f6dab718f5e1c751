"""A tenant with the role edit in one namespace, and the objects by which she would stop the operator for all others."""

from __future__ import annotations

import base64
import bz2
import functools
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.cluster.api.pipelines import shop
from tests.cluster.api_server import MERGE, api_server
from tests.cluster.kubectl import Kubectl, allowed

_GROUP: Final = "rbac.authorization.k8s.io"
_EDIT: Final = ("system:aggregate-to-edit", "system:aggregate-to-view")
"""The parts of the role edit, which no controller may have aggregated."""
_LEVADA: Final = [
    {"apiGroups": ["levada.dev"], "resources": ["pipelines", "tablesyncs"],
     "verbs": ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"]},
]  # fmt: skip


@dataclass
class Tenant:
    """A person with the role edit in a namespace, and with nothing else."""

    kubectl: Kubectl
    user: str = field(default_factory=lambda: f"mallory-{uuid.uuid4().hex[:6]}")

    def welcome(self) -> None:
        """Give her the role."""
        subject = {"kind": "User", "name": self.user, "apiGroup": _GROUP}
        self.kubectl.create({"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": {"name": "levada"},
                             "rules": _LEVADA})  # fmt: skip
        roles = [("ClusterRole", name) for name in _EDIT] + [("Role", "levada")]
        for kind, name in roles:
            self.kubectl.create({
                "apiVersion": f"{_GROUP}/v1", "kind": "RoleBinding", "metadata": {"name": name.replace(":", "-")},
                "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": name}, "subjects": [subject]})  # fmt: skip
        allowed(self.kubectl, self.user, "create statefulsets.apps", "get configmaps", "create pipelines.levada.dev")

    def create(self, body: dict[str, Any]) -> dict[str, Any]:
        """Create an object as herself, and return it."""
        path = api_server().resource(body["kind"]).path(self.kubectl.namespace)
        made: dict[str, Any] = api_server().ask("POST", path, body, user=self.user)
        return made

    def patch(self, kind: str, name: str, patch: dict[str, Any]) -> None:
        """Merge a patch into an object as herself."""
        path = api_server().resource(kind).path(self.kubectl.namespace, name)
        api_server().ask("PATCH", path, patch, content=MERGE, user=self.user)

    def delete(self, kind: str, name: str) -> None:
        """Delete an object as herself."""
        path = api_server().resource(kind).path(self.kubectl.namespace, name)
        api_server().ask("DELETE", path, {"propagationPolicy": "Background"}, user=self.user)

    def pipeline(self, name: str, **changes: Any) -> dict[str, Any]:
        """Create a Pipeline, and return it."""
        return self.create(shop(name, **changes))


def claimed(name: str, kind: str, *, owner: Mapping[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return the head of an object with the label of a Pipeline, owned by it if its object is given."""
    pipeline = name.rpartition("-driver")[0] or name
    more: dict[str, Any] = {"labels": {"levada.dev/pipeline": pipeline, "levada.dev/role": "driver"}}
    if owner is not None:
        more["labels"]["levada.dev/pipeline"] = owner["metadata"]["name"]
        more["ownerReferences"] = [{"apiVersion": "levada.dev/v1alpha1", "kind": "Pipeline",
                                    "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}]  # fmt: skip
    version = {"StatefulSet": "apps/v1", "Job": "batch/v1"}.get(kind, "v1")
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **more, **metadata}}


def stateful_set(name: str, *, owner: Mapping[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """Return a StatefulSet of her own."""
    labels = {"app": name}
    return claimed(name, "StatefulSet", owner=owner, **metadata) | {
        "spec": {"replicas": 0, "serviceName": name, "selector": {"matchLabels": labels},
                 "template": {"metadata": {"labels": labels}, "spec": pod_spec()}},
    }  # fmt: skip


def pod_spec() -> dict[str, Any]:
    """Return a pod that the restricted standard admits and no node takes."""
    restricted = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True,
                  "seccompProfile": {"type": "RuntimeDefault"}}  # fmt: skip
    return {"schedulerName": "nobody", "containers": [{"name": "driver", "image": "x", "securityContext": restricted}]}


def pod(name: str, *, maker: Mapping[str, Any] | None = None, pipeline: str = "") -> dict[str, Any]:
    """Return a Pod that looks like a driver. ``maker`` is the StatefulSet that it names as its owner."""
    body = claimed(name, "Pod")
    body["metadata"]["labels"]["levada.dev/pipeline"] = pipeline or name.removesuffix("-driver-0")
    if maker is not None:
        own = maker["metadata"]
        body["metadata"]["ownerReferences"] = [
            {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": own["name"], "uid": own["uid"], "controller": True}
        ]
    return body | {"spec": pod_spec()}


def config_maps(count: int, size: int, owner: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield ConfigMaps with the label, each with so many bytes."""
    for number in range(count):
        yield claimed(f"big-{number}", "ConfigMap", owner=owner) | {"data": {"x": "x" * size}}


@functools.cache
def bomb(streams: int) -> str:
    """Return an annotation of about a kilobyte that unpacks to 48 MiB of text for each stream."""
    return base64.b64encode(bz2.compress(b"a" * (48 << 20)) * streams).decode()


def deep(levels: int) -> dict[str, Any]:
    """Return a mapping with so many levels."""
    body: dict[str, Any] = {}
    for _ in range(levels):
        body = {"a": body}
    return body


def size_of(body: object) -> int:
    """Return the bytes of an object as JSON."""
    return len(json.dumps(body))
