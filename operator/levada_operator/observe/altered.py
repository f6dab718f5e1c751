"""Objects that the API server stores otherwise than the operator applies them.

An admission webhook may change each object, for example to replace the registry of its images. Another apply would be
changed in the same way, so the object would be written for ever and its Pipeline never be Ready. An object that still
is as the last apply left it is therefore seen as it was applied.
"""

from __future__ import annotations

import json
from typing import Any, Final

from levada_operator.names import digest
from levada_operator.observe.objects import Body, ObjectKey, PipelineKey

_APART: Final = ("apiVersion", "kind", "metadata", "status")


class AlteredObjects:
    """The contents that were applied, each with the digest of what was stored instead. For one event loop."""

    def __init__(self) -> None:
        self._known: dict[PipelineKey, dict[ObjectKey, tuple[dict[str, Any], str]]] = {}

    def note(self, key: PipelineKey, applied: Body, stored: Body) -> None:
        """Record what the API server stored for an object of a Pipeline."""
        of = ObjectKey(applied["kind"], applied["metadata"]["name"])
        self._known.setdefault(key, {})[of] = _content(applied), _digest(stored)

    def seen(self, key: PipelineKey, of: ObjectKey, stored: Body) -> Body:
        """Return the object as it was applied, or as it is stored if it has been changed since."""
        applied, unchanged = self._known.get(key, {}).get(of, ({}, ""))
        return {**stored, **applied} if unchanged and unchanged == _digest(stored) else stored

    def forget(self, key: PipelineKey) -> None:
        """Forget the objects of a Pipeline that is gone."""
        self._known.pop(key, None)


def _content(body: Body) -> dict[str, Any]:
    return {field: value for field, value in body.items() if field not in _APART}


def _digest(body: Body) -> str:
    return digest(json.dumps(_content(body), sort_keys=True))
