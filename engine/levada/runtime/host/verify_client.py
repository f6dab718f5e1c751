"""Requests a verification from the engine on this machine, over its HTTP API."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from http import HTTPStatus
from http.client import HTTPException
from typing import Any, Final
from urllib.error import HTTPError

from levada.errors import NeedsOperator, Transient

_TIMEOUT_S: Final = 30.0


class VerifyClient:
    """The verifications of the engine at ``address``. ``headers`` carry the access token if the engine needs one."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        self._url = f"{address}/v1/verifications"
        self._headers = {**headers, "Content-Type": "application/json"}

    def start(self, request: Mapping[str, Any]) -> int:
        """Start a verification and return its number. Raise NeedsOperator with the engine's answer if it refuses."""
        return int(self._ask("POST", self._url, json.dumps(request).encode())["id"])

    def state(self, number: int) -> Mapping[str, Any]:
        """Return the state of a verification, with the results so far."""
        return self._ask("GET", f"{self._url}/{number}")

    def cancel(self, number: int) -> None:
        """End a verification soon."""
        self._ask("DELETE", f"{self._url}/{number}", b"{}")

    def _ask(self, method: str, url: str, body: bytes | None = None) -> Mapping[str, Any]:
        request = urllib.request.Request(url, data=body, headers=self._headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response:
                document = json.load(response)
        except HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None
        except (OSError, HTTPException, ValueError) as error:
            raise Transient("engine_unreachable", f"the engine does not answer at {url}: {error}") from error
        return dict(document)


def _refusal(status: int, body: bytes) -> NeedsOperator:
    if status == HTTPStatus.UNAUTHORIZED:
        return NeedsOperator(
            "engine_refused",
            "the engine needs the token of spec.driver.tokenSecretRef",
            hint="name the folder with its Secret: --secrets DIR",
        )
    try:
        found = json.loads(body)["error"]
        return NeedsOperator(found["code"], found["message"], hint=found["hint"])
    except (ValueError, KeyError, TypeError):
        pass
    return NeedsOperator("engine_refused", f"the engine refused the request with status {status}")
