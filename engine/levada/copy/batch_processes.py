"""The worker processes of copies, for the tasks of batches while there is a backlog."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from levada.copy.places import Places
from levada.copy.process_tasks import ProcessTasks, Worker, WorkerGroup
from levada.segments.limits import BatchLimits

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TASK_ROWS: Final = 150_000
_TASK_BYTES: Final = 8 << 20
"""The largest range of a task. It has data files of its own, so smaller ranges would be more files."""
_AT_ONCE: Final = 4
"""The most tasks of a batch that run simultaneously. They share the memory that the batch holds."""
_SMALLEST: Final = 2_000
"""The number of changes from which a batch is worth a task, which costs 2 ms before it begins."""
_BACKLOG: Final = 50_000
_BACKLOG_S: Final = 5.0
"""The number of changes in so many seconds from which there is a backlog. Below, this process has the time to write
them, and workers that end for lack of work would be started again and again.
"""


class BatchProcesses:
    """The `levada.copy.tasks.BatchRunner` of worker processes, at most ``limit`` for all batches together.

    ``workers`` are those of copies, which have the places first. ``clock`` is monotonic, in seconds.
    """

    on_this_machine = True
    is_helped = False

    def __init__(self, workers: ProcessTasks, limit: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._limit = limit
        self._places = Places(limit)
        self._clock = clock
        self._lock = threading.Lock()
        self._changes, self._counted_at = 0.0, clock()
        """The changes of the last batches. Their number fades with time."""

    @property
    def spark(self) -> SparkSession | None:
        """None, because the tasks run without Spark."""
        return None

    def group(self, description: str) -> WorkerGroup:
        """Return a new group of workers."""
        return WorkerGroup(self, description)

    def check(self) -> None:
        """Do nothing, because copies check the workers."""

    def close(self) -> None:
        """Do nothing, because the workers belong to copies."""

    def sizes(self, limits: BatchLimits) -> BatchLimits:
        """Return the sizes of tasks, at most ``limits``."""
        rows, size = min(limits.task_rows, _TASK_ROWS), min(limits.task_bytes, _TASK_BYTES)
        return replace(limits, task_rows=rows, task_bytes=size)

    def places(self, changes: int, tasks: float) -> int:
        """Return the number of tasks to run at the same time, or 0 without a backlog or a place."""
        with self._lock:
            now = self._clock()
            self._changes = self._changes * math.exp((self._counted_at - now) / _BACKLOG_S) + changes
            self._counted_at, backlog = now, self._changes >= _BACKLOG
        left = self._workers.free_places
        if not backlog or changes < _SMALLEST or (left is not None and left <= self._places.taken):
            return 0
        return min(_AT_ONCE, self._limit)

    def place(self, needed: Callable[[], bool], *, first: bool) -> AbstractContextManager[bool]:
        """Yield True in the place of one worker, or False if it is not ``needed`` any more."""
        return self._places.place(needed)

    def worker(self) -> Worker:
        """Return a worker of the copies."""
        return self._workers.worker()

    def put_back(self, worker: Worker) -> None:
        """Keep a worker whose last task has ended for the next one, of a copy or of a batch."""
        self._workers.put_back(worker)
