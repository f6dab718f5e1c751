"""Periodic sweeps: list the owned objects of each namespace with a Pipeline, and fetch every driver's progress.

A namespace is listed by itself and within its own guard, and its Pipelines are enqueued when its own lists end. What
its tenant has in it, however much, how odd or how slow, keeps no other namespace waiting.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeVar

from levada_operator.act.metrics import FAULTS, LIMITS, PIPELINES, SWEEP, TABLES
from levada_operator.app.progress_reader import ProgressReader
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watchdog import Watchdog
from levada_operator.kube.interface import TOO_LARGE, Cluster, Listing, RequestFailed
from levada_operator.kube.items import Unread
from levada_operator.names import PIPELINE_LABEL, ROLE_LABEL, STATE_ROLE, manifest_name
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.creation import FAILED, CreationFailure, name_taken, read_creation_failure
from levada_operator.observe.objects import Body, PipelineKey

_log = logging.getLogger(__name__)
_T = TypeVar("_T")

FAST_KINDS: Final = ("StatefulSet", "Job", "Pod")
"""Pods come last, because they belong to the StatefulSets and Jobs."""
SLOW_KINDS: Final = ("NetworkPolicy", "PersistentVolumeClaim", "Role", "RoleBinding", "Service", "ServiceAccount")
_SLOW_KINDS_EVERY: Final = 6
"""Every so many sweeps the kinds that rarely change are listed."""
_TABLE_SYNCS_EVERY: Final = 60
"""Every so many sweeps all TableSyncs are listed. In between, a watch reports their changes."""
_PACE_S: Final = 2.0
"""A sweep does not wait longer for lists. They continue, and the next sweep leaves their namespaces out until they end.
"""
_WAIT_S: Final = 10.0
"""A namespace whose lists take longer is reconciled with what earlier lists had. The first sweep waits as long."""
_SLOW_S: Final = 5.0
"""Namespaces whose lists took longer the last time share half of the places."""
_MAX_FAILED_EVENTS: Final = 500
_MAX_LOOKED_FOR: Final = 20
"""StatefulSets of a namespace without their pod for which a sweep looks for a pod of its name."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """The lists of a namespace that are under way. ``begun_s`` is of the event loop's clock."""

    task: asyncio.Task[RequestFailed | None]
    begun_s: float


class Sweeper:
    """Sweeps within one event loop. Requests block, so they run in the executor's threads."""

    def __init__(
        self,
        cluster: Cluster,
        cache: ClusterCache,
        queue: KeyedQueue[PipelineKey],
        turns: UpdateTurns,
        watchdog: Watchdog,
        executor: Executor,
        *,
        namespaces: tuple[str, ...],
        progress: ProgressReader,
        detect_storage: bool,
        concurrency: int = 4,
    ) -> None:
        self._cluster = cluster
        self._cache = cache
        self._queue = queue
        self._turns = turns
        self._watchdog = watchdog
        self._executor = executor
        self._namespaces = namespaces
        self._progress = progress
        self._turn = 0
        self._tables_due = False
        self._due: set[str] = set()
        """Namespaces whose Pipelines and TableSyncs are listed next, whatever the turn is."""
        self._may_list_storage = detect_storage
        self._discovery: asyncio.Task[set[str]] | None = None
        self._listing: dict[str, _Listing] = {}
        self._listed: set[str] = set()
        self._progressed: set[str] = set()
        """Namespaces of which a list has ended since the last sweep."""
        self._listed_since: dict[str, datetime] = {}
        """When the last complete lists of each namespace began."""
        self._slow: set[str] = set()
        self._slots = asyncio.Semaphore(concurrency)
        self._slow_slots = asyncio.Semaphore(max(1, concurrency // 2))

    async def sweep(self, watched: Mapping[PipelineKey, str], now: datetime) -> None:
        """Refresh the cache, and enqueue each Pipeline. Raise RequestFailed if no namespace could be listed.

        ``watched`` are the resource versions of Pipelines that their watch last reported.
        """
        slow_due, wait_s = self.is_slow_due, _PACE_S if self._turn else _WAIT_S
        tables_due = self._turn % _TABLE_SYNCS_EVERY == 0 or self._tables_due
        self._tables_due = False
        self._turn += 1
        if slow_due:
            await self.list_storage()
        found = sorted({*await self._found(discover=tables_due), *self._due})
        for namespace in found:
            self._begin(namespace, slow_due, tables_due, watched, now)
        begun, failures = len(self._listing), await self._ended(wait_s, now)
        self._progress.forget_others(dict(self._cache.driver_addresses()))
        if self._turns.refresh(now):
            await self._enqueue(*self._listed)
        if begun and len(failures) == begun and None not in failures.values():
            raise next(f for f in failures.values() if f is not None)
        await self._enqueue(*(namespace for namespace, failure in failures.items() if failure is not None))
        # A slow API server may take minutes for the lists of a namespace, and a restart would begin with the first.
        if not begun or None in failures.values() or self._progressed & self._listing.keys():
            self._watchdog.swept()
        self._progressed.clear()
        self._count()
        self._listed_since = {n: at for n, at in self._listed_since.items() if n in found}
        SWEEP.set(min(self._listed_since.values(), default=now).timestamp())

    @property
    def is_slow_due(self) -> bool:
        """True if the next sweep lists the kinds that rarely change."""
        return self._turn % _SLOW_KINDS_EVERY == 0

    def stop(self) -> None:
        """End the lists that are under way."""
        for listing in self._listing.values():
            listing.task.cancel()
        if self._discovery is not None:
            self._discovery.cancel()

    def list_tables_next(self) -> None:
        """List all Pipelines and TableSyncs in the next sweep, because their watch may have missed deletions."""
        self._tables_due = True

    def list_next(self, namespace: str) -> None:
        """List all kinds of a namespace in the next sweep, because the watch has left out an event of it."""
        self._due.add(namespace)

    def is_listed(self, namespace: str, watched: Mapping[PipelineKey, str], now: datetime) -> bool:
        """Return True if all kinds of a namespace's objects were listed at least once, as far as they can be.

        Those of a new namespace are listed now. Its Pipelines are enqueued when that ends.
        """
        if namespace not in self._listed:
            self._begin(namespace, True, True, watched, now)
        return namespace in self._listed

    def _begin(
        self, namespace: str, slow_due: bool, tables_due: bool, watched: Mapping[PipelineKey, str], now: datetime
    ) -> None:
        """Begin to list a namespace, unless it is under way."""
        if namespace not in self._listing or self._listing[namespace].task.done():
            new = namespace not in self._listed
            whole = new or namespace in self._due
            self._due.discard(namespace)
            work = self._sweep_namespace(namespace, slow_due or whole, tables_due or whole, watched, now)
            task = asyncio.create_task(work, name=f"sweep {namespace}")
            self._listing[namespace] = _Listing(task, asyncio.get_running_loop().time())
            self._listed_since.setdefault(namespace, now)

    async def _enqueue(self, *namespaces: str) -> None:
        """Enqueue the Pipelines of the namespaces."""
        keys = [k for k in (*self._cache.pipelines, *self._cache.lone_keys()) if k.namespace in namespaces]
        # In another order each time, because the first ones get the tokens for counters.
        for key in random.sample(keys, len(keys)):
            await self._queue.add(key)

    def note_unread(self, kind: str, unread: Unread) -> None:
        """Record an object that the watch could not read."""
        if unread.namespace and kind == "TableSync":
            self._cache.unread_tables.note(unread.namespace, unread.name, unread.reason)
        if unread.namespace:
            self._fault(unread.namespace, f"watched {kind}", [f"{kind} {unread.name}: {unread.reason}"])
        self._tables_due |= kind == "Pipeline"

    def note_ignored(self, kind: str, namespace: str, text: str) -> None:
        """Record that objects which the watch reported are not kept."""
        self._fault(namespace, f"watched {kind}", [text])

    async def _found(self, *, discover: bool) -> list[str]:
        """Return the namespaces to list. Pipelines that a watch could not read have no place in the cache."""
        if self._namespaces:
            return list(self._namespaces)
        known = set(self._cache.namespaces())
        if discover and self._discovery is None:
            self._discovery = asyncio.create_task(self._discover(), name="discover")
        if self._discovery is None:
            return sorted(known)
        # One tenant's Pipelines may be so large that it takes many sweeps.
        await asyncio.wait([self._discovery], timeout=_WAIT_S if not known else 0)
        if self._discovery.done():
            discovery, self._discovery = self._discovery, None
            try:
                known |= discovery.result()
            except RequestFailed as error:
                if not known:
                    raise
                _log.warning("cannot list the Pipelines of all namespaces: %s", error)
        return sorted(known)

    async def _discover(self) -> set[str]:
        """Return the namespaces with a Pipeline."""
        found = await self._run(lambda: self._cluster.list_objects("Pipeline", metadata=True))
        known = {str(b["metadata"]["namespace"]) for b in found.objects}
        return known | {u.namespace for u in found.unread if u.namespace}

    async def _ended(self, wait_s: float, now: datetime) -> dict[str, RequestFailed | None]:
        """Wait for the lists under way, and return those that ended with their failures, None for one without."""
        if not self._listing:
            return {}
        # Lists that begin meanwhile have had no time yet.
        begun = dict(self._listing)
        await asyncio.wait([listing.task for listing in begun.values()], timeout=wait_s)
        now_s, failures = asyncio.get_running_loop().time(), {}
        for namespace, listing in begun.items():
            if listing.task.done():
                failures[namespace] = listing.task.result()
                if self._listing.get(namespace) is listing:
                    del self._listing[namespace]
            elif now_s - listing.begun_s > _WAIT_S:
                self._fault(namespace, "sweep", ["its objects are not listed in time"])
                if namespace in self._listed:
                    self._listed_since[namespace] = now
                await self._enqueue(namespace)
        return failures

    @asynccontextmanager
    async def _place(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a place, and hold it. Half of the places are never a slow namespace's."""
        loop, share = asyncio.get_running_loop(), self._slow_slots if namespace in self._slow else None
        if share is not None:
            await share.acquire()
        try:
            async with self._slots:
                begun_s = loop.time()
                try:
                    yield
                finally:
                    (self._slow.add if loop.time() - begun_s > _SLOW_S else self._slow.discard)(namespace)
        finally:
            if share is not None:
                share.release()

    async def _sweep_namespace(
        self, namespace: str, slow_due: bool, tables_due: bool, watched: Mapping[PipelineKey, str], now: datetime
    ) -> RequestFailed | None:
        """List a namespace's objects. Return the failure, if the API server may be the cause of it."""
        try:
            async with self._place(namespace):
                if slow_due:
                    await self._list_own("Pipeline", namespace)
                    mine = {k: b for k, b in self._cache.pipelines.items() if k.namespace == namespace}
                    # The watch cannot read either what a list cannot, so it misses nothing there.
                    listed = {k: str(b["metadata"]["resourceVersion"]) for k, b in mine.items() if "unread" not in b}
                    self._watchdog.compare(namespace, listed, watched)
                if tables_due:
                    await self._list_own("TableSync", namespace)
                for kind in FAST_KINDS + SLOW_KINDS if slow_due else FAST_KINDS:
                    found = await self._list(kind, namespace, PIPELINE_LABEL)
                    self._cache.replace_owned(kind, namespace, found.objects, now, found.version)
                    self._fault(namespace, f"listed {kind}", _texts(kind, found))
                if slow_due:
                    await self._list_config_maps(namespace, now)
                await self._read_failures(namespace, now)
        except RequestFailed as error:
            self._fault(namespace, "sweep", [str(error)])
            return None if error.status == TOO_LARGE else error
        except Exception as error:
            _log.exception("the objects of namespace %s cannot be listed", namespace)
            self._fault(namespace, "sweep", [f"{type(error).__name__} while its objects are listed"])
        else:
            self._cache.record_faults(namespace, "sweep", ())
        # A driver that was not asked yet would look like one that does not answer any more.
        await self._progress.read(self._cache.driver_addresses(namespace), now)
        self._listed.add(namespace)
        self._listed_since[namespace] = now
        await self._enqueue(namespace)
        return None

    async def _list_own(self, kind: str, namespace: str) -> None:
        found = await self._list(kind, namespace)
        self._cache.replace_all(kind, namespace, found.objects, {u.name: u.reason for u in found.unread}, found.version)
        self._fault(namespace, f"listed {kind}", _texts(kind, found))
        self._cache.record_faults(namespace, f"watched {kind}", ())
        if kind != "Pipeline":
            return
        for unread in found.unread[:_MAX_UNREAD]:
            named = f"metadata.name={unread.name}"
            request = partial(self._cluster.list_objects, kind, namespace, "", named, metadata=True)
            head = await self._run(request)
            for body in head.objects:
                self._cache.put_unread(body, unread.reason)

    async def _list_config_maps(self, namespace: str, now: datetime) -> None:
        """List the metadata of ConfigMaps, and read the manifests that changed. Others may be large."""
        request = partial(self._cluster.list_objects, "ConfigMap", namespace, PIPELINE_LABEL, metadata=True)
        found = await self._run(request)
        bodies: list[Body] = []
        for body in found.objects:
            owner = self._cache.owner_of(body)
            if owner is None:
                continue
            name, version = str(body["metadata"]["name"]), body["metadata"].get("resourceVersion")
            known = self._cache.child(owner, "ConfigMap", name)
            if known is not None and known["metadata"].get("resourceVersion") == version:
                bodies.append(known)
            elif name == manifest_name(owner.name):
                bodies += await self._manifest(body)
            elif (body["metadata"].get("labels") or {}).get(ROLE_LABEL) == STATE_ROLE or known is None:
                bodies.append(body)
        self._cache.replace_owned("ConfigMap", namespace, bodies, now, found.version)
        self._fault(namespace, "listed ConfigMap", _texts("ConfigMap", found))

    async def _manifest(self, listed: Body) -> list[Body]:
        """Return the ConfigMap with a manifest, without its content if that is too large, nothing if it is gone."""
        metadata = listed["metadata"]
        try:
            whole = await self._run(self._cluster.get, "ConfigMap", metadata["namespace"], metadata["name"])
        except RequestFailed as error:
            if error.status != TOO_LARGE:
                raise
            # It was written by hand, and is restored. The other objects of the namespace are listed.
            return [listed]
        return [] if whole is None else [{"kind": "ConfigMap", **whole}]

    async def list_storage(self) -> None:
        """Look for a default StorageClass, unless the chart or a missing right forbids it."""
        if not self._may_list_storage:
            return
        try:
            found = await self._run(self._cluster.list_objects, "StorageClass")
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
        self._cache.replace_storage_classes(found.objects)

    async def _read_failures(self, namespace: str, now: datetime) -> None:
        lacking = self._cache.without_pods(namespace)
        if not lacking:
            return
        try:
            found = await self._list("Event", namespace, "", f"reason={FAILED}")
        except RequestFailed as error:
            # The operator works without the right to read Events, but cannot report why pods are not created.
            _log.warning("cannot read the Events of namespace %s: %s", namespace, error)
            return
        failures, faults = await self._run(_creation_failures, found.objects[:_MAX_FAILED_EVENTS])
        for key, owner in [(k, b) for k, b in lacking if k.kind == "StatefulSet"][:_MAX_LOOKED_FOR]:
            pods = await self._list("Pod", namespace, "", f"metadata.name={key.name}-0")
            if (taken := name_taken(owner, pods.objects, now)) is not None:
                failures.append(taken)
        FAULTS.labels(namespace).inc(faults)
        self._cache.record_creation_failures(namespace, failures)

    async def _list(self, kind: str, namespace: str, labels: str = "", fields: str = "") -> Listing:
        found = await self._run(self._cluster.list_objects, kind, namespace, labels, fields)
        self._progressed.add(namespace)
        return found

    def _fault(self, namespace: str, of: str, texts: Iterable[str]) -> None:
        found = list(texts)
        if self._cache.record_faults(namespace, of, found) and found:
            FAULTS.labels(namespace).inc(len(found))
            _log.warning("of namespace %s is ignored: %s", namespace, "; ".join(found[:3]))

    def _count(self) -> None:
        for gauge, bodies in ((PIPELINES, self._cache.pipelines), (TABLES, self._cache.table_syncs)):
            gauge.clear()
            phases = Counter((b.get("status") or {}).get("phase", "Pending") for b in bodies.values())
            for phase, count in phases.items():
                gauge.labels(phase).set(count)

        LIMITS.clear()
        conditions = (c for b in self._cache.pipelines.values() for c in (b.get("status") or {}).get("conditions", ()))
        passed = Counter(
            str(c.get("reason")) for c in conditions if (c.get("type"), c.get("status")) == ("WithinLimits", "False")
        )
        for policy, count in passed.items():
            LIMITS.labels(policy).set(count)

    async def _run(self, request: Callable[..., _T], *arguments: Any) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, request, *arguments)


_MAX_UNREAD: Final = 20
"""Pipelines of a namespace whose metadata is requested because they cannot be read."""


def _creation_failures(events: Iterable[Body]) -> tuple[list[CreationFailure], int]:
    """Return what can be read of the Events, and how many cannot be. Anybody can write Events."""
    failures, faults = [], 0
    for event in events:
        try:
            failures.append(read_creation_failure(event))
        except (ValueError, OverflowError, TypeError, AttributeError, KeyError):
            faults += 1
    return failures, faults


def _texts(kind: str, found: Listing) -> list[str]:
    return [f"{kind} {unread.name}: {unread.reason}" for unread in found.unread]
