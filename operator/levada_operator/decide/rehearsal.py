"""Refusals of a dry run of a pod that say nothing about the pod which replaces the running one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Final

from levada.spec import parse_quantity
from levada_operator.observe.objects import Body
from levada_operator.observe.pods import PodState

_NO_RIGHT: Final = 'cannot create resource "pods"'
_QUOTA: Final = re.compile(r"exceeded quota: \S+, requested: (\S+), used: (\S+), limited: (\S+)$")
_COUNTS: Final = ("pods", "count/pods")


def proves_nothing(message: str, running: PodState | None, *, of_driver: bool) -> bool:
    """Return True if the dry run of a pod was refused for want of a right, or for a quota that will have room.

    ``running`` is the driver's pod. It never exists together with the next one, so what it takes from a quota is there
    for the next one. Spark waits for room for executors, of which more or fewer may run now.
    """
    if _NO_RIGHT in message:
        return True
    found = _QUOTA.search(message)
    if found is None:
        return False
    if not of_driver or running is None:
        return not of_driver
    try:
        requested, used, limited = map(_amounts, found.groups())
        return all(used[name] - _taken(running.spec, name) + more <= limited[name] for name, more in requested.items())
    except (ValueError, KeyError):
        return False


def _amounts(text: str) -> Mapping[str, Decimal]:
    """Parse the amounts of a quota, for example ``requests.cpu=500m,pods=1``."""
    pairs = [part.partition("=") for part in text.split(",")]
    return {name: parse_quantity(amount) for name, _, amount in pairs}


def _taken(pod: Body, of: str) -> Decimal:
    """Return the amount that a pod takes from a quota's resource."""
    if of in _COUNTS:
        return Decimal(1)
    kind, dot, name = of.partition(".")
    kind, name = (kind, name) if dot else ("requests", of)
    together = sum((_amount(c, kind, name) for c in pod.get("containers") or ()), Decimal(0))
    # Init containers run one after the other.
    return max([together, *(_amount(c, kind, name) for c in pod.get("initContainers") or ())])


def _amount(container: Body, kind: str, name: str) -> Decimal:
    return parse_quantity(((container.get("resources") or {}).get(kind) or {}).get(name, "0"))
