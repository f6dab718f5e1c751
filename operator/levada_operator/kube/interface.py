"""Protocols of the requests to the API server, and their error."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from levada_operator.kube.items import Unread
from levada_operator.names import API_VERSION
from levada_operator.observe.objects import Body


class Resource(NamedTuple):
    """The path prefix and the plural name of a kind in the API."""

    prefix: str
    plural: str


RESOURCES: Final[Mapping[str, Resource]] = {
    "ConfigMap": Resource("/api/v1", "configmaps"),
    "Event": Resource("/api/v1", "events"),
    "Job": Resource("/apis/batch/v1", "jobs"),
    "Lease": Resource("/apis/coordination.k8s.io/v1", "leases"),
    "NetworkPolicy": Resource("/apis/networking.k8s.io/v1", "networkpolicies"),
    "PersistentVolumeClaim": Resource("/api/v1", "persistentvolumeclaims"),
    "Pipeline": Resource(f"/apis/{API_VERSION}", "pipelines"),
    "Pod": Resource("/api/v1", "pods"),
    "Role": Resource("/apis/rbac.authorization.k8s.io/v1", "roles"),
    "RoleBinding": Resource("/apis/rbac.authorization.k8s.io/v1", "rolebindings"),
    "Service": Resource("/api/v1", "services"),
    "ServiceAccount": Resource("/api/v1", "serviceaccounts"),
    "StatefulSet": Resource("/apis/apps/v1", "statefulsets"),
    "StorageClass": Resource("/apis/storage.k8s.io/v1", "storageclasses"),
    "TableSync": Resource(f"/apis/{API_VERSION}", "tablesyncs"),
}
"""Every kind that the operator reads or writes. Secrets are not among them."""


_NO_SCHEMA: Final = "failed to create typed patch object"
TOO_LARGE: Final = 413
"""The status of a failure whose answer is too large or too deep to be read."""


@dataclass(slots=True)
class Listing:
    """The objects of a list, and those that were not read."""

    objects: list[dict[str, Any]] = field(default_factory=list)
    unread: list[Unread] = field(default_factory=list)
    version: int = 0
    """The state that was listed. An object of a later resourceVersion may be missing. 0 if it is not known."""


class RequestFailed(Exception):  # noqa: N818 - it reads as what happened, as all our errors do
    """A request to the API server failed. ``status`` is the HTTP status, or 0 if there was no answer.

    ``retry_after_s`` is for how many seconds the server asks not to be sent another request.
    """

    def __init__(self, status: int, message: str, causes: Sequence[str] = (), retry_after_s: float = 0.0) -> None:
        super().__init__(f"{message} ({status})" if status else message)
        self.status = status
        self.message = message
        self.retry_after_s = retry_after_s
        self.namespace_terminating = "NamespaceTerminating" in causes

    @property
    def refused(self) -> bool:
        """Return True if the same request would be refused again. A field that no schema has is answered by 500."""
        return self.status in (400, 403, 409, 413, 422) or self.message.startswith(_NO_SCHEMA)


class Cluster(Protocol):
    """Requests to the API server. They block, may be called from several threads, and raise RequestFailed."""

    def list_objects(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "", *, metadata: bool = False
    ) -> Listing:
        """Return the objects of a kind, in all namespaces unless one is given. They may be slightly outdated.

        ``labels`` and ``fields`` are selectors. With ``metadata`` the objects have no more than that.
        """

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""

    def apply(self, body: Body) -> dict[str, Any]:
        """Apply the object by server-side apply, and return it."""

    def rehearse(self, body: Body) -> None:
        """Have the API server validate an `apply` of this object, or the creation of a Pod, without storing it."""

    def apply_status(self, kind: str, namespace: str, name: str, status: Body) -> dict[str, Any]:
        """Apply the status by server-side apply, and return the object."""

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and what it owns. A missing object is no error."""

    def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any]:
        """Replace the finalizers of an object of the same resourceVersion, and return it."""


class LeaseRequests(Protocol):
    """The requests of leader election. All block and raise RequestFailed."""

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""

    def create(self, body: Body) -> dict[str, Any]:
        """Create an object and return it. The status of the failure is 409 if it exists."""

    def replace(self, body: Body) -> dict[str, Any]:
        """Replace an object and return it. The status of the failure is 409 if it is another version by now."""
