"""Requests a verification from the engine on this machine, over its HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from levada.runtime.host.engine_api import EngineApi

_VERIFICATIONS: Final = "/v1/verifications"


@dataclass(frozen=True, slots=True)
class VerifyClient:
    """The verifications of an engine."""

    api: EngineApi

    def start(self, request: Mapping[str, Any]) -> int:
        """Start a verification and return its number. Raise NeedsOperator with the engine's answer if it refuses."""
        return int(self.api.ask("POST", _VERIFICATIONS, request)["id"])

    def state(self, number: int) -> Mapping[str, Any]:
        """Return the state of a verification, with the results so far."""
        return self.api.ask("GET", f"{_VERIFICATIONS}/{number}")

    def cancel(self, number: int) -> None:
        """End a verification soon."""
        self.api.ask("DELETE", f"{_VERIFICATIONS}/{number}", {})
