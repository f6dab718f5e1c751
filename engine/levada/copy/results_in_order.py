"""The results of tasks in the order of the tasks, while later tasks still run."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

from levada.copy.tasks import TaskRunner, run_tasks
from levada.errors import LevadaError, Transient

_log = logging.getLogger(__name__)

T = TypeVar("T")

STALLED_S: Final = 120.0
"""Seconds without a finished task after which the tasks are given up. A cluster may have no place for an executor."""


@contextmanager
def results_in_order(
    runner: TaskRunner,
    tasks: Sequence[Callable[[], T]],
    description: str,
    *,
    parallel: int,
    unused: Callable[[T], None],
) -> Iterator[Iterator[T | None]]:
    """Yield an iterator over the results, which waits for each of them.

    If a task fails for good, or if no task finishes for `STALLED_S`, the other tasks are cancelled, and the iterator
    yields None for each result that is missing. At the end of the context the running tasks are cancelled, and
    ``unused`` is called with each result that the iterator has not yielded. Files that a cancelled task has written
    are left as orphans.
    """
    results = _Results(runner, tasks, description, parallel)
    try:
        yield iter(results)
    finally:
        for result in results.close():
            unused(result)


class _Results(Generic[T]):
    """The results that are not taken yet. A thread runs the tasks."""

    def __init__(self, runner: TaskRunner, tasks: Sequence[Callable[[], T]], description: str, parallel: int) -> None:
        self._tasks = tasks
        self._description = description
        self._finished: dict[int, T] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._stop = threading.Event()
        self._progress_at = time.monotonic()
        self._thread = threading.Thread(
            target=self._run, args=(runner, parallel), name="levada-batch-tasks", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[T | None]:
        for index in range(len(self._tasks)):
            with self._changed:
                self._changed.wait_for(lambda index=index: index in self._finished or self._ended)  # type: ignore[misc]  # bound here
                result = self._finished.pop(index, None)
            yield result

    def close(self) -> list[T]:
        """Cancel the tasks, wait for their end, and return the results that were not taken."""
        self._stop.set()
        self._thread.join()
        return list(self._finished.values())

    def _run(self, runner: TaskRunner, parallel: int) -> None:
        try:
            run_tasks(
                runner,
                self._tasks,
                self._description,
                parallel=parallel,
                cancelled=self._stop,
                done=self._done,
                ended=self._stalled,
            )
        except Exception as error:
            if not self._stop.is_set():
                _log.warning("%s: the tasks were given up: %s", self._description, error)
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _done(self, index: int, result: T) -> None:
        with self._changed:
            self._finished[index] = result
            self._progress_at = time.monotonic()
            self._changed.notify_all()

    def _stalled(self) -> LevadaError | None:
        if time.monotonic() - self._progress_at < STALLED_S:
            return None
        return Transient(
            "spark_task_failed",
            f"{self._description}: no task has finished for {STALLED_S:.0f} s",
            hint="if this persists, see the log, and raise the memory limit",
        )
