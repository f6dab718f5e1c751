"""Periodic sweeps: list the owned objects, and fetch every driver's progress.

Objects are listed by label, so the number of list requests does not depend on the number of Pipelines.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from datetime import datetime
from typing import Any, Final, TypeVar

from levada.errors import NeedsOperator
from levada.status import read_progress
from levada_operator.act.metrics import LIMITS, PIPELINES, SWEEP, TABLES
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watchdog import Watchdog
from levada_operator.desired.pod import HTTP_PORT
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import PIPELINE_LABEL
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.creation import FAILED, read_creation_failure
from levada_operator.observe.objects import Body, PipelineKey
from levada_operator.observe.progress import read_report

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FAST_KINDS: Final = ("Pod", "StatefulSet", "Job")
SLOW_KINDS: Final = (
    "ConfigMap",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
)
_SLOW_KINDS_EVERY: Final = 6
"""Every so many sweeps the kinds that rarely change are listed."""
_TABLE_SYNCS_EVERY: Final = 60
"""Every so many sweeps all TableSyncs are listed. In between, a watch reports their changes."""

Fetch = Callable[[str, int], Mapping[str, Any] | None]


class Sweeper:
    """Sweeps within one event loop. Requests block, so they run in the executor's threads."""

    def __init__(
        self,
        cluster: Cluster,
        cache: ClusterCache,
        turns: UpdateTurns,
        watchdog: Watchdog,
        executor: Executor,
        *,
        namespaces: tuple[str, ...],
        fetch: Fetch,
        detect_storage: bool,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._turns = turns
        self._watchdog = watchdog
        self._executor = executor
        self._namespaces: tuple[str | None, ...] = namespaces or (None,)
        self._fetch = fetch
        self._turn = 0
        self._tables_due = False
        self._may_list_storage = detect_storage

    async def sweep(self, watched: Mapping[PipelineKey, str], now: datetime) -> None:
        """Refresh the cache. Raise RequestFailed if a list fails.

        ``watched`` are the resource versions of Pipelines that kopf's watch last reported.
        """
        slow_kinds_due = self._turn % _SLOW_KINDS_EVERY == 0
        if self._turn % _TABLE_SYNCS_EVERY == 0 or self._tables_due:
            self._tables_due = False
            self._cache.replace_all("TableSync", await self._objects("TableSync", ""), now)
        if slow_kinds_due:
            pipelines = await self._objects("Pipeline", "")
            self._cache.replace_all("Pipeline", pipelines, now)
            await self.list_storage()
            self._watchdog.compare({_key(b): str(b["metadata"]["resourceVersion"]) for b in pipelines}, watched)
        await self._list(FAST_KINDS + SLOW_KINDS if slow_kinds_due else FAST_KINDS, now)
        await asyncio.gather(*(self._read_failures(namespace) for namespace in self._cache.namespaces_lacking_pods()))
        await asyncio.gather(*(self._ask_driver(key, address, now) for key, address in self._cache.driver_addresses()))
        self._turn += 1
        self._watchdog.swept()
        self._count()
        SWEEP.set(now.timestamp())

    def list_tables_next(self) -> None:
        """List all TableSyncs in the next sweep, because their watch may have missed deletions."""
        self._tables_due = True

    async def _list(self, kinds: tuple[str, ...], now: datetime) -> None:
        # One kind after the other, so that only one list is in memory.
        for kind in kinds:
            self._cache.replace_owned((kind,), await self._objects(kind, PIPELINE_LABEL), now)
        self._turns.refresh(now)

    async def list_storage(self) -> None:
        """Look for a default StorageClass, unless the chart or a missing right forbids it."""
        if not self._may_list_storage:
            return
        try:
            bodies = await self._run(self._cluster.list_objects, "StorageClass")
        except RequestFailed as error:
            if not error.refused:
                raise
            # An operator for some namespaces only has no right to read objects of the cluster.
            self._may_list_storage = False
            _log.warning(
                "new Pipelines without spec.staging stage on scratch space, because the operator has no right to list"
                " StorageClasses: set stagingVolume.use of the chart to Always for volumes"
            )
            return
        self._cache.replace_storage_classes(bodies)

    async def _objects(self, kind: str, labels: str) -> list[dict[str, Any]]:
        each = await asyncio.gather(
            *(self._run(self._cluster.list_objects, kind, namespace, labels) for namespace in self._namespaces)
        )
        return [body for bodies in each for body in bodies]

    async def _read_failures(self, namespace: str) -> None:
        try:
            events = await self._run(self._cluster.list_objects, "Event", namespace, "", f"reason={FAILED}")
        except RequestFailed as error:
            # The operator works without the right to read Events, but cannot report why pods are not created.
            _log.warning("cannot read the Events of namespace %s: %s", namespace, error)
            return
        self._cache.record_creation_failures(namespace, [read_creation_failure(e) for e in events])

    async def _ask_driver(self, key: PipelineKey, address: str, now: datetime) -> None:
        document = await self._run(self._fetch, address, HTTP_PORT)
        if document is None:
            return
        try:
            progress = read_progress(document)
        except NeedsOperator as error:
            reason = f"{error.message} [{error.code}]" + (f"; {error.hint}" if error.hint else "")
            if self._cache.record_unreadable(key, reason):
                _log.warning("cannot read the progress of the driver of %s/%s: %s", *key, reason)
            return
        self._cache.record_progress(key, read_report(progress, now))

    def _count(self) -> None:
        for gauge, bodies in ((PIPELINES, self._cache.pipelines), (TABLES, self._cache.table_syncs)):
            gauge.clear()
            phases = Counter((b.get("status") or {}).get("phase", "Pending") for b in bodies.values())
            for phase, count in phases.items():
                gauge.labels(phase).set(count)

        LIMITS.clear()
        conditions = (c for b in self._cache.pipelines.values() for c in (b.get("status") or {}).get("conditions", ()))
        passed = Counter(c["reason"] for c in conditions if c["type"] == "WithinLimits" and c["status"] == "False")
        for policy, count in passed.items():
            LIMITS.labels(policy).set(count)

    async def _run(self, request: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, request, *arguments)


def _key(body: Body) -> PipelineKey:
    return PipelineKey(body["metadata"]["namespace"], body["metadata"]["name"])
