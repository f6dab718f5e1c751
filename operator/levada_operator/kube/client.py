"""Requests over a pool of connections. Objects are dicts.

The official client is not used: importing it takes 25 MB, most of it for models of objects.
"""

from __future__ import annotations

import json
import ssl
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3

from levada_operator.kube.interface import RESOURCES, TOO_LARGE, Listing, RequestFailed
from levada_operator.kube.items import MAX_OBJECT, Unread, parse_items, parse_object
from levada_operator.names import FIELD_MANAGER
from levada_operator.observe.objects import Body
from levada_operator.observe.plain_text import plain_text

_CONNECT_S: Final = 2
READ_S: Final = 30.0
"""The time-out of an answer, in seconds."""
_LONGEST_WAIT_S: Final = 60.0
_RETRIES: Final = urllib3.Retry(1, redirect=0, respect_retry_after_header=False)
"""Retries of a connection. A write is thus sent within 4 s or never, and the leader's safety margin is 5 s.

A 429 is not repeated here: the budget of writes takes its Retry-After."""
_CONNECTIONS: Final = 24
"""Connections that are kept: one for each thread that makes requests."""
_PAGE: Final = 250
"""Objects in one page of a list."""
LIST_S: Final = 20.0
"""The time limit of a list's first page, in seconds."""
_PAGE_S: Final = 5.0
"""The time that each page adds to the limit. The first list of all ends on a slow API server too."""
_LISTS_S: Final = 100.0
"""The time limit of a whole list, in seconds. Below the watchdog's, which a list that ends satisfies."""
MAX_LIST: Final = 48 << 20
"""Bytes that the objects of a list may take once they are parsed. Those after them are left out."""
_CHUNK: Final = 1 << 16
_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


class ApiServer:
    """Implementation of `levada_operator.kube.interface.Cluster` and of `LeaseRequests`.

    ``headers`` returns the headers with the credentials. It is called for each request, because tokens are replaced.
    ``read_s`` is the time-out of an answer, in seconds. ``clock`` is monotonic.
    """

    def __init__(
        self,
        server: str,
        context: ssl.SSLContext,
        headers: Callable[[], Mapping[str, str]],
        read_s: float = READ_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._server = server.rstrip("/")
        self._clock = clock
        self._headers = headers
        self._pool = urllib3.PoolManager(
            maxsize=_CONNECTIONS,
            ssl_context=context,
            timeout=urllib3.Timeout(connect=_CONNECT_S, read=read_s),
            retries=_RETRIES,
        )

    def list_objects(
        self,
        kind: str,
        namespace: str | None = None,
        labels: str = "",
        fields: str = "",
        *,
        metadata: bool = False,
        most: int = MAX_LIST,
    ) -> Listing:
        """Return the objects of a kind without their managedFields, and what could not be read of others.

        With ``metadata`` only their metadata is requested. Levada's own kinds, of which there are thousands, are read
        by pages, so that few are in memory as text. Others come from the API server's watch cache, which has no pages,
        because there may be many of other applications.
        """
        resource = RESOURCES[kind]
        where = f"/namespaces/{namespace}" if namespace else ""
        own = resource.prefix == RESOURCES["Pipeline"].prefix
        query = [("limit", str(_PAGE))] if own else [("resourceVersion", "0")]
        if labels:
            query.append(("labelSelector", labels))
        if fields:
            query.append(("fieldSelector", fields))
        path = f"{resource.prefix}{where}/{resource.plural}"
        accept = _METADATA if metadata else "application/json"
        group = resource.prefix.removeprefix("/apis/").removeprefix("/api/")
        found = Listing()
        left, begun, following = most, self._clock(), ""
        until = begun + LIST_S
        while True:
            more = [("continue", following)] if following else []
            rest: list[bytes] = []
            for item in parse_items(self._stream("GET", path, query + more, accept, until), rest):
                if isinstance(item, Unread):
                    found.unread.append(item)
                    continue
                body, size = item
                head = body["metadata"]
                head.pop("managedFields", None)
                left -= size
                if left < 0:
                    reason = f"the {kind}s of its namespace would take more than {most >> 20} MiB of memory"
                    found.unread.append(Unread(head.get("namespace", ""), head["name"], reason))
                else:
                    found.objects.append({**body, "apiVersion": group, "kind": kind})
            following, found.version = _continue(rest[0])
            if not following:
                return found
            until = min(until + _PAGE_S, begun + _LISTS_S)

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
        """Have the API server check an `apply` of this object without storing it. A Pod is created instead.

        An apply of the Pod that runs would be a change, of which the API server allows next to nothing.
        """
        metadata = body["metadata"]
        if body["kind"] == "Pod":
            query = [("fieldManager", FIELD_MANAGER), ("fieldValidation", "Strict"), ("dryRun", "All")]
            try:
                self._request("POST", _path("Pod", metadata["namespace"], "").removesuffix("/"), body, query=query)
            except RequestFailed as error:
                # The API server finds the pod that runs after everything else.
                if error.status != 409 or not error.message.endswith("already exists"):
                    raise
            return
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

    def set_finalizers(self, body: Body, finalizers: Sequence[str]) -> dict[str, Any]:
        """Replace the finalizers of an object of the same resourceVersion, and return it."""
        metadata = body["metadata"]
        patch = {"metadata": {"finalizers": list(finalizers), "resourceVersion": metadata["resourceVersion"]}}
        path = _path(body["kind"], metadata["namespace"], metadata["name"])
        return self._request("PATCH", path, patch, content_type="application/merge-patch+json")

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
        sent = json.dumps(body).encode() if body is not None else None
        until = self._clock() + LIST_S + READ_S
        parts, size = [], 0
        for chunk in self._stream(method, path, query, "application/json", until, sent, content_type):
            size += len(chunk)
            if size > 2 * MAX_OBJECT:
                raise RequestFailed(TOO_LARGE, f"the answer to {method} {path} has more than {size >> 10} KiB")
            parts.append(chunk)
        answer = parse_object(b"".join(parts))
        if isinstance(answer, str):
            raise RequestFailed(TOO_LARGE, f"the answer to {method} {path} cannot be read: {answer}")
        return answer

    def _stream(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, str]],
        accept: str,
        until: float,
        sent: bytes | None = None,
        content_type: str = "",
    ) -> Iterator[bytes]:
        """Yield the bytes of an answer. Raise RequestFailed for a failed one, or if it is incomplete by ``until``."""
        headers = {"Accept": accept, "User-Agent": FIELD_MANAGER, **self._headers()}
        if sent is not None:
            headers["Content-Type"] = content_type
        url = self._server + path + (f"?{urlencode(query)}" if query else "")
        try:
            response = self._pool.request(method, url, body=sent, headers=headers, preload_content=False)
            complete = False
            try:
                if not 200 <= response.status < 300:
                    said = response.read(_CHUNK)
                    complete = len(said) < _CHUNK
                    text = said.decode(errors="replace")
                    raise _failure(response.status, text, _retry_after_s(response.headers))
                while chunk := response.read1(_CHUNK):
                    yield chunk
                    if self._clock() > until:
                        raise RequestFailed(0, f"{method} {path}: the answer of the API server did not end in time")
                complete = True
            finally:
                if complete:
                    response.release_conn()
                else:
                    # The rest of the answer is not read, so the connection cannot be used again.
                    response.close()
        except urllib3.exceptions.HTTPError as error:
            raise RequestFailed(0, f"no answer from the API server at {self._server}: {_cause(error)}") from None


def _path(kind: str, namespace: str, name: str) -> str:
    resource = RESOURCES[kind]
    # A name may come from an annotation. With its slashes it would lead to another object.
    return f"{resource.prefix}/namespaces/{_word(namespace)}/{resource.plural}/{_word(name)}"


def _word(name: str) -> str:
    if name in (".", ".."):
        raise RequestFailed(400, f"{name} is no name")
    return quote(name, safe="")


def _continue(text: bytes) -> tuple[str, int]:
    """Return the token of the list's next page, empty after the last one, and the list's version."""
    try:
        metadata = json.loads(text)["metadata"]
        version = str(metadata.get("resourceVersion") or "")
        return str(metadata.get("continue") or ""), int(version) if version.isdecimal() else 0
    except (ValueError, LookupError, AttributeError, TypeError):
        raise RequestFailed(0, "the API server's list has no metadata") from None


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
        return RequestFailed(status, plain_text(str(answer.get("message", text))), causes, retry_after_s)
    except (ValueError, AttributeError):
        return RequestFailed(status, text[:200], retry_after_s=retry_after_s)


def _retry_after_s(headers: Mapping[str, str]) -> float:
    """Return the seconds of a header ``Retry-After``, 0 without one. The API server never sends a date there."""
    value = headers.get("Retry-After", "")
    return min(float(value), _LONGEST_WAIT_S) if value.isdecimal() else 0.0
