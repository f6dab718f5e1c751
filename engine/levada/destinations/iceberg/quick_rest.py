"""A REST catalog, as a check reads it without a JVM: see `quick_catalog`.

It has the part of Iceberg's REST specification that a check needs, with the settings that Iceberg's own client has for
the same. A warehouse is not tried, as in every check of a REST catalog.
"""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlencode

from levada.destinations.iceberg.catalog_config import CatalogConfig, TableName
from levada.destinations.iceberg.quick_catalog import UnconfirmedError, properties_of
from levada.direct_http import open_directly

_KNOWN: Final = frozenset({"type", "uri", "warehouse", "token", "credential", "scope", "oauth2-server-uri", "prefix"})
_FOR_FILES: Final = ("s3.", "client.", "rest.client.", "write.")
"""Prefixes of properties that no question of a check depends on."""
_PROXIES: Final = frozenset({"http_proxy", "https_proxy", "all_proxy"})
_CERTIFICATES: Final = frozenset({"ssl_cert_file", "ssl_cert_dir"})
"""Variables, in lower case, that a JVM does not read. The latter count for https alone."""
_TIMEOUT_S: Final = 20.0


@dataclass(slots=True)
class RestCatalog:
    """Asks the catalog's server."""

    _given: Mapping[str, str] = field(repr=False)
    _base: str = ""
    _headers: dict[str, str] = field(default_factory=dict, repr=False)
    _separator: str = "%1F"
    """The text between the levels of a namespace in a URL. A server may have another one."""

    @classmethod
    def of(cls, config: CatalogConfig) -> Self | None:
        """Return the catalog, or None if it has settings that only Iceberg's client knows for sure."""
        given = {k: v for k, v in config.properties.items() if not k.startswith(_FOR_FILES)}
        known = given.keys() <= _KNOWN and given["uri"].startswith(("http://", "https://"))
        ours_alone = _PROXIES | _CERTIFICATES if given["uri"].startswith("https:") else _PROXIES
        plain = ours_alone.isdisjoint(name.lower() for name in os.environ)
        return cls(given) if known and plain else None

    def check(self) -> None:
        """Read the server's configuration and the names of its namespaces."""
        self._open()
        if self._get("namespaces") is None:
            raise UnconfirmedError("the server lists no namespaces")

    def properties(self, name: TableName) -> Mapping[str, str] | None:
        """Return the properties of the table that the server has."""
        namespace = self._separator.join(quote(level, safe="") for level in name.namespace)
        found = self._get(f"namespaces/{namespace}/tables/{quote(name.name, safe='')}?snapshots=refs")
        return None if found is None else properties_of(found.get("metadata"))

    def close(self) -> None:
        """Do nothing: each request has a connection of its own."""

    def _open(self) -> None:
        uri = self._given["uri"].rstrip("/")
        self._base, self._headers = f"{uri}/v1", self._login(uri)
        query = f"?{urlencode({'warehouse': self._given['warehouse']})}" if "warehouse" in self._given else ""
        config = self._get(f"config{query}")
        if config is None:
            raise UnconfirmedError("the server has no configuration")
        defaults, overrides = config.get("defaults") or {}, config.get("overrides") or {}
        settings = {**defaults, **self._given, **overrides}
        ours = {k: v for k, v in settings.items() if not k.startswith(_FOR_FILES)}
        same = all(ours.get(key) == self._given.get(key) for key in _KNOWN - {"prefix", "warehouse"})
        if not same or any(key.startswith(("rest.", "header.")) for key in ours):
            raise UnconfirmedError("the server changes how it is asked")
        self._separator = settings.get("namespace-separator", self._separator)
        if prefix := settings.get("prefix"):
            self._base = f"{self._base}/{prefix}"

    def _login(self, uri: str) -> dict[str, str]:
        """Return the headers of a client that is logged in. Iceberg's client prefers a credential to a token."""
        token = self._given.get("token")
        if credential := self._given.get("credential"):
            client, colon, secret = credential.partition(":")
            fields = {"grant_type": "client_credentials", "scope": self._given.get("scope", "catalog")}
            fields |= {"client_id": client, "client_secret": secret} if colon else {"client_secret": credential}
            address = self._given.get("oauth2-server-uri", f"{uri}/v1/oauth/tokens")
            answer = _asked(urllib.request.Request(address, urlencode(fields).encode()))
            token = None if answer is None else answer.get("access_token")
            if not token:
                raise UnconfirmedError("the login returns no token")
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _get(self, path: str) -> dict[str, Any] | None:
        return _asked(urllib.request.Request(f"{self._base}/{path}", headers=self._headers))


def _asked(request: urllib.request.Request) -> dict[str, Any] | None:
    """Return the answer in JSON, or None if the server does not have what is asked for."""
    try:
        with open_directly(request, _TIMEOUT_S) as response:
            read = json.load(response)
    except HTTPError as error:
        with error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
        raise UnconfirmedError from error
    except (OSError, ValueError) as error:
        raise UnconfirmedError from error
    if not isinstance(read, dict):
        raise UnconfirmedError("the answer is no object")
    return read
