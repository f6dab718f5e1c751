"""Merging of generated fields into a user's pod template. Lists of named items are merged by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def merged(template: Mapping[str, Any], ours: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template with the generated fields ``ours``, which win over the template's."""
    out = dict(template)
    for key, value in ours.items():
        out[key] = _merged(out[key], value) if key in out else value
    return out


def _merged(theirs: Any, ours: Any) -> Any:
    if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
        return merged(theirs, ours)
    if (key := _key(theirs, ours)) is not None:
        # Generated items come first, so that their order does not depend on the template.
        given = {item[key]: item for item in theirs}
        joined = [merged(given.pop(item[key], {}), item) for item in ours]
        return [*joined, *given.values()]
    if _list(theirs) and _list(ours):
        return [*ours, *(item for item in theirs if item not in ours)]
    return ours


def _list(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str)


def _key(theirs: Any, ours: Any) -> str | None:
    """Return the field that identifies items of both lists: mountPath for mounts, else name. None if there is none."""
    if not (_list(theirs) and _list(ours) and theirs and ours):
        return None
    items = [*theirs, *ours]
    return next((k for k in ("mountPath", "name") if all(isinstance(i, Mapping) and k in i for i in items)), None)
