"""Comparison of desired objects with live ones, and of a new status with the stored one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from levada.spec import parse_quantity
from levada_operator.names import APPLIED, digest
from levada_operator.observe.objects import Body

_VOLATILE: Final = frozenset({"progressAt", "sampledAt", "appliedLsn"})
"""Fields that change all the time. They are written only together with another change."""
_COUNTERS: Final = {
    "display",
    "copy",
    "sourceBytes",
    "lagSeconds",
    "byPhase",
    "lagBytes",
    "retainedBytes",
    "safeWalBytes",
    "cuts",
}
_BEYOND: Final = _VOLATILE | _COUNTERS
"""The volatile fields and the counters."""
_MERGED_LISTS: Final = frozenset(
    {"ownerReferences", "containers", "initContainers", "volumes", "volumeMounts", "env", "imagePullSecrets"}
)
"""Lists to which other field managers may add items: server-side apply merges them item by item."""
_WHOLE_MAPPINGS: Final = frozenset({"matchLabels", "nodeSelector", "selector"})
"""Mappings that server-side apply replaces as a whole. With one more label, a selector selects other pods."""
_MERGE_KEYS: Final = ("uid", "mountPath", "name")
"""The fields by which it does."""


def with_applied_hash(desired: dict[str, Any]) -> dict[str, Any]:
    """Return the object with the digest of its content in an annotation."""
    return with_annotation(desired, APPLIED, digest(json.dumps(desired, sort_keys=True)))


def with_annotation(body: dict[str, Any], name: str, value: str) -> dict[str, Any]:
    """Return a copy of the object with an annotation added."""
    metadata = body["metadata"]
    return {**body, "metadata": {**metadata, "annotations": metadata.get("annotations", {}) | {name: value}}}


def content_digest(body: Body) -> str:
    """Return the digest of an object without its metadata, because an annotation may have the current time."""
    return digest(json.dumps({k: v for k, v in body.items() if k != "metadata"}, sort_keys=True))


def needs_apply(desired: Body, live: Body | None) -> bool:
    """Return True if the object is missing, was last applied with other content, or was changed by someone else."""
    return live is None or not is_within(desired, live)


def is_within(wanted: Any, there: Any) -> bool:
    """Return True if every desired field has the desired value in the live object.

    Additional fields in the live object do not count: the API server adds defaults. The same holds for additional items
    in the lists of `_MERGED_LISTS`, which another apply would not remove. Those in `_WHOLE_MAPPINGS` count.
    """
    if wanted is None:
        return True
    if isinstance(wanted, Mapping):
        if not isinstance(there, Mapping):
            return wanted == {} and there is None
        return all(_field_within(key, value, there.get(key)) for key, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if not isinstance(there, Sequence) or len(wanted) != len(there):
            return not wanted and there is None
        return all(is_within(w, t) for w, t in zip(wanted, there, strict=True))
    absent = wanted in ("", False, 0) and there is None
    return bool(wanted == there) or absent or _same_quantity(wanted, there)


def _field_within(key: str, wanted: Any, there: Any) -> bool:
    if key in _MERGED_LISTS:
        return _items_within(wanted, there)
    if key in _WHOLE_MAPPINGS and isinstance(wanted, Mapping) and isinstance(there, Mapping):
        return is_within(wanted, there) and there.keys() <= {k for k, v in wanted.items() if v is not None}
    return is_within(wanted, there)


def _items_within(wanted: Any, there: Any) -> bool:
    if not (isinstance(wanted, list | tuple) and isinstance(there, list | tuple | None)):
        return is_within(wanted, there)
    # A list may have thousands of items. Each is compared with those of its own key alone.
    of_key: dict[tuple[str, str], list[Any]] = {}
    for item in there or ():
        for key in _keys(item):
            of_key.setdefault(key, []).append(item)
    for item in wanted:
        keys = _keys(item)
        if not any(is_within(item, t) for t in (of_key.get(keys[0], ()) if keys else there or ())):
            return False
    return True


def _keys(item: Any) -> list[tuple[str, str]]:
    """Return the fields that identify an item of a merged list, with their values. Equal items have equal ones."""
    if not isinstance(item, Mapping):
        return []
    return [(name, item[name]) for name in _MERGE_KEYS if isinstance(item.get(name), str) and item[name]]


def _same_quantity(one: Any, other: Any) -> bool:
    # The API server normalizes quantities: 1000m is stored as 1.
    try:
        return parse_quantity(one) == parse_quantity(other)
    except (ValueError, TypeError):
        return False


def status_changed(before: Body, now: Body) -> bool:
    """Return True if the statuses differ in anything but times and positions."""
    return not _same(before, now, _VOLATILE)


def beyond_counters(before: Body, now: Body) -> bool:
    """Return True if the statuses differ in anything but times, positions and counters."""
    return not _same(before, now, _BEYOND)


def _same(one: Any, other: Any, besides: frozenset[str]) -> bool:
    """Return True if two values are equal, apart from mappings' fields of those names."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        if one.keys() - besides != other.keys() - besides:
            return False
        return all(_same(value, other[key], besides) for key, value in one.items() if key not in besides)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(_same(a, b, besides) for a, b in zip(one, other, strict=True))
    return bool(one == other)
