"""The API server that $KUBECONFIG names, asked without a kubectl, over connections that are kept."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubernetes import config
from kubernetes.client.exceptions import ApiException

MERGE: Final = "application/merge-patch+json"
_DISCOVERY: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


@dataclass(frozen=True)
class Resource:
    """A kind of objects, and where the API server has them."""

    version: str
    """``v1`` or ``GROUP/VERSION``."""
    plural: str
    kind: str
    namespaced: bool

    def path(self, namespace: str, *parts: str) -> str:
        """Return the path of the list, or of an object and its subresource."""
        scope = ["namespaces", namespace] if self.namespaced and namespace else []
        root = "apis" if "/" in self.version else "api"
        return "/".join(["", root, self.version, *scope, self.plural, *(part for part in parts if part)])


class ApiServer:
    """The API server, with the rights of the kubeconfig's user."""

    def __init__(self) -> None:
        # The client's functions have no annotations.
        self._client = config.new_client_from_config()  # type: ignore[no-untyped-call]
        self._resources: dict[str, Resource] = {}

    def resource(self, word: str) -> Resource:
        """Return what kubectl understands by a word: a plural, singular or short name, with or without a group."""
        if word.lower() not in self._resources:
            # A CRD may be younger than what is known.
            self._resources = dict(self._discover())
        assert word.lower() in self._resources, f"the API server has no kind {word}"
        return self._resources[word.lower()]

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        user: str = "",
    ) -> Any:
        """Return the answer to a request, None if there is no such object. ``user`` makes it, as by kubectl --as."""
        headers = {"Accept": accept, "Content-Type": content} | ({"Impersonate-User": user} if user else {})
        request = self._client.param_serialize(
            method, path, query_params=list((query or {}).items()), header_params=headers, body=body,
            auth_settings=["BearerToken"],
        )  # fmt: skip
        try:
            answer = self._client.call_api(*request, _request_timeout=60)
        except ApiException as refused:
            raise AssertionError(f"{method} {path}: {refused}") from refused
        text = answer.read()
        if answer.status == 404:
            return None
        assert answer.status < 300, f"{method} {path}: {text.decode()}"
        return json.loads(text)

    def _discover(self) -> Iterator[tuple[str, Resource]]:
        """Yield every word for a resource. Of two with the same word, the one that kubectl prefers comes last."""
        for root in ("/apis", "/api"):
            for group in reversed(self.ask("GET", root, accept=_DISCOVERY)["items"]):
                name = group["metadata"].get("name", "")
                for version in reversed(group["versions"]):
                    full = f"{name}/{version['version']}" if name else version["version"]
                    for each in version["resources"]:
                        kind, namespaced = each["responseKind"]["kind"], each["scope"] == "Namespaced"
                        one = Resource(full, each["resource"], kind, namespaced)
                        for word in {one.plural, each["singularResource"], kind.lower(), *each.get("shortNames", ())}:
                            yield word, one
                            yield f"{word}.{name}", one
                            yield f"{word}.{version['version']}.{name}", one


@functools.cache
def _of(kubeconfig: str) -> ApiServer:
    return ApiServer()


def api_server() -> ApiServer:
    """Return the API server that $KUBECONFIG names now."""
    return _of(os.environ.get("KUBECONFIG", ""))
