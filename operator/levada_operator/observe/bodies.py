"""Objects as the API server sends them: which of two versions is newer, and which can be read."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from levada_operator.observe.objects import Body

_PLACE: Final = ("namespace", "name")
_K = TypeVar("_K")
_T = TypeVar("_T")
_log = logging.getLogger(__name__)


def put_newer(objects: dict[_K, Body], key: _K, body: Body) -> bool:
    """Store the newer version. Return True if it is new or differs from the stored one in anything but its status."""
    known = objects.get(key)
    if known is None or known["metadata"].get("uid") != body["metadata"].get("uid"):
        objects[key] = body
        return True
    if version_of(body) < version_of(known) or body == known:
        return False
    objects[key] = body
    return _without_status(body) != _without_status(known)


def _without_status(body: Body) -> dict[str, Any]:
    metadata = {k: v for k, v in body["metadata"].items() if k != "resourceVersion"}
    return {k: v for k, v in body.items() if k != "status"} | {"metadata": metadata}


def readable(read: Callable[[Body], _T], bodies: Iterable[Body]) -> Iterator[_T]:
    """Yield what can be read. An odd object, which only its own namespace can make, counts as missing."""
    for body in bodies:
        try:
            yield read(body)
        except Exception:
            _log.exception("%s %s cannot be read", body["kind"], "/".join(body["metadata"].get(k, "") for k in _PLACE))


def version_of(body: Body) -> int:
    """Return the resourceVersion, 0 if it is no number."""
    version = str(body["metadata"].get("resourceVersion", "0"))
    return int(version) if version.isdigit() else 0
