"""The results of tasks in the order of the tasks, while later tasks still run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from levada.copy.tasks import TaskQueue, TaskRunner, run_queue
from levada.errors import LevadaError, Transient
from levada.threads import marked_thread

_log = logging.getLogger(__name__)

T = TypeVar("T")

STALLED_S: Final = 120.0
"""Seconds in which a batch only waits, after which tasks are given up. A cluster may have no place for an executor."""


@contextmanager
def results_in_order(
    runner: TaskRunner,
    tasks: Sequence[Callable[[], T]],
    description: str,
    *,
    parallel: int,
    window: int,
    unused: Callable[[T], None],
    helps: bool = True,
) -> Iterator[Iterator[Result[T]]]:
    """Yield an iterator over the results, which waits for each of them.

    If it ``helps``, it runs tasks itself that have not begun while it waits, so that this process is not idle. At
    most ``window`` tasks begin before their results are taken, which bounds the memory for results.

    If a task fails for good, or if it only waits and no task finishes for `STALLED_S`, the tasks of ``runner`` are
    cancelled, and the iterator runs the tasks that have not begun. The value of a result that is missing is None. At
    the end of the context the running tasks are cancelled, and ``unused`` is called with each value that the iterator
    has not yielded. Files that a cancelled task has written are left as orphans.
    """
    results = OrderedResults(runner, tasks, description, parallel, window, helps=helps)
    try:
        yield iter(results)
    finally:
        for value in results.close():
            unused(value)


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """The value that a task returned, or None if it has failed. ``elsewhere`` is False if this process ran it."""

    value: T | None
    elsewhere: bool = True


class OrderedResults(Generic[T]):
    """The results that are not taken yet. A thread runs the tasks."""

    def __init__(
        self,
        runner: TaskRunner,
        tasks: Sequence[Callable[[], T]],
        description: str,
        parallel: int,
        window: int,
        *,
        helps: bool = True,
    ) -> None:
        self._count = len(tasks)
        self._helps = helps
        self.queue = TaskQueue(tasks, window)
        self._description = description
        self._finished: dict[int, Result[T]] = {}
        self._changed = threading.Condition()
        self.ended = False
        self._stop = threading.Event()
        self._waiting = False
        self._progress_at = time.monotonic()
        self._thread = marked_thread(self._run, "levada-batch-tasks", runner, parallel)
        self._thread.start()

    def __iter__(self) -> Iterator[Result[T]]:
        for index in range(self._count):
            result = self._result(index)
            self.queue.result_taken()
            yield result

    def _result(self, index: int) -> Result[T]:
        while True:
            with self._changed:
                if index in self._finished:
                    return self._finished.pop(index)
                if self.ended and self.queue.has_begun(index):
                    return Result(None)
            task = self.next_here()
            if task is not None:
                self.run_here(*task)
            else:
                self._wait_for(index)

    def next_here(self) -> tuple[int, Callable[[], T]] | None:
        """Take the next task for this process, if it may begin now."""
        return self.queue.take_now() if self._helps or self.ended else None

    def _wait_for(self, index: int) -> None:
        """Wait until the task has a result or has failed. Only this thread lets further tasks begin."""
        with self._changed:
            self._progress_at, self._waiting = time.monotonic(), True
            self._changed.wait_for(lambda: index in self._finished or self.ended)
            self._waiting = False

    def run_here(self, index: int, task: Callable[[], T]) -> None:
        """Run a task in this process."""
        value = None
        try:
            value = task()
        except Exception as error:
            # The caller does the work in the order of the tasks, and raises the error if it has it too.
            _log.info("%s: a task failed in this process: %s", self._description, error)
        with self._changed:
            self._finished[index] = Result(value, elsewhere=False)

    def close(self) -> list[T]:
        """Cancel the tasks, wait for their end, and return the values that were not taken."""
        self._stop.set()
        self._thread.join()
        return [result.value for result in self._finished.values() if result.value is not None]

    def _run(self, runner: TaskRunner, parallel: int) -> None:
        try:
            run_queue(
                runner,
                self.queue,
                self._description,
                parallel=parallel,
                cancelled=self._stop,
                done=self._done,
                ended=self._stalled,
            )
        except BaseException as error:
            if not self._stop.is_set():
                _log.warning("%s: the tasks were given up: %s", self._description, error)
        finally:
            with self._changed:
                self.ended = True
                self._changed.notify_all()

    def _done(self, index: int, value: T) -> None:
        with self._changed:
            self._finished[index] = Result(value)
            self._progress_at = time.monotonic()
            self._changed.notify_all()

    def _stalled(self) -> LevadaError | None:
        if not self._waiting or time.monotonic() - self._progress_at < STALLED_S:
            return None
        return Transient(
            "spark_task_failed",
            f"{self._description}: no task has finished for {STALLED_S:.0f} s",
            hint="if this persists, see the log, and raise the memory limit",
        )
