"""The ConfigMaps of one namespace, accessed through the API server: consistent reads and compare-and-set writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from levada.errors import NeedsOperator, Transient

_TIMEOUT_S: Final = (3, 15)
_OWN_NAMESPACE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_MERGE: Final = "application/merge-patch+json"
_BUSY: Final = frozenset({408, 429})

_T = TypeVar("_T")


class Version(NamedTuple):
    """The content of a ConfigMap when it was last read.

    ``number`` is its resourceVersion, empty if it did not exist.
    """

    number: str
    data: Mapping[str, str]


class Conflict(Exception):  # noqa: N818 - not an error: the compare-and-set is repeated
    """The ConfigMap has changed since it was last read."""


class ConfigMaps:
    """The ConfigMaps of a namespace, in the cluster of this pod or of $KUBECONFIG.

    Each method raises Transient ``store_unreachable`` if the API server does not answer, and NeedsOperator if it
    rejects the request.
    """

    def __init__(self, namespace: str = "") -> None:
        try:
            # The client's functions have no annotations.
            config.load_incluster_config()  # type: ignore[no-untyped-call]
            namespace = _OWN_NAMESPACE.read_text().strip()
        except config.ConfigException:
            namespace = _load_kubeconfig(namespace)
        self.namespace = namespace
        self._api = client.CoreV1Api()

    def read(self, name: str) -> Version:
        """Return the ConfigMap's current content by a consistent read."""
        try:
            read = self._api.read_namespaced_config_map
            return _version(self._ask(name, lambda: read(name, self.namespace, **_asked)))
        except _Missing:
            return Version("", {})

    def patch(self, name: str, seen: Version, data: Mapping[str, str]) -> Version:
        """Replace the ConfigMap's content by ``data``, sending only the difference.

        Raise Conflict if it is not as ``seen``.
        """
        changes = {key: data.get(key) for key in seen.data.keys() | data.keys() if data.get(key) != seen.data.get(key)}
        body: Any = {"metadata": {"resourceVersion": seen.number}, "data": changes}
        try:
            patch = self._api.patch_namespaced_config_map
            return _version(self._ask(name, lambda: patch(name, self.namespace, body, _content_type=_MERGE, **_asked)))
        except _Missing:
            raise Conflict from None

    def create(self, name: str, data: Mapping[str, str], labels: Mapping[str, str]) -> Version:
        """Create the ConfigMap. Raise Conflict if it exists."""
        body: Any = {"metadata": {"name": name, "labels": dict(labels)}, "data": dict(data)}
        try:
            create = self._api.create_namespaced_config_map
            return _version(self._ask(name, lambda: create(self.namespace, body, **_asked)))
        except _Missing:
            raise NeedsOperator(
                "store_refused",
                f"namespace {self.namespace} for ConfigMap {name} does not exist",
                hint=f"kubectl create namespace {self.namespace}",
            ) from None

    def close(self) -> None:
        """Close the connections."""
        self._api.api_client.close()

    def _ask(self, name: str, request: Callable[[], _T]) -> _T:
        where = f"ConfigMap {self.namespace}/{name}"
        try:
            return request()
        except ApiException as error:
            text = str(error.body or error.reason or "")
            raise _failure(int(error.status or 0), text, self.namespace, name) from None
        except urllib3.exceptions.HTTPError as error:
            raise Transient(
                "store_unreachable", f"{where}: no answer from the API server: {type(error).__name__}"
            ) from None


_asked: Final[Any] = {"_request_timeout": _TIMEOUT_S}


class _Missing(Exception):  # noqa: N818
    pass


def _load_kubeconfig(namespace: str) -> str:
    try:
        config.load_kube_config()  # type: ignore[no-untyped-call]
        _, context = config.list_kube_config_contexts()  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise NeedsOperator(
            "no_cluster",
            f"ConfigMaps need a cluster, but there is none in this pod or a kubeconfig: {error}",
            hint="set KUBECONFIG, or, for a store, use spec.store.postgres",
        ) from None
    return namespace or context["context"].get("namespace") or "default"


def _version(found: client.V1ConfigMap) -> Version:
    assert found.metadata is not None
    return Version(str(found.metadata.resource_version), found.data or {})


def _failure(status: int, text: str, namespace: str, name: str) -> Exception:
    where = f"ConfigMap {namespace}/{name}"
    if status == 404:
        return _Missing()
    if status == 409:
        return Conflict()
    if status in (401, 403):
        return NeedsOperator(
            "store_privilege_missing",
            f"{where}: the API server refused the request ({status}): {_message(text)}",
            hint="let this service account read and change ConfigMaps. To check:"
            f" kubectl -n {namespace} auth can-i patch configmaps/{name}",
        )
    if status in _BUSY or not 400 <= status < 500:
        return Transient("store_unreachable", f"{where}: the API server answered {status}: {_message(text)}")
    hint = "correct what the message names"
    if "immutable" in text:
        # Its content is the pipeline's state, so it is not to be deleted.
        kubectl = f"kubectl -n {namespace}"
        hint = (
            f"make it again with its content, without immutable: {kubectl} get configmap {name} -o yaml"
            f" | sed '/^immutable:/d' > {name}.yaml && {kubectl} replace --force -f {name}.yaml"
        )
    return NeedsOperator(
        "store_refused", f"{where}: the API server refused the request ({status}): {_message(text)}", hint=hint
    )


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])[:500]
    except (ValueError, KeyError, TypeError):
        return text[:200]
