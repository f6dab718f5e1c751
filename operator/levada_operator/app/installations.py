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
from datetime import UTC, datetime
from typing import Final

from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import OPERATOR
from levada_operator.observe.objects import Body, read_time

_log = logging.getLogger(__name__)

_ALIVE_FOR_S: Final = 60.0
"""The seconds without a renewal after which the holder of a Lease no longer counts as alive."""
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
        self._renewals: dict[str, tuple[str, float]] = {}
        """The last renewal that was read of each Lease, and when it was first read, of the monotonic clock."""

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
            renewal = await read(self._executor, self._renewal, namespace, name)
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
                self._renewals.clear()
            alive = None if renewal is None else self._is_recent(other, renewal)
            self._known[other] = self._clock(), alive
        return alive

    def _is_recent(self, other: str, renewal: str) -> bool:
        """Return True if a Lease was renewed lately.

        Only the first look compares two clocks. A time of the future counts then, because the Lease may be renewed by a
        clock that is ahead. After that it counts for how long the Lease is seen unchanged.
        """
        try:
            at = read_time(renewal)
        except (ValueError, OverflowError):
            return False
        before, since = self._renewals.get(other, ("", self._clock()))
        if before != renewal:
            since = self._clock()
            if not before and (age_s := (datetime.now(UTC) - at).total_seconds()) > 0:
                since -= age_s
            self._renewals[other] = renewal, since
        return self._clock() - since < _ALIVE_FOR_S

    def _renewal(self, namespace: str, name: str) -> str | None:
        """Return the text of a Lease's last renewal, empty without a holder.

        None if it cannot be read: this operator may lack the right.
        """
        try:
            lease = self._cluster.get("Lease", namespace, name)
        except RequestFailed as error:
            _log.warning("cannot read the Lease %s/%s of another operator: %s", namespace, name, error)
            return None
        spec = (lease or {}).get("spec") or {}
        return str(spec.get("renewTime") or "") if spec.get("holderIdentity") else ""
