"""The progress of all drivers: requested concurrently, a few at a time in each namespace."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable, Container, Iterable
from concurrent.futures import Executor
from datetime import datetime
from typing import Final

from levada.errors import NeedsOperator
from levada.status import read_progress
from levada_operator.act.metrics import FAULTS
from levada_operator.app.fetch import Answer
from levada_operator.desired.pod import HTTP_PORT
from levada_operator.kube.items import parse_object
from levada_operator.observe.cluster_cache import ClusterCache
from levada_operator.observe.objects import PipelineKey
from levada_operator.observe.progress import ProgressReport, read_report
from levada_operator.sizes import parsed_size

_log = logging.getLogger(__name__)

_WAIT_S: Final = 2.0
"""The longest wait for answers. Later ones are recorded when they come."""
_PER_NAMESPACE: Final = 2
_MAX_PARSED: Final = 48 << 20
"""Bytes that an answer may take once it is parsed: the progress of thousands of tables."""
_SURROGATE: Final = re.compile(rb"\\u[dD][89a-fA-F]")
_MAX_KEPT: Final = 64 << 20
"""The same for all answers of a namespace together."""

Fetch = Callable[[str, str, int], Awaitable[Answer]]
"""Takes the namespace, the address and the port of a driver."""


class ProgressReader:
    """Reads the progress of drivers into the cache. Answers are parsed in the executor, one at a time."""

    def __init__(self, cache: ClusterCache, fetch: Fetch, executor: Executor) -> None:
        self._cache = cache
        self._fetch = fetch
        self._executor = executor
        self._tasks: dict[PipelineKey, asyncio.Task[None]] = {}
        self._turns: dict[str, asyncio.Semaphore] = {}
        self._parsing = asyncio.Semaphore(1)
        self._sizes: dict[PipelineKey, int] = {}

    def forget_others(self, drivers: Container[PipelineKey]) -> None:
        """Count the answers of other drivers than these no longer."""
        self._sizes = {key: size for key, size in self._sizes.items() if key in drivers}

    async def read(self, addresses: Iterable[tuple[PipelineKey, str]], now: datetime) -> None:
        """Request the progress of each driver, unless an earlier request is under way. Wait for a moment."""
        drivers = dict(addresses)
        for key, address in drivers.items():
            if key not in self._tasks:
                self._tasks[key] = asyncio.create_task(self._read(key, address, now), name=f"progress {key}")
        if tasks := [task for key, task in self._tasks.items() if key in drivers]:
            await asyncio.wait(tasks, timeout=_WAIT_S)

    def stop(self) -> None:
        """End the requests that are under way."""
        for task in self._tasks.values():
            task.cancel()

    async def _read(self, key: PipelineKey, address: str, now: datetime) -> None:
        try:
            async with self._turns.setdefault(key.namespace, asyncio.Semaphore(_PER_NAMESPACE)):
                answer = await self._fetch(key.namespace, address, HTTP_PORT)
                if answer.refused:
                    self._record_unreadable(key, answer.refused)
                if answer.data:
                    async with self._parsing:
                        await self._parse(key, answer.data, now)
        except Exception:
            FAULTS.labels(key.namespace).inc()
            _log.exception("the progress of the driver of %s/%s cannot be read", *key)
        finally:
            self._tasks.pop(key, None)

    async def _parse(self, key: PipelineKey, data: bytes, now: datetime) -> None:
        size = parsed_size(data)
        others = sum(s for k, s in self._sizes.items() if k.namespace == key.namespace and k != key)
        if others + size > _MAX_KEPT:
            self._record_unreadable(key, "the progress of the namespace's drivers is too large")
            return
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._executor, read_answer, data, now)
        if isinstance(found, str):
            self._record_unreadable(key, found)
        elif found is not None:
            self._sizes[key] = size
            self._cache.record_progress(key, found)

    def _record_unreadable(self, key: PipelineKey, reason: str) -> None:
        if self._cache.record_unreadable(key, reason):
            FAULTS.labels(key.namespace).inc()
            _log.warning("cannot read the progress of the driver of %s/%s: %s", *key, reason)


def read_answer(data: bytes, now: datetime) -> ProgressReport | str | None:
    """Return the report, why it cannot be read, or None if the answer is no JSON."""
    document = parse_object(data, _MAX_PARSED)
    if isinstance(document, str):
        return document
    if _SURROGATE.search(data):
        # Half of a pair is no character: no name is made of it, and the API server stores another one.
        document = json.loads(json.dumps(document, ensure_ascii=False).encode(errors="replace"))
    try:
        return read_report(read_progress(document), now)
    except NeedsOperator as error:
        return f"{error.message} [{error.code}]" + (f"; {error.hint}" if error.hint else "")
    except (OverflowError, RecursionError) as error:
        return f"{type(error).__name__} in its answer"
