"""Sweeps of namespaces, of which one is slow."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import cast

from tests.operator.samples import DEFAULTS, NOON, merge, pipeline

from levada_operator.app.fetch import Answer
from levada_operator.app.progress_reader import ProgressReader
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.sweeper import Sweeper
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watchdog import Watchdog
from levada_operator.kube.interface import Cluster, Listing
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey

NAMESPACES = ("bank", "mallory")


class SlowNamespace:
    """An API server with a Pipeline in each namespace. The lists of one namespace do not end before they may."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def list_objects(self, kind: str, namespace: str | None = None, *_: str, metadata: bool = False) -> Listing:
        """Return the objects of a kind."""
        if namespace == "mallory":
            self.may_end.wait()
        if kind != "Pipeline":
            return Listing()
        place = {"resourceVersion": "7", "namespace": namespace, "uid": f"uid-{namespace}"}
        return Listing([merge(pipeline(), {"metadata": place})])


async def _no_answer(*_: object) -> Answer:
    return Answer()


def test_namespace_is_reconciled_before_the_lists_of_another_one_end() -> None:
    """The Pipelines of a namespace are enqueued when its own lists have ended. No sweep has to end for it."""
    server, cache, executor = SlowNamespace(), ClusterCache(DEFAULTS), ThreadPoolExecutor(2)
    queue = KeyedQueue[PipelineKey]()
    progress, turns = ProgressReader(cache, _no_answer, executor), UpdateTurns(cache, timedelta(minutes=5))
    sweeper = Sweeper(cast(Cluster, server), cache, queue, turns, Watchdog(time.monotonic), executor,
                      namespaces=NAMESPACES, progress=progress, detect_storage=False)  # fmt: skip

    async def script() -> None:
        sweep = asyncio.create_task(sweeper.sweep({}, NOON))
        key = await queue.get()
        assert key.namespace == "bank"
        assert not sweep.done()
        await queue.done(key)
        server.may_end.set()
        assert (await queue.get()).namespace == "mallory"
        await sweep

    try:
        asyncio.run(script())
    finally:
        server.may_end.set()
        executor.shutdown()
