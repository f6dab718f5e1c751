"""The TableSyncs whose settings are not known, because they are not read.

A table without its TableSync would be replicated with the Pipeline's settings: without its masks, for example. So no
Pipeline of their namespace is changed or begins, until they are smaller or fewer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

_MOST: Final = 100
"""TableSyncs of a namespace that are remembered. One is enough to hold its Pipelines."""
_WITHOUT_SETTINGS: Final = frozenset({"pipelineRef", "table"})


class UnreadTables:
    """Those of each namespace, with the reasons."""

    def __init__(self) -> None:
        self._reasons: dict[str, dict[str, str]] = {}

    def note(self, namespace: str, name: str, reason: str) -> None:
        """Remember a TableSync that is not read."""
        known = self._reasons.setdefault(namespace, {})
        if name in known or len(known) < _MOST:
            known[name] = reason

    def note_body(self, body: Mapping[str, Any], reason: str) -> None:
        """Remember a TableSync that is not kept, unless its table has no settings of its own."""
        if not (body.get("spec") or {}).keys() <= _WITHOUT_SETTINGS:
            self.note(body["metadata"]["namespace"], body["metadata"]["name"], reason)

    def forget(self, namespace: str, name: str) -> None:
        """Forget a TableSync that was read, or is gone."""
        known = self._reasons.get(namespace, {})
        known.pop(name, None)
        if not known:
            self._reasons.pop(namespace, None)

    def replace(self, namespace: str, reasons: Mapping[str, str]) -> None:
        """Set those of a namespace by a complete list of its TableSyncs."""
        self._reasons.pop(namespace, None)
        for name, reason in reasons.items():
            self.note(namespace, name, reason)

    def text(self, namespace: str) -> str:
        """Return the first one of a namespace with its reason, empty if all are read."""
        known = self._reasons.get(namespace, {})
        return next((f"TableSync {name}: {reason}" for name, reason in sorted(known.items())), "")
