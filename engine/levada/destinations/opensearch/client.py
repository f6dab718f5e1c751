"""The connection to the cluster, and the meaning of its errors.

No error of this module has a value of a document. OpenSearch's reasons may quote one, so they are left out of errors of
documents.
"""

from __future__ import annotations

import logging
import re
import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from opensearchpy import OpenSearch
from opensearchpy.exceptions import ConnectionError as NoConnection
from opensearchpy.exceptions import OpenSearchException, TransportError

from levada.destinations.credentials import read_credentials
from levada.destinations.opensearch.exact_json import ExactSerializer
from levada.errors import AccessDenied, LevadaError, LoginFailed, NeedsOperator, Transient

UNAVAILABLE: Final = "if this persists, check the cluster and its shards: GET /_cluster/health, GET /_cat/shards"
BUSY: Final = "if this persists, find the other process that writes to the indices of this pipeline, and stop it"
RESYNC: Final = "copy the table again: levada resync MANIFEST TABLE"


# The client logs each failed request with its body, which has values of rows.
for _name in ("opensearch", "opensearchpy.trace"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

REQUEST_S: Final = 60
"""The time limit of a request, in seconds. It is far below `generations.KEPT_DELETES`."""
_CONTENT_LENGTH: Final = 100 << 20
"""OpenSearch's default of http.max_content_length."""
CLOSED: Final = "index_closed_exception"
BLOCKED: Final = "cluster_block_exception"
_CREATE_BLOCKED: Final = "index_create_block_exception"
_LIMIT: Final = re.compile(r"maximum (?:normal )?shards open|Limit of total fields \[\d+\] has been exceeded")
"""OpenSearch's reasons that name a limit of the cluster or of an index. What they match has no value of a row."""
_LIMIT_HINT: Final = (
    "raise cluster.max_shards_per_node, or index.mapping.total_fields.limit of the index,"
    " then: levada retry MANIFEST TABLE"
)
_BUSY: Final = frozenset({408, 429, 500, 502, 503, 504})
_JSON: Final = {"content-type": "application/json"}
_BULK: Final = {"content-type": "application/x-ndjson"}


@dataclass(frozen=True, slots=True)
class Address:
    """A cluster's addresses, and the folder of the Secret. It can be pickled, for the processes that copy."""

    urls: tuple[str, ...]
    credentials: Path | None = None

    def open(self) -> Client:
        """Return a client. No connection is opened yet."""
        return Client(self)


@dataclass(slots=True)
class Client:
    """Sends requests. A changed Secret counts from the next request on. Thread-safe."""

    address: Address
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _keys: dict[str, str] | None = None
    _open: OpenSearch | None = None
    _content_length: int | None = None

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        doing: str,
        seconds: float = REQUEST_S,
        **parameters: str | int,
    ) -> Any:
        """Send a request and return the parsed answer. ``path`` is quoted already. ``doing`` is for messages.

        Raise NotFound for the status 404, Conflict for 409, and the errors of `error_of` for others.
        """
        headers = _BULK if isinstance(body, bytes) else _JSON
        timed = {k: str(v) for k, v in parameters.items()} | {"request_timeout": seconds}
        try:
            return self._client().transport.perform_request(method, path, params=timed, body=body, headers=headers)
        except (OpenSearchException, ssl.SSLError, ValueError) as error:
            raise error_of(doing, error) from None

    def content_length(self) -> int:
        """Return the size of the largest body that the nodes accept, in bytes. It is read once."""
        if self._content_length is None:
            parameter = "nodes.*.http.max_content_length_in_bytes"
            try:
                answer = self.request("GET", "/_nodes/http", doing="reading the limits of nodes", filter_path=parameter)
            except NeedsOperator:
                # The user may lack the privilege.
                answer = {}
            limits = [node["http"]["max_content_length_in_bytes"] for node in answer.get("nodes", {}).values()]
            self._content_length = min(limits, default=_CONTENT_LENGTH)
        return self._content_length

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            if self._open is not None:
                self._open.close()
            self._open, self._keys = None, None

    def _client(self) -> OpenSearch:
        folder = self.address.credentials
        keys = {} if folder is None else read_credentials(folder)
        with self._lock:
            if self._open is None or keys != self._keys:
                self._open, self._keys = _opened(self.address.urls, keys), keys
            return self._open


class NotFound(NeedsOperator):
    """The status 404. The caller knows what is missing."""


class Conflict(NeedsOperator):
    """The status 409 of a write that depends on an earlier version of a document."""


def _opened(urls: tuple[str, ...], keys: Mapping[str, str]) -> OpenSearch:
    login = (keys["username"], keys.get("password", "")) if keys.get("username") else None
    context = None
    if any(url.startswith("https:") for url in urls):
        try:
            context = ssl.create_default_context(cadata=keys.get("ca.crt"))
        except ssl.SSLError:
            raise LoginFailed(
                "credentials_unreadable",
                "key ca.crt of the destination's Secret is not a certificate in PEM",
                hint="store the certificate authority in the key ca.crt, in PEM",
            ) from None
    more: dict[str, Any] = {"serializer": ExactSerializer(), **({} if context is None else {"ssl_context": context})}
    # Retries belong to the engine. The client would repeat a write without a pause.
    return OpenSearch(list(urls), http_auth=login, max_retries=len(urls) - 1, retry_on_status=(), maxsize=8, **more)


def error_of(doing: str, error: Exception) -> LevadaError:
    """Return the error for a failed request. Its class is the retry policy."""
    if isinstance(error, NoConnection) or not isinstance(error, TransportError):
        cause = error.__cause__ or (error.info if isinstance(error, TransportError) else error)
        if "CERTIFICATE" in str(error).upper():
            return LoginFailed(
                "destination_tls_failed",
                f"{doing}: the certificate of the OpenSearch node is not trusted",
                hint="store the certificate authority in the key ca.crt of the Secret in"
                " spec.destination.opensearch.credentialsSecretRef",
            )
        return Transient(
            "destination_unavailable", f"{doing}: no answer from OpenSearch: {type(cause).__name__}", hint=UNAVAILABLE
        )
    status, kind = error.status_code, str(error.error)
    what = f"{doing}: OpenSearch answers {status} {kind}"
    if (limit := _limit(error.info)) is not None:
        return NeedsOperator("destination_limit", f"{what}: {limit}", hint=_LIMIT_HINT)
    if status == 404:
        return NotFound("destination_table_missing", what, hint=RESYNC)
    if status == 409:
        return Conflict("destination_busy", what, hint=BUSY)
    return refusal(status, kind, what)


def _limit(info: object) -> str | None:
    """Return OpenSearch's words for a limit that a request exceeds, or None."""
    found = _LIMIT.search(str(info))
    return None if found is None else found[0]


def refusal(status: object, kind: str, what: str) -> LevadaError:
    """Return the error for a refused request or document by its HTTP status and OpenSearch's type of error."""
    if status == 401:
        return LoginFailed(
            "destination_auth_failed",
            what,
            hint="correct username and password in the Secret of spec.destination.opensearch.credentialsSecretRef",
        )
    if kind == _CREATE_BLOCKED:
        return Transient(
            "destination_full",
            f"{what}: the cluster creates no index, because the disks of its nodes are nearly full",
            hint="free or add space. OpenSearch removes the block cluster.blocks.create_index then",
        )
    if status == 403 and kind != BLOCKED:
        return AccessDenied(
            "destination_denied",
            what,
            hint="grant the user crud, create_index, manage and manage_aliases on the indices of the prefix",
        )
    if status == 413:
        return NeedsOperator(
            "document_too_large",
            what,
            hint="raise http.max_content_length of the nodes, or exclude the column with columns.exclude",
        )
    if kind == CLOSED:
        return NeedsOperator(
            "destination_rejected",
            f"{what}: the index is closed",
            hint="open the index: POST /INDEX/_open, then: levada retry MANIFEST TABLE",
        )
    if status == 429 and kind == BLOCKED:
        return Transient(
            "destination_full",
            f"{what}: an index has a block, because the disk of a node is full",
            hint="free or add space. OpenSearch removes the block index.blocks.read_only_allow_delete then",
        )
    if status in _BUSY or kind == BLOCKED:
        return Transient("destination_unavailable", what, hint=UNAVAILABLE)
    return NeedsOperator("destination_rejected", what, hint="see the log of the OpenSearch node")
