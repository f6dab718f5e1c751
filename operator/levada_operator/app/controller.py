"""The controller: sweeps the cluster, and reconciles the Pipelines in its queue. Watches fill cache and queue."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from functools import partial
from typing import Final

from levada.status.orphans import Orphan
from levada_operator.act.budget import WriteBudget
from levada_operator.act.fair_turns import FairTurns
from levada_operator.act.metrics import FAILURES, FAULTS, QUEUED, RECONCILE
from levada_operator.act.refusals import is_stored_invalid, request_text
from levada_operator.act.runner import Runner
from levada_operator.app.abandoned import AbandonedCleanups
from levada_operator.app.config import Config
from levada_operator.app.installations import Installations
from levada_operator.app.object_watch import ObjectWatch
from levada_operator.app.progress_reader import Fetch, ProgressReader
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.sweeper import Sweeper
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watch_shares import WatchShares
from levada_operator.app.watchdog import Watchdog
from levada_operator.decide.conditions import MAX_MESSAGE, shortened, timestamp
from levada_operator.decide.deletion import left_without_finalizer
from levada_operator.decide.events import EventDraft
from levada_operator.decide.lone_tables import lone_table_status
from levada_operator.decide.reconcile import MEMOS, reconcile
from levada_operator.kube.interface import Cluster, RequestFailed
from levada_operator.kube.items import Unread
from levada_operator.names import FINALIZER, OPERATOR, driver_name, manifest_name, staging_name
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import (
    Body,
    ObjectKey,
    PipelineKey,
    VolumeUse,
    pipeline_named,
    read_pipeline,
)
from levada_operator.observe.room import NoRoomError

_log = logging.getLogger(__name__)

_WORKERS: Final = 50
"""Pipelines that are reconciled concurrently. Most of them wait for the budget of their tables' writes."""
_THREADS: Final = 16
_READERS: Final = 4
_DECIDERS: Final = 2
_LONE_TABLES_S: Final = 5.0
_DENIED: Final = (403, 422)
"""The statuses with which a policy refuses a request."""
_FOREGROUND: Final = "foregroundDeletion"


class Controller:
    """The controller of all Pipelines. Create and use it within one event loop."""

    def __init__(self, config: Config, cluster: Cluster, fetch: Fetch, watch: Callable[..., ObjectWatch]) -> None:
        self.config = config
        self._cluster = cluster
        self.cache = ClusterCache(config.defaults)
        self._turns = UpdateTurns(self.cache, config.defaults.updates.deadline)
        self.watchdog = Watchdog(time.monotonic)
        self.watched: dict[PipelineKey, str] = {}
        self._executor = ThreadPoolExecutor(_THREADS, thread_name_prefix="levada-request")
        self._readers = ThreadPoolExecutor(_READERS, thread_name_prefix="levada-list")
        self._deciders = ThreadPoolExecutor(_DECIDERS, thread_name_prefix="levada-decide")
        self._decisions = FairTurns(_DECIDERS)
        self._progress = ProgressReader(self.cache, fetch, self._readers)
        self._budget = WriteBudget(time.monotonic)
        self._runner = Runner(cluster, self._budget, self._executor)
        self._queue = KeyedQueue[PipelineKey](lambda key: key.namespace, _WORKERS // 2)
        self._sweeper = Sweeper(
            cluster,
            self.cache,
            self._queue,
            self._turns,
            self.watchdog,
            self._readers,
            namespaces=config.namespaces,
            progress=self._progress,
            detect_storage=config.defaults.staging.use is VolumeUse.DETECT,
        )
        shares = WatchShares(time.monotonic)
        self._watches = [
            watch(kind, namespace, self.event, self._unread, self._sweeper.list_tables_next, self._left_out, shares)
            for kind in ("Pipeline", "TableSync")
            for namespace in config.namespaces or (None,)
        ]
        self._abandoned = AbandonedCleanups(cluster, self._readers, config.lease)
        self._installations = Installations(cluster, self._readers, config.lease.text, time.monotonic)
        self._storage_read_for: dict[PipelineKey, tuple[str, int]] = {}
        QUEUED.set_function(lambda: self._queue.length)
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start to sweep, to watch and to reconcile. A Pipeline is reconciled once its namespace has been listed."""
        self._tasks = [asyncio.create_task(self._sweep_loop(), name="sweep")]
        self._tasks += [asyncio.create_task(watch.run(), name="watch") for watch in self._watches]
        self._tasks += [asyncio.create_task(self._work_loop(), name=f"work-{i}") for i in range(_WORKERS)]

    async def stop(self) -> None:
        """Stop, after the writes that are under way."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._sweeper.stop()
        self._progress.stop()
        for executor in (self._executor, self._deciders):
            executor.shutdown(wait=True)
        # A list is a read, and may take long.
        self._readers.shutdown(wait=False, cancel_futures=True)

    async def event(self, type_: str, body: Body) -> None:
        """Store an object that a watch reported, and enqueue its Pipeline."""
        kind = body["kind"]
        key = pipeline_named(body)
        self._heard(kind, key.namespace)
        if type_ == "DELETED":
            self.cache.remove(body)
            if kind == "Pipeline" and key not in self.cache.pipelines:
                self.watched.pop(key, None)
        else:
            if kind == "Pipeline":
                self.watched[key] = str(body["metadata"]["resourceVersion"])
            try:
                self.cache.put(body)
            except NoRoomError as error:
                self._sweeper.note_ignored(kind, key.namespace, str(error))
        # Most are the operator's own writes of status. The next sweep reverts a status that someone else wrote.
        await self._enqueue_changed(*(key,) if type_ == "DELETED" else ())

    async def _enqueue_changed(self, *others: PipelineKey) -> None:
        """Enqueue what has changed, however the cache heard of it, and other Pipelines."""
        for key in self.cache.take_changed().union(others):
            await self._queue.add(key)

    def _unread(self, kind: str, unread: Unread) -> None:
        """Record an object that the watch could not read."""
        self._heard(kind, unread.namespace)
        self._sweeper.note_unread(kind, unread)

    def _left_out(self, kind: str, namespace: str) -> None:
        """List a namespace next, of which an event of the watch was left out."""
        self._heard(kind, namespace)
        self._sweeper.list_next(namespace)

    def _heard(self, kind: str, namespace: str) -> None:
        if kind == "Pipeline":
            self.watchdog.heard(namespace if self.config.namespaces else "")

    async def _sweep_loop(self) -> None:
        while True:
            pause_s = self.config.sweep_s
            if self._sweeper.is_slow_due:
                await self._abandoned.review(self.cache.taken_over())
            try:
                await self._sweeper.sweep(self.watched, _utcnow())
                # The request for one of them may have failed.
                await self._enqueue_changed(*self.cache.gone_keys())
            except RequestFailed as error:
                _log.warning("cannot read the state of the cluster: %s", error)
                # An API server that has no room for a read has none for a write.
                self._budget.answered(0.0, error.status, error.retry_after_s)
                pause_s = max(pause_s, error.retry_after_s)
            except Exception:
                _log.exception("cannot read the state of the cluster")
            await asyncio.sleep(pause_s)

    async def _work_loop(self) -> None:
        while True:
            key = await self._queue.get()
            try:
                # Before all of its namespace is listed, a Pipeline that runs would look like a new one. A spec that
                # waits for its approval would be its first, and the record of a rollback would be lost.
                if self._sweeper.is_listed(key.namespace, self.watched, _utcnow()):
                    await self._process(key)
                elif faults := self.cache.faults(key.namespace, "sweep"):
                    text = "the Pipeline is left as it is until its namespace's objects are listed: "
                    await self._report(key, "ObjectsUnread", text + "; ".join(faults))
            except RequestFailed as error:
                FAILURES.inc()
                _log.warning("%s/%s: %s", key.namespace, key.name, error)
                if (error.status in _DENIED or is_stored_invalid(error)) and not error.namespace_terminating:
                    # The finalizer, or the status itself. So no condition can say it.
                    await self._report(key, "ReconcileFailed", request_text(key, error))
            except Exception as error:
                FAILURES.inc()
                FAULTS.labels(key.namespace).inc()
                _log.exception("%s/%s: cannot be reconciled", key.namespace, key.name)
                text = f"{type(error).__name__}: the operator's log has more. Set back what was changed last"
                await self._report(key, "ReconcileFailed", text)
            finally:
                await self._queue.done(key)

    async def _report(self, key: PipelineKey, reason: str, text: str) -> None:
        """Write an Event about a Pipeline that cannot be reconciled."""
        if (body := self.cache.pipelines.get(key)) is not None:
            with contextlib.suppress(Exception):
                draft = EventDraft(ObjectKey("Pipeline", key.name), reason, shortened(text, MAX_MESSAGE))
                await self._runner.report(key.namespace, body["metadata"]["uid"], draft, _utcnow())

    async def _report_foreign(self, key: PipelineKey, body: Body, other: str) -> None:
        """Write an Event about a Pipeline of another installation. Its status is the other one's to write."""
        text = (
            f"the operator {self.config.lease.text} leaves the Pipeline to {other}, which manages it. To change that,"
            f" let one of the two serve other namespaces (watchNamespaces), or uninstall {other}. If it is gone:"
            f" kubectl -n {key.namespace} annotate statefulset {driver_name(key.name)} {OPERATOR}-"
        )
        draft = EventDraft(ObjectKey("Pipeline", key.name), "ForeignOperator", text)
        await self._runner.report(key.namespace, body["metadata"]["uid"], draft, _utcnow())

    async def _process(self, key: PipelineKey) -> None:
        """Reconcile a Pipeline, with the finalizer that its clean-up needs."""
        await self._list_gone(key)
        body = self.cache.pipelines.get(key)
        if body is None:
            # However many Pipelines a tenant makes and deletes, no memory stays.
            MEMOS.forget(key)
            self.watched.pop(key, None)
            self._storage_read_for.pop(key, None)
            await self._write_lone_tables(key)
            return
        stateful_set = self.cache.child(key, "StatefulSet", driver_name(key.name))
        if other := await self._installations.manager_of(body, stateful_set):
            await self._report_foreign(key, body, other)
            return
        metadata = body["metadata"]
        finalizers = list(metadata.get("finalizers") or ())
        has, needs = FINALIZER in finalizers, self._needs_cleanup(body)
        others = [name for name in finalizers if name != FINALIZER]
        if metadata.get("deletionTimestamp"):
            if has and needs and _FOREGROUND in others:
                # Garbage collection removes every object that is created in a foreground deletion, as the clean-up Job.
                others.remove(_FOREGROUND)
                await self._set_finalizers(key, [*others, FINALIZER])
            if has and (not needs or await self._reconcile(key)):
                await self._set_finalizers(key, others)
                # Its end may have been reported before the answer.
                self.cache.forget_gone(key)
            return
        if has is not needs:
            await self._set_finalizers(key, [*others, FINALIZER] if needs else others)
        await self._reconcile(key)

    async def _list_gone(self, key: PipelineKey) -> None:
        """List what may be left of a Pipeline that went with its finalizer, if the API server has it no more."""
        now = _utcnow()
        if (gone := self.cache.observe_gone(key, now)) is None:
            return
        run = asyncio.get_running_loop().run_in_executor
        named = partial(
            self._cluster.list_objects, "Pipeline", key.namespace, "", f"metadata.name={key.name}", metadata=True
        )
        there = await run(self._readers, named)
        self.cache.forget_gone(key)
        if there.unread or any(body["metadata"].get("uid") == gone.pipeline.uid for body in there.objects):
            return
        async with self._decisions.turn(key.namespace):
            left = await run(self._deciders, left_without_finalizer, gone)
        if left:
            _log.warning("%s/%s: %s", *key, left)
            await self._abandoned.add(Orphan(*key, gone.pipeline.uid, timestamp(now), shortened(left, MAX_MESSAGE)))

    async def _set_finalizers(self, key: PipelineKey, finalizers: list[str]) -> None:
        if (body := self.cache.pipelines.get(key)) is not None:
            written = await self._runner.set_finalizers(body, finalizers)
            if written is not None:
                self.cache.put(written)
                await self._enqueue_changed()

    def _needs_cleanup(self, body: Body) -> bool:
        """Return True if the Pipeline needs a finalizer: it has run, or no older Pipeline reads the same slot.

        The deletion policy does not matter. If it retains everything, the clean-up still releases the ownership. The
        status alone does not say that a Pipeline never ran: it may be lost with a backup, or changed by hand.
        """
        pipeline = read_pipeline(body)
        if not self.cache.conflicts(pipeline) or pipeline.status.get("slot", {}).get("sampledAt"):
            return True
        return self.cache.child(pipeline.key, "StatefulSet", driver_name(pipeline.name)) is not None

    async def _write_lone_tables(self, key: PipelineKey) -> None:
        """Write the status of the TableSyncs that name a Pipeline which does not exist."""
        now = _utcnow()
        writes = [w for t in self.cache.lone_tables(key) if (w := lone_table_status(t, key.name, now)) is not None]
        loop = asyncio.get_running_loop()
        until = loop.time() + _LONE_TABLES_S
        self.cache.put_all(await self._runner.write_lone_tables(key.namespace, writes, until))
        await self._enqueue_changed()
        if loop.time() >= until:
            # Thousands of them do not wait for a sweep between two passes.
            await self._queue.add(key)

    async def _read_storage_for(self, key: PipelineKey) -> None:
        """Read the StorageClasses and the staging claim of a new Pipeline, whose decision about storage is final.

        A class may be a moment old. A claim that outlived the former Pipeline of the name is not in the cache, because
        it had no owner when its namespace was listed. Until a spec is accepted, each version of it is new.
        """
        body = self.cache.pipelines.get(key)
        if body is None or self.cache.child(key, "ConfigMap", manifest_name(key.name)) is not None:
            self._storage_read_for.pop(key, None)
            return
        version = str(body["metadata"]["uid"]), int(body["metadata"].get("generation", 0))
        if self._storage_read_for.get(key) != version:
            await self._sweeper.list_storage()
            named = "PersistentVolumeClaim", key.namespace, staging_name(key.name)
            run = asyncio.get_running_loop().run_in_executor
            if (claim := await run(self._readers, self._cluster.get, *named)) is not None:
                self.cache.put({**claim, "kind": named[0]})
            self._storage_read_for[key] = version

    async def _reconcile(self, key: PipelineKey) -> bool:
        await self._read_storage_for(key)
        async with self._decisions.turn(key.namespace):
            now = _utcnow()
            observed = self.cache.observe(key, now, self._turns.others(key))
            if observed is None:
                return True
            # A large spec takes seconds, for which the watches and all other namespaces' writes continue.
            plan = await asyncio.get_running_loop().run_in_executor(self._deciders, reconcile, observed)
            if plan.takes_turn:
                if self._turns.others(key) > observed.updating:
                    # Another plan has taken the turn meanwhile.
                    await self._queue.add(key)
                    return False
                self._turns.begin(key)
        if plan.empty:
            if observed.refusals:
                self.cache.record_refusals(key, ())
            return plan.release
        if plan.abandoned:
            text = shortened(plan.abandoned, MAX_MESSAGE)
            await self._abandoned.add(Orphan(*key, observed.pipeline.uid, timestamp(now), text))
        with RECONCILE.time():
            try:
                outcome = await self._runner.carry_out(plan, observed)
                self.cache.record_writes(key, outcome.written, outcome.deleted, now)
                for applied, stored in outcome.altered:
                    self.cache.altered.note(key, applied, stored)
                self.cache.record_refusals(key, outcome.refusals)
                await self._enqueue_changed()
            finally:
                self._turns.end(key, now)
            if outcome.unfinished or {r.identity for r in outcome.refusals} - {r.identity for r in observed.refusals}:
                # The next plan has the rest, and reports a new refusal in status.
                await self._queue.add(key)
            if outcome.failed is not None and not plan.release:
                raise outcome.failed
        return plan.release


def _utcnow() -> datetime:
    return datetime.now(UTC)
