"""Other installations of the operator: which of them manages a Pipeline, and whether that one is alive.

Two installations that serve the same namespace would each replace what the other one writes. The first one leaves its
name at the driver's StatefulSet and in the Pipeline's status. Another one keeps off while that one renews its Lease.
The status counts for a Pipeline without a StatefulSet, such as one whose first spec is refused.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import Executor
from datetime import UTC, datetime, timedelta
from typing import Final

from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import OPERATOR
from levada_operator.observe.objects import Body, read_time

_log = logging.getLogger(__name__)

_ALIVE_FOR: Final = timedelta(seconds=60)
"""The age of a renewal until which its holder counts as alive. Clocks of nodes may differ by seconds."""
_LOOK_EVERY_S: Final = 15.0
_MAX_KNOWN: Final = 1000
_LEASE: Final = re.compile(r"[a-z0-9][-a-z0-9]{0,62}/[a-z0-9][-.a-z0-9]{0,252}")
"""The names of a namespace and a Lease. A tenant may write the annotation, and by a driver's account the status."""


class Installations:
    """Looks for the Leases of other installations. Use it within one event loop. ``clock`` is monotonic."""

    def __init__(self, cluster: Cluster, executor: Executor, mine: str, clock: Callable[[], float]) -> None:
        self._cluster = cluster
        self._executor = executor
        self._mine = mine
        self._clock = clock
        self._known: dict[str, tuple[float, bool | None]] = {}

    async def manager_of(self, pipeline: Body, stateful_set: Body | None) -> str:
        """Return the other living installation that manages a Pipeline, or an empty string.

        One whose Lease cannot be read keeps a StatefulSet. A Pipeline that is deleted without one is everybody's.
        """
        if stateful_set is not None:
            annotations = stateful_set["metadata"].get("annotations") or {}
            other = self._other(annotations.get(OPERATOR, ""))
            return other if other and await self._is_alive(other) is not False else ""
        if pipeline["metadata"].get("deletionTimestamp"):
            return ""
        other = self._other((pipeline.get("status") or {}).get("operator", ""))
        return other if other and await self._is_alive(other) else ""

    def _other(self, name: str) -> str:
        return name if name != self._mine and _LEASE.fullmatch(name) else ""

    async def _is_alive(self, other: str) -> bool | None:
        """Return True if the installation is alive, None if that is not known."""
        at, alive = self._known.get(other, (float("-inf"), False))
        if self._clock() - at >= _LOOK_EVERY_S:
            namespace, _, name = other.partition("/")
            read = asyncio.get_running_loop().run_in_executor
            alive = await read(self._executor, self._renews, namespace, name)
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            self._known[other] = self._clock(), alive
        return alive

    def _renews(self, namespace: str, name: str) -> bool | None:
        """Return True if the Lease was renewed lately, None if it cannot be read: this operator may lack the right."""
        try:
            lease = self._cluster.get("Lease", namespace, name)
        except RequestFailed as error:
            _log.warning("cannot read the Lease %s/%s of another operator: %s", namespace, name, error)
            return None
        spec = (lease or {}).get("spec") or {}
        try:
            renewed = read_time(str(spec.get("renewTime") or ""))
        except (ValueError, OverflowError):
            return False
        return bool(spec.get("holderIdentity")) and datetime.now(UTC) - renewed < _ALIVE_FOR
