"""Requests over a pool of connections. Objects are dicts.

The official client is not used: importing it takes 25 MB, most of it for models of objects.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import urllib3

from levada_operator.kube.interface import RESOURCES, RequestFailed
from levada_operator.names import FIELD_MANAGER
from levada_operator.observe.objects import Body

_CONNECT_S: Final = 2
READ_S: Final = 30.0
"""The time-out of an answer, in seconds."""
_LONGEST_WAIT_S: Final = 60.0
_RETRIES: Final = urllib3.Retry(1, redirect=0, respect_retry_after_header=False)
"""Retries of a connection. A write is thus sent within 4 s or never, and the leader's safety margin is 5 s.

A 429 is not repeated here: the budget of writes takes its Retry-After."""
_CONNECTIONS: Final = 10
_PAGE: Final = 250
"""Objects in one page of a list."""


class ApiServer:
    """Implementation of `levada_operator.kube.interface.Cluster` and of `LeaseRequests`.

    ``headers`` returns the headers with the credentials. It is called for each request, because tokens are replaced.
    ``read_s`` is the time-out of an answer, in seconds.
    """

    def __init__(
        self, server: str, context: ssl.SSLContext, headers: Callable[[], Mapping[str, str]], read_s: float = READ_S
    ) -> None:
        self._server = server.rstrip("/")
        self._headers = headers
        self._pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS,
            ssl_context=context,
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
            retries=_RETRIES,
        )

    def list_objects(
        self, kind: str, namespace: str | None = None, labels: str = "", fields: str = ""
    ) -> list[dict[str, Any]]:
        """Return the objects of a kind without their managedFields.

        Levada's own kinds, of which there are thousands, are read by pages, so that few are in memory as text. Others
        come from the API server's watch cache, which has no pages, because there may be many of other applications.
        """
        resource = RESOURCES[kind]
        where = f"/namespaces/{namespace}" if namespace else ""
        own = resource.prefix == RESOURCES["Pipeline"].prefix
        query = [("limit", str(_PAGE))] if own else [("resourceVersion", "0")]
        if labels:
            query.append(("labelSelector", labels))
        if fields:
            query.append(("fieldSelector", fields))
        group = resource.prefix.removeprefix("/apis/").removeprefix("/api/")
        found: list[dict[str, Any]] = []
        following = ""
        while True:
            more = [("continue", following)] if following else []
            answer = self._request("GET", f"{resource.prefix}{where}/{resource.plural}", query=query + more)
            for item in answer["items"]:
                item["metadata"].pop("managedFields", None)
                found.append({"apiVersion": group, "kind": kind, **item})
            following = answer["metadata"].get("continue", "")
            if not following:
                return found

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
        query: Sequence[tuple[str, str]] = (),
        content_type: str = "application/json",
    ) -> dict[str, Any]:
        headers = {"Accept": "application/json", "User-Agent": FIELD_MANAGER, **self._headers()}
        if body is not None:
            headers["Content-Type"] = content_type
        url = self._server + path + (f"?{urlencode(query)}" if query else "")
        # JSON is valid YAML.
        sent = json.dumps(body).encode() if body is not None else None
        try:
            response = self._pool.request(method, url, body=sent, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise RequestFailed(0, f"no answer from the API server at {self._server}: {_cause(error)}") from None
        if not 200 <= response.status < 300:
            text = response.data.decode(errors="replace")
            raise _failure(response.status, text, _retry_after_s(response.headers))
        answer: dict[str, Any] = json.loads(response.data)
        return answer


def _path(kind: str, namespace: str, name: str) -> str:
    resource = RESOURCES[kind]
    return f"{resource.prefix}/namespaces/{namespace}/{resource.plural}/{name}"


def _cause(error: urllib3.exceptions.HTTPError) -> str:
    """Return the system's text for a failed connection, else the name of the error."""
    # A MaxRetryError has the last attempt's error as its reason.
    reason = getattr(error, "reason", None) or error
    for found in (reason.__cause__, *reason.args):
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
    return type(reason).__name__


def _failure(status: int, text: str, retry_after_s: float) -> RequestFailed:
    try:
        answer = json.loads(text)
        details = answer.get("details") or {}
        causes = [str(c.get("reason", "")) for c in details.get("causes") or ()]
        return RequestFailed(status, str(answer.get("message", text)), causes, retry_after_s)
    except (ValueError, AttributeError):
        return RequestFailed(status, text[:200], retry_after_s=retry_after_s)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of a header ``Retry-After``, 0 without one. The API server never sends a date there."""
    value = headers.get("Retry-After", "")
    return min(float(value), _LONGEST_WAIT_S) if value.isdecimal() else 0.0
