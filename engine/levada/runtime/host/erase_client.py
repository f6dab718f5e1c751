"""Requests an erasure from the engine on this machine, over its HTTP API."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from levada.runtime.host.engine_api import EngineApi

_ERASURES: Final = "/v1/erasures"


@dataclass(frozen=True, slots=True)
class EraseClient:
    """The erasures of an engine. Each method raises NeedsOperator with the engine's answer if it refuses."""

    api: EngineApi

    def start(self, request: Mapping[str, Any]) -> int:
        """Start an erasure and return its number."""
        return int(self.api.ask("POST", _ERASURES, request)["id"])

    def state(self, number: int) -> Mapping[str, Any]:
        """Return the state of an erasure, at its end with ``result`` or ``error``."""
        return self.api.ask("GET", f"{_ERASURES}/{number}")

    def cancel(self, number: int) -> None:
        """End an erasure that has not removed anything yet."""
        self.api.ask("DELETE", f"{_ERASURES}/{number}", {})
