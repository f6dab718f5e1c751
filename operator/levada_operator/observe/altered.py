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
_MARKS: Final = ("annotations", "labels")


class AlteredObjects:
    """The contents that were applied, each with the digest of what was stored instead. For one event loop."""

    def __init__(self) -> None:
        self._known: dict[PipelineKey, dict[ObjectKey, tuple[dict[str, Any], str]]] = {}

    def note(self, key: PipelineKey, applied: Body, stored: Body) -> None:
        """Record what the API server stored for an object of a Pipeline."""
        of = ObjectKey(applied["kind"], applied["metadata"]["name"])
        self._known.setdefault(key, {})[of] = _marked(applied), _digest(stored, applied)

    def seen(self, key: PipelineKey, of: ObjectKey, stored: Body) -> Body:
        """Return the object as it was applied, or as it is stored if it has been changed since."""
        applied, unchanged = self._known.get(key, {}).get(of, ({}, ""))
        if not unchanged or unchanged != _digest(stored, applied):
            return stored
        metadata = stored["metadata"]
        marks = {field: {**(metadata.get(field) or {}), **applied["metadata"][field]} for field in _MARKS}
        return {**stored, **applied, "metadata": {**metadata, **marks}}

    def forget(self, key: PipelineKey) -> None:
        """Forget the objects of a Pipeline that is gone."""
        self._known.pop(key, None)


def _content(body: Body) -> dict[str, Any]:
    return {field: value for field, value in body.items() if field not in _APART}


def _marked(body: Body) -> dict[str, Any]:
    """Return the content of an object, with its labels and annotations."""
    return _content(body) | {"metadata": {field: body["metadata"].get(field) or {} for field in _MARKS}}


def _digest(stored: Body, applied: Body) -> str:
    """Return the digest of what is stored of the fields that were applied. Others may change their own at any time."""
    content = [stored.get(field) for field in sorted(_content(applied))]
    marks = [
        [(stored["metadata"].get(f) or {}).get(k) for k in sorted(applied["metadata"].get(f) or {})] for f in _MARKS
    ]
    return digest(json.dumps([content, marks], sort_keys=True))
