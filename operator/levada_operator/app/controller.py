"""The controller: sweeps the cluster, and reconciles the Pipelines in its queue. Watches fill cache and queue."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Final

from levada_operator.act.budget import WriteBudget
from levada_operator.act.metrics import FAILURES, RECONCILE
from levada_operator.act.runner import Runner
from levada_operator.app.config import Config
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.sweeper import Fetch, Sweeper
from levada_operator.app.table_watch import TableWatch
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watchdog import Watchdog
from levada_operator.decide.reconcile import reconcile
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.names import manifest_name
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import Body, PipelineKey, VolumeUse, pipeline_named

_log = logging.getLogger(__name__)

_WORKERS: Final = 50
"""Pipelines that are reconciled concurrently. Most of them wait for the budget of their tables' writes."""
_THREADS: Final = 8


class Controller:
    """The controller of all Pipelines. Create and use it within one event loop."""

    def __init__(self, config: Config, cluster: Cluster, fetch: Fetch, watch: Callable[..., TableWatch]) -> None:
        self.config = config
        self.cache = ClusterCache(config.defaults)
        self._turns = UpdateTurns(self.cache, config.defaults.updates.deadline)
        self.watchdog = Watchdog(time.monotonic)
        self.watched: dict[PipelineKey, str] = {}
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="levada-request")
        self._budget = WriteBudget(time.monotonic)
        self._runner = Runner(cluster, self._budget, self._executor)
        self._sweeper = Sweeper(
            cluster,
            self.cache,
            self._turns,
            self.watchdog,
            self._executor,
            namespaces=config.namespaces,
            fetch=fetch,
            detect_storage=config.defaults.staging.use is VolumeUse.DETECT,
        )
        self._watches = [
            watch(namespace, self.event, self._sweeper.list_tables_next) for namespace in config.namespaces or (None,)
        ]
        self._storage_listed_for: dict[PipelineKey, tuple[str, int]] = {}
        self._queue: KeyedQueue[PipelineKey] = KeyedQueue()
        self._swept = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start sweeping. Reconciliations start after the first sweep, because the cache is incomplete until then."""
        self._tasks = [asyncio.create_task(self._sweep_loop(), name="sweep")]
        self._tasks += [asyncio.create_task(watch.run(), name="watch") for watch in self._watches]

    async def stop(self) -> None:
        """Stop, after the writes that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._executor.shutdown(wait=True)

    async def event(self, type_: str | None, body: Body) -> None:
        """Store an object that a watch reported, and enqueue its Pipeline."""
        if type_ == "DELETED":
            self.object_deleted(body)
        elif not self.object_changed(body):
            # Most are the operator's own writes of status. The next sweep reverts a status that someone else wrote.
            return
        await self.enqueue(pipeline_named(body))

    def object_changed(self, body: Body) -> bool:
        """Store an object that a watch reported. Return True if anything but its status changed."""
        changed = self.cache.put(body)
        if body["kind"] == "Pipeline":
            metadata = body["metadata"]
            self.watched[PipelineKey(metadata["namespace"], metadata["name"])] = str(metadata["resourceVersion"])
        return changed

    def object_deleted(self, body: Body) -> None:
        """Remove an object that a watch reported as deleted."""
        self.cache.remove(body)
        key = PipelineKey(body["metadata"]["namespace"], body["metadata"]["name"])
        if body["kind"] == "Pipeline" and key not in self.cache.pipelines:
            self.watched.pop(key, None)

    async def enqueue(self, key: PipelineKey) -> None:
        """Add a Pipeline to the queue of reconciliations."""
        await self._queue.add(key)

    async def released(self, key: PipelineKey) -> bool:
        """Take the next step of a deletion. Return True if the finalizer can be removed."""
        # Before the first sweep the cache has no pods, so a running driver would look like a stopped one.
        await self._swept.wait()
        await self._queue.acquire(key)
        try:
            return await self._reconcile(key)
        except RequestFailed as error:
            _log.warning("%s/%s: %s", key.namespace, key.name, error)
            return False
        finally:
            await self._queue.done(key)

    async def _sweep_loop(self) -> None:
        while True:
            pause_s = self.config.sweep_s
            try:
                await self._sweeper.sweep(self.watched, _utcnow())
            except RequestFailed as error:
                _log.warning("cannot read the state of the cluster: %s", error)
                # An API server that has no room for a read has none for a write.
                self._budget.answered(0.0, error.status, error.retry_after_s)
                pause_s = max(pause_s, error.retry_after_s)
            except Exception:
                _log.exception("cannot read the state of the cluster")
            else:
                if not self._swept.is_set():
                    self._swept.set()
                    self._tasks += [asyncio.create_task(self._work_loop(), name=f"work-{i}") for i in range(_WORKERS)]
                # In another order each time, because the first ones get the tokens for counters.
                for key in random.sample(list(self.cache.pipelines), len(self.cache.pipelines)):
                    await self._queue.add(key)
            await asyncio.sleep(pause_s)

    async def _work_loop(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                # kopf's deletion handler reconciles a Pipeline that is being deleted, by calling `released`.
                if "deletionTimestamp" not in self.cache.pipelines.get(key, {}).get("metadata", {}):
                    await self._reconcile(key)
            except RequestFailed as error:
                FAILURES.inc()
                _log.warning("%s/%s: %s", key.namespace, key.name, error)
            except Exception:
                FAILURES.inc()
                _log.exception("%s/%s: cannot be reconciled", key.namespace, key.name)
            finally:
                await self._queue.done(key)

    async def _list_storage_for(self, key: PipelineKey) -> None:
        """List the StorageClasses for a new Pipeline, since one may be a moment older. Its decision is final.

        Until a spec is accepted, each version of it is new.
        """
        body = self.cache.pipelines.get(key)
        if body is None or self.cache.child(key, "ConfigMap", manifest_name(key.name)) is not None:
            self._storage_listed_for.pop(key, None)
            return
        version = str(body["metadata"]["uid"]), int(body["metadata"].get("generation", 0))
        if self._storage_listed_for.get(key) != version:
            await self._sweeper.list_storage()
            self._storage_listed_for[key] = version

    async def _reconcile(self, key: PipelineKey) -> bool:
        await self._list_storage_for(key)
        now = _utcnow()
        observed = self.cache.observe(key, now, self._turns.others(key))
        if observed is None:
            return True
        with RECONCILE.time():
            plan = reconcile(observed)
            if not plan.empty:
                # There is no await between observing and here, so no other plan can have taken the same turn.
                if plan.updates:
                    self._turns.begin(key)
                try:
                    outcome = await self._runner.carry_out(plan, observed)
                    self.cache.record_writes(key, outcome.written, outcome.deleted, now)
                    self.cache.record_refusals(key, outcome.refusals)
                finally:
                    self._turns.end(key, now)
                if outcome.unfinished or {r.key for r in outcome.refusals} - {r.key for r in observed.refusals}:
                    # The next plan has the rest, and reports a new refusal in status.
                    await self.enqueue(key)
                if outcome.failed is not None and not plan.release:
                    raise outcome.failed
            elif observed.refusals:
                self.cache.record_refusals(key, ())
        return plan.release


def _utcnow() -> datetime:
    return datetime.now(UTC)
