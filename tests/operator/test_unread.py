"""Objects that are too large or too deep to be read, in the lists of a sweep."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import cast

from tests.operator.samples import DEFAULTS, NOON, merge, pipeline

from levada_operator.app.fetch import Answer
from levada_operator.app.progress_reader import ProgressReader
from levada_operator.app.queue import KeyedQueue
from levada_operator.app.sweeper import Sweeper
from levada_operator.app.update_turns import UpdateTurns
from levada_operator.app.watchdog import SWEEP_DEADLINE_S, Watchdog
from levada_operator.kube.interface import Cluster, Listing
from levada_operator.kube.items import Unread
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey


class HugePipeline:
    """An API server with one Pipeline that is too large."""

    def list_objects(self, kind: str, *_: str | None, metadata: bool = False) -> Listing:
        """Return the objects of a kind."""
        if kind != "Pipeline":
            return Listing([])
        if not metadata:
            return Listing([], [Unread("data", "shop", "it has more than 1024 KiB")])
        return Listing([merge(pipeline(), {"metadata": {"resourceVersion": "7"}})])


async def _no_answer(*_: object) -> Answer:
    return Answer()


def test_watch_is_not_asked_for_what_cannot_be_read() -> None:
    """A Pipeline that is too large never arrives by the watch. It is no reason to restart the operator."""
    now = [0.0]
    cache, watchdog, executor = ClusterCache(DEFAULTS), Watchdog(lambda: now[0]), ThreadPoolExecutor(1)
    progress, turns = ProgressReader(cache, _no_answer, executor), UpdateTurns(cache, timedelta(minutes=5))
    sweeper = Sweeper(cast(Cluster, HugePipeline()), cache, KeyedQueue(), turns, watchdog, executor, namespaces=(),
                      progress=progress, detect_storage=False)  # fmt: skip

    async def sweeps() -> None:
        for _ in range(20):
            now[0] += SWEEP_DEADLINE_S / 2
            # The version is that of before the Pipeline became too large.
            await sweeper.sweep({PipelineKey("data", "shop"): "3"}, NOON)
            assert watchdog.unhealthy_reason() == ""

    asyncio.run(sweeps())
    assert cache.pipelines[PipelineKey("data", "shop")]["unread"]
