"""Runs functions as Spark tasks. It limits their number, keeps the types of their errors, and can cancel them."""

from __future__ import annotations

import itertools
import pickle
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from levada.errors import LevadaError, Transient

if TYPE_CHECKING:
    from pyspark import SparkContext

T = TypeVar("T")

_ATTEMPTS: Final = 3
_RETRY_DELAY_S: Final = 1.0
_POLL_S: Final = 0.1
_groups = itertools.count(1)


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error that a task returns as its result, because Spark converts raised exceptions to text."""

    error: Exception
    where: str


class SparkTasks(Generic[T]):
    """Runs functions as Spark tasks, each in its own job, with at most ``parallel`` in parallel.

    ``done`` is called in the driver, from several threads, with the index and the result of each successful task. A
    task that raises Transient is retried, unless the code is in ``final``. ``ended`` returns the error with which all
    tasks must stop, or None while they may continue.
    """

    def __init__(
        self,
        context: SparkContext,
        description: str,
        *,
        parallel: int,
        cancelled: threading.Event,
        done: Callable[[int, T], None],
        final: frozenset[str] = frozenset(),
        ended: Callable[[], LevadaError | None] = lambda: None,
    ) -> None:
        self._context = context
        self._description = description
        self._group = f"levada-tasks-{next(_groups)}"
        self._parallel = parallel
        self._cancelled = cancelled
        self._done = done
        self._final = final
        self._ended = ended
        self._stop = threading.Event()
        self._error: Exception | None = None
        self._lock = threading.Lock()

    def run(self, tasks: Sequence[Callable[[], T]]) -> list[T]:
        """Return the results in the order of ``tasks``.

        After an error, cancel the other tasks and raise the first error. Raise Transient ``copy_cancelled`` if
        ``cancelled`` is set.
        """
        from pyspark import InheritableThread

        results: dict[int, T] = {}
        queue = iter(list(enumerate(tasks)))
        threads = [
            InheritableThread(target=self._work, args=(queue, results), daemon=True)
            for _ in range(min(self._parallel, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        self._wait(threads)
        if self._cancelled.is_set():
            raise Transient("copy_cancelled", f"{self._description}: the process is stopping")
        if (ended := self._ended()) is not None:
            raise ended
        if self._error is not None:
            raise self._error
        return [results[i] for i in range(len(tasks))]

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_S)
                    if self._cancelled.is_set() or self._ended() is not None:
                        self._stop.set()
                    if self._stop.is_set():
                        # Cancel in each round, because a job that is about to be submitted is not in the group yet.
                        self._cancel_jobs()
        except BaseException:
            self._stop.set()
            self._cancel_jobs()
            raise

    def _cancel_jobs(self) -> None:
        # Spark logs a warning for a group without jobs, which occurs between two jobs.
        tracker = self._context.statusTracker()
        if not set(tracker.getActiveJobsIds()).isdisjoint(tracker.getJobIdsForGroup(self._group)):
            self._context.cancelJobGroup(self._group)

    def _work(self, queue: Iterator[tuple[int, Callable[[], T]]], results: dict[int, T]) -> None:
        try:
            self._context.setJobGroup(self._group, self._description, interruptOnCancel=True)
            while not self._stop.is_set():
                with self._lock:
                    index, task = next(queue, (-1, None))
                if task is None:
                    return
                results[index] = self._attempts(task)
                self._done(index, results[index])
        except Exception as error:
            with self._lock:
                self._error = self._error or error
            self._stop.set()

    def _attempts(self, task: Callable[[], T]) -> T:
        for attempt in itertools.count(1):
            try:
                return self._submit(task)
            except Transient as error:
                if attempt == _ATTEMPTS or error.code in self._final or self._stop.wait(attempt * _RETRY_DELAY_S):
                    raise
        raise AssertionError

    def _submit(self, task: Callable[[], T]) -> T:
        from py4j.protocol import Py4JError

        try:
            one = self._context.parallelize([0], 1)
            # Read the input to its end. Otherwise Spark does not reuse the Python worker.
            outcome: Any = self._context.runJob(one, lambda items: [_attempt(task) for _ in items])[0]
        except Py4JError as error:
            # A task returns its own errors as results. So this is a lost executor, a lack of memory, or a cancelled
            # job.
            cause = str(getattr(error, "java_exception", error)).partition("\n")[0]
            raise Transient("spark_task_failed", f"{self._description}: {cause}") from error
        if not isinstance(outcome, _Failed):
            return cast("T", outcome)
        if not isinstance(outcome.error, LevadaError):
            outcome.error.add_note(f"raised in a Spark task:\n{outcome.where}")
        raise outcome.error


def _attempt(task: Callable[[], Any]) -> Any:  # runs in a Python worker
    try:
        return task()
    except Exception as error:
        where = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:
            return _Failed(RuntimeError(f"{type(error).__name__}: {error}"), where)
        return _Failed(error, where)
