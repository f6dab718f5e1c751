"""Tell whether what is there is what is wanted, and whether a status says anything new."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from levada.spec import parse_quantity
from levada_operator.names import APPLIED, digest
from levada_operator.observe.objects import Body

_VOLATILE: Final = ("progressAt", "sampledAt", "appliedLsn", "lastTransitionTime")
"""Written only with another change: they change all the time."""
_COUNTERS: Final = ("display", "copy", "lagSeconds", "byPhase", "lagBytes", "retainedBytes", "safeWalBytes")
_MERGED_LISTS: Final = frozenset(
    {"ownerReferences", "containers", "initContainers", "volumes", "volumeMounts", "env", "imagePullSecrets"}
)
"""Lists to which others may add items: the API server merges what is applied into them, item by item."""


def with_applied_hash(desired: dict[str, Any]) -> dict[str, Any]:
    """Return the object with the digest of what is applied."""
    return with_annotation(desired, APPLIED, digest(json.dumps(desired, sort_keys=True)))


def with_annotation(body: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """Return the object with one more annotation."""
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": metadata.get("annotations", {}) | {name: value}}}


def needs_apply(desired: Body, live: Body | None) -> bool:
    """Tell whether an object must be applied: it is not there, another was applied, or somebody changed it."""
    return live is None or not is_within(desired, live)


def is_within(wanted: Any, there: Any) -> bool:
    """Return True if everything that is wanted is there. The API server's defaults do not count.

    What others add to a list of `_SHARED` stays there. Applying again would not remove it, so it is no difference.
    """
    if wanted is None:
        return True
    if isinstance(wanted, Mapping):
        if not isinstance(there, Mapping):
            return wanted == {} and there is None
        return all(
            _items_within(value, there.get(key)) if key in _MERGED_LISTS else is_within(value, there.get(key))
            for key, value in wanted.items()
        )
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not isinstance(there, Sequence) or len(wanted) != len(there):
            return not wanted and there is None
        return all(is_within(w, t) for w, t in zip(wanted, there, strict=True))
    absent = wanted in ("", False, 0) and there is None
    return bool(wanted == there) or absent or _same_quantity(wanted, there)


def _items_within(wanted: Any, there: Any) -> bool:
    if not (isinstance(wanted, list | tuple) and isinstance(there, list | tuple | None)):
        return is_within(wanted, there)
    return all(any(is_within(w, t) for t in there or ()) for w in wanted)


def _same_quantity(one: Any, other: Any) -> bool:
    # The API server writes 1000m as 1.
    try:
        return parse_quantity(one) == parse_quantity(other)
    except (ValueError, TypeError):
        return False


def status_changed(before: Body, now: Body) -> bool:
    """Tell whether a status has anything new in it but times and positions."""
    return bool(_without(before, _VOLATILE) != _without(now, _VOLATILE))


def beyond_counters(before: Body, now: Body) -> bool:
    """Tell whether more than counters is new."""
    names = _VOLATILE + _COUNTERS
    return bool(_without(before, names) != _without(now, names))


def _without(value: Any, names: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {k: _without(v, names) for k, v in value.items() if k not in names}
    if isinstance(value, list | tuple):
        return [_without(v, names) for v in value]
    return value
