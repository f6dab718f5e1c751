"""The HTTP API of an engine, for the commands that ask it for something."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError

from levada.direct_http import open_directly
from levada.errors import NeedsOperator, Transient

_TIMEOUT_S: Final = 30.0
VERIFICATIONS: Final = "/v1/verifications"
ERASURES: Final = "/v1/erasures"


@dataclass(frozen=True, slots=True)
class EngineApi:
    """The API of the engine at ``address``. ``headers`` carry the access token if the engine needs one."""

    address: str
    headers: Mapping[str, str] = field(repr=False)

    def ask(self, method: str, path: str, document: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Send a request and return the JSON of the answer.

        Raise NeedsOperator with the engine's answer if it refuses, and Transient ``engine_unreachable``.
        """
        url = f"{self.address}{path}"
        body = None if document is None else json.dumps(document).encode()
        headers = {**self.headers, "Content-Type": "application/json"}
        request = urllib.request.Request(url, data=body, headers=headers, method=method)
        try:
            with open_directly(request, _TIMEOUT_S) as response:
                answer = json.load(response)
        except HTTPError as error:
            with error:
                raise self._refusal(f"{method} {path}", error.code, error.read()) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Transient(
                "engine_unreachable",
                f"the engine does not answer at {url}: {error}",
                hint="see the log of the engine, then run the command again",
            ) from error
        return dict(answer)

    def _refusal(self, request: str, status: int, body: bytes) -> NeedsOperator:
        if status == HTTPStatus.UNAUTHORIZED:
            return NeedsOperator(
                "engine_refused",
                f"the engine at {self.address} needs the token of spec.driver.tokenSecretRef",
                hint="name the folder with its Secret: --secrets DIR",
            )
        try:
            found = json.loads(body)["error"]
            return NeedsOperator(found["code"], found["message"], hint=found["hint"])
        except (ValueError, KeyError, TypeError):
            pass
        return NeedsOperator(
            "engine_refused",
            f"the engine at {self.address} refused the request {request} with status {status}",
            hint="see the log of the engine. If it has another version, use the same version of Levada for both",
        )


@dataclass(frozen=True, slots=True)
class EngineWork:
    """Work of one kind that an engine does on request: `VERIFICATIONS` or `ERASURES`."""

    api: EngineApi
    kind: str

    def start(self, request: Mapping[str, Any]) -> int:
        """Start a piece of work and return its number."""
        return int(self.api.ask("POST", self.kind, request)["id"])

    def state(self, number: int) -> Mapping[str, Any]:
        """Return the state with the results so far. At its end it is ``finished``, and may have an ``error``."""
        return self.api.ask("GET", f"{self.kind}/{number}")

    def cancel(self, number: int) -> None:
        """End it soon."""
        self.api.ask("DELETE", f"{self.kind}/{number}", {})
