"""A fence against writes by a process that no longer leads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from levada_operator.kube.interface import Cluster, Listing, RequestFailed
from levada_operator.observe.objects import Body


class FencedCluster:
    """A `Cluster` that refuses writes unless ``leads`` returns True. It calls ``leads`` right before each write.

    A dry run writes nothing, but only a leader has a use for it, and it is a write in an audit log.
    """

    def __init__(self, cluster: Cluster, leads: Callable[[], bool]) -> None:
        self._cluster = cluster
        self._leads = leads

    def list_objects(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = "", *, metadata: bool = False
    ) -> Listing:
        """Return the objects of a kind."""
        return self._cluster.list_objects(kind, namespace, labels, fields, metadata=metadata)

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        return self._cluster.get(kind, namespace, name)

    def rehearse(self, body: Body) -> None:
        """Validate an object by a dry run. Nothing is written."""
        self._check()
        self._cluster.rehearse(body)

    def apply(self, body: Body) -> dict[str, Any]:
        """Apply an object's fields and return it."""
        self._check()
        return self._cluster.apply(body)

    def apply_status(self, kind: str, namespace: str, name: str, status: Body) -> dict[str, Any]:
        """Apply a status and return the object."""
        self._check()
        return self._cluster.apply_status(kind, namespace, name, status)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and what it owns."""
        self._check()
        self._cluster.delete(kind, namespace, name)

    def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any]:
        """Replace the finalizers of an object and return it."""
        self._check()
        return self._cluster.set_finalizers(body, finalizers)

    def _check(self) -> None:
        refuse_unless(self._leads())


def refuse_unless(leads: bool) -> None:
    """Raise RequestFailed unless this process leads."""
    if not leads:
        raise RequestFailed(0, "nothing is written: another operator may hold the Lease by now")
