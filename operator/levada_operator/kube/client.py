"""Requests with the official client's connection pool and credentials. Its models are not used: objects are dicts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import urllib3
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from levada_operator.kube.interface import RESOURCES, RequestFailed
from levada_operator.names import FIELD_MANAGER
from levada_operator.observe.objects import Body

_CONNECT_S: Final = 2
_READ_S: Final = 30
_LONGEST_WAIT_S: Final = 60.0
_RETRIES: Final = 1
"""Retries of a connection. A write is thus sent within 4 s or never, and the leader's safety margin is 5 s."""


class ApiServer:
    """Implementation of `levada_operator.kube.interface.Cluster` and of `LeaseRequests`."""

    def __init__(self, api: client.ApiClient, read_s: float = _READ_S) -> None:
        self._api = api
        self._timeout_s = (_CONNECT_S, read_s)

    @classmethod
    def connect(cls, read_s: float = _READ_S) -> ApiServer:
        """Connect with the pod's service account, else with the kubeconfig. ``read_s`` is the time-out of an answer."""
        try:
            config.load_incluster_config()  # type: ignore[no-untyped-call]  # as the client has it
        except config.ConfigException:
            config.load_kube_config()  # type: ignore[no-untyped-call]  # as the client has it
        configuration = client.Configuration.get_default_copy()
        configuration.retries = _RETRIES
        return cls(client.ApiClient(configuration), read_s)

    def list_objects(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects of a kind, from the API server's watch cache."""
        resource = RESOURCES[kind]
        where = f"/namespaces/{namespace}" if namespace else ""
        query: list[tuple[str, Any]] = [("resourceVersion", "0")]
        if labels:
            query.append(("labelSelector", labels))
        if fields:
            query.append(("fieldSelector", fields))
        answer = self._request("GET", f"{resource.prefix}{where}/{resource.plural}", query=query)
        group = resource.prefix.removeprefix("/apis/").removeprefix("/api/")
        items: list[dict[str, Any]] = answer["items"]
        return [{"apiVersion": group, "kind": kind, **item} for item in items]

    def get(self, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Return an object, or None if it does not exist."""
        try:
            return self._request("GET", _path(kind, namespace, name))
        except RequestFailed as error:
            if error.status == 404:
                return None
            raise

    def create(self, body: Body) -> dict[str, Any]:
        """Create an object and return it."""
        metadata = body["metadata"]
        path = _path(body["kind"], metadata["namespace"], metadata["name"]).rpartition("/")[0]
        return self._request("POST", path, body)

    def replace(self, body: Body) -> dict[str, Any]:
        """Replace an object of the same resourceVersion and return it."""
        metadata = body["metadata"]
        return self._request("PUT", _path(body["kind"], metadata["namespace"], metadata["name"]), body)

    def apply(self, body: Body) -> dict[str, Any]:
        """Apply the object by server-side apply, and return it."""
        metadata = body["metadata"]
        return self._apply(_path(body["kind"], metadata["namespace"], metadata["name"]), body)

    def rehearse(self, body: Body) -> None:
        """Have the API server check an `apply` of this object without storing it."""
        metadata = body["metadata"]
        self._apply(_path(body["kind"], metadata["namespace"], metadata["name"]), body, ("dryRun", "All"))

    def apply_status(self, kind: str, namespace: str, name: str, status: Body) -> dict[str, Any]:
        """Apply the status by server-side apply, and return the object."""
        version = RESOURCES[kind].prefix.removeprefix("/apis/")
        body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "status": status}
        return self._apply(_path(kind, namespace, name) + "/status", body)

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object and what it owns. A missing object is no error."""
        try:
            self._request("DELETE", _path(kind, namespace, name), {"propagationPolicy": "Background"})
        except RequestFailed as error:
            if error.status != 404:
                raise

    def _apply(self, path: str, body: Body, *more: tuple[str, str]) -> dict[str, Any]:
        query = [("fieldManager", FIELD_MANAGER), ("force", "true"), *more]
        return self._request("PATCH", path, body, query=query, content_type="application/apply-patch+yaml")

    def _request(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        query: list[tuple[str, Any]] | None = None,
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if body is not None else {})
        # JSON is valid YAML. The client does not encode bytes again.
        sent = body if content_type == "application/json" else json.dumps(body).encode()
        request = self._api.param_serialize(
            method, path, query_params=query or [], header_params=headers, body=sent, auth_settings=["BearerToken"]
        )
        try:
            response = self._api.call_api(*request, _request_timeout=self._timeout_s)
            data = response.read()  # type: ignore[no-untyped-call]  # as the client has it
        except ApiException as error:
            text = str(error.body or error.reason or "")
            raise _failure(int(error.status or 0), text, _retry_after_s(error.headers)) from None
        except urllib3.exceptions.HTTPError as error:
            raise RequestFailed(0, f"no answer from the API server: {type(error).__name__}") from None
        if not 200 <= response.status < 300:
            raise _failure(response.status, data.decode(errors="replace"), _retry_after_s(response.headers))
        answer: dict[str, Any] = json.loads(data)
        return answer


def _path(kind: str, namespace: str, name: str) -> str:
    resource = RESOURCES[kind]
    return f"{resource.prefix}/namespaces/{namespace}/{resource.plural}/{name}"


def _failure(status: int, text: str, retry_after_s: float) -> RequestFailed:
    try:
        answer = json.loads(text)
        details = answer.get("details") or {}
        causes = [str(c.get("reason", "")) for c in details.get("causes") or ()]
        return RequestFailed(status, str(answer.get("message", text)), causes, retry_after_s)
    except (ValueError, AttributeError):
        return RequestFailed(status, text[:200], retry_after_s=retry_after_s)


def _retry_after_s(headers: Mapping[str, str] | None) -> float:
    """Return the seconds of a header ``Retry-After``, 0 without one. The API server never sends a date there."""
    value = (headers or {}).get("Retry-After", "")
    return min(float(value), _LONGEST_WAIT_S) if value.isdecimal() else 0.0
