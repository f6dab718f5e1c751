"""Runs functions in other processes. It limits their number, keeps the types of their errors, and can cancel them.

A `TaskRunner` is where they run. `levada.copy.spark_tasks` has the one for Spark, and `levada.copy.process_tasks` the
one for worker processes of this machine.
"""

from __future__ import annotations

import itertools
import logging
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

import cloudpickle

from levada.errors import LevadaError, Transient
from levada.segments.limits import BatchLimits
from levada.threads import marked_thread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)

T = TypeVar("T")

Submit = Callable[[bytes], bytes]
"""A function that calls `attempt` in another process."""

_ATTEMPTS: Final = 3
_RETRY_DELAY_S: Final = 1.0
_POLL_S: Final = 0.1


class TaskGroup(Protocol):
    """The tasks of one call of `run_tasks`. Its methods are called from several threads."""

    def submitter(self, needed: Callable[[], bool]) -> AbstractContextManager[Submit | None]:
        """Yield a function for one thread that calls `attempt` in another process and returns what it returns.

        Wait until there may be another process, except for the group's first one. Yield None once it is not ``needed``
        any more. The function raises Transient if its process ended before.
        """

    def cancel(self) -> None:
        """Stop the tasks that run now. It is called repeatedly, because another one may be about to start."""


class TaskRunner(Protocol):
    """A place where functions run outside of this process. Thread-safe."""

    @property
    def spark(self) -> SparkSession | None:
        """The session in which the tasks run, or None if they run without Spark."""

    def group(self, description: str) -> TaskGroup:
        """Return a new group of tasks. ``description`` is for messages."""

    def check(self) -> None:
        """Raise Permanent if no task will run any more."""

    def close(self) -> None:
        """End the processes that belong to this runner. Later calls have no effect."""


class BatchRunner(TaskRunner, Protocol):
    """A runner for the tasks of batches, which knows whether a batch should use it now."""

    @property
    def on_this_machine(self) -> bool:
        """True if all tasks run on this machine."""

    @property
    def is_helped(self) -> bool:
        """True if this process runs tasks too while it waits for a result."""

    def sizes(self, limits: BatchLimits) -> BatchLimits:
        """Return the sizes of tasks, for a batch with these limits."""

    def places(self, changes: int, tasks: float) -> int:
        """Return the number of tasks to run at the same time, or 0 if they are not worth their cost now.

        The batch has so many changes, which are so many times the size of a task.
        """


def run_tasks(
    runner: TaskRunner,
    tasks: Sequence[Callable[[], T]],
    description: str,
    *,
    parallel: int,
    cancelled: threading.Event,
    done: Callable[[int, T], None] = lambda index, result: None,
    final: frozenset[str] = frozenset(),
    ended: Callable[[], LevadaError | None] = lambda: None,
) -> list[T]:
    """Run the tasks, at most ``parallel`` at the same time, and return the results in the order of ``tasks``.

    ``done`` is called in this process, from several threads, with the index and the result of each successful task. A
    task that raises Transient is retried, unless the code is in ``final``. ``ended`` returns the error with which all
    tasks must stop, or None while they may continue.

    After an error, cancel the other tasks and raise the first error. Raise Transient ``copy_cancelled`` if
    ``cancelled`` is set.
    """
    results: dict[int, T] = {}

    def keep(index: int, result: T) -> None:
        results[index] = result
        done(index, result)

    queue = TaskQueue(tasks)
    run_queue(runner, queue, description, parallel=parallel, cancelled=cancelled, done=keep, final=final, ended=ended)
    return [results[i] for i in range(len(tasks))]


def run_queue(
    runner: TaskRunner,
    queue: TaskQueue[T],
    description: str,
    *,
    parallel: int,
    cancelled: threading.Event,
    done: Callable[[int, T], None],
    final: frozenset[str] = frozenset(),
    ended: Callable[[], LevadaError | None] = lambda: None,
) -> None:
    """Run the tasks of a queue as `run_tasks` does, without keeping their results."""
    _Run(runner.group(description), description, cancelled, done, final, ended).run(queue, parallel)


def attempt(task: bytes) -> bytes:
    """Run a pickled task and return the pickled outcome for `run_tasks`. It runs in the task's process.

    The outcome is the result or the error, because Spark converts raised exceptions to text.
    """
    try:
        return _dumps(pickle.loads(task)())
    except BaseException as error:
        # An exit, a cancellation or a panic of a library in Rust must not end a thread of this process without a word.
        where = traceback.format_exc()
        try:
            pickled = _dumps(_Failed(error, where))
            pickle.loads(pickled)
        except BaseException:
            return _dumps(_Failed(RuntimeError(f"{type(error).__name__}: {error}"), where))
        return pickled


def _dumps(value: object) -> bytes:
    # pickle alone has no closures, and nothing of `__main__`. Both ways have to use the same cloudpickle, which then
    # maps a class of `__main__` to the same class again.
    return cast("bytes", cloudpickle.dumps(value))


@dataclass(frozen=True, slots=True)
class _Failed:
    """An error that a task returns as its result."""

    error: BaseException
    where: str


class TaskQueue(Generic[T]):
    """The tasks that have not begun, in order. Thread-safe.

    With a ``window``, at most so many tasks begin before their results were taken by `result_taken`.
    """

    def __init__(self, tasks: Sequence[Callable[[], T]], window: int | None = None) -> None:
        self._tasks = deque(enumerate(tasks))
        self._changed = threading.Condition()
        self._window = len(tasks) if window is None else window

    def __len__(self) -> int:
        return len(self._tasks)

    def take(self, stop: threading.Event) -> tuple[int, Callable[[], T]] | None:
        """Remove and return the next task, once it may begin. Return None without one, and if ``stop`` is set."""
        with self._changed:
            while not stop.is_set():
                if (task := self._next()) is not None or not self._tasks:
                    return task
                self._changed.wait(_POLL_S)
        return None

    def take_now(self) -> tuple[int, Callable[[], T]] | None:
        """Remove and return the next task if it may begin now."""
        with self._changed:
            return self._next()

    def has_begun(self, index: int) -> bool:
        """Return True if the task was taken."""
        with self._changed:
            return not self._tasks or self._tasks[0][0] > index

    def result_taken(self) -> None:
        """Let another task begin."""
        with self._changed:
            self._window += 1
            self._changed.notify()

    def _next(self) -> tuple[int, Callable[[], T]] | None:
        return self._tasks.popleft() if self._tasks and self._tasks[0][0] < self._window else None


class _Run(Generic[T]):
    """One call of `run_queue`."""

    def __init__(
        self,
        group: TaskGroup,
        description: str,
        cancelled: threading.Event,
        done: Callable[[int, T], None],
        final: frozenset[str],
        ended: Callable[[], LevadaError | None],
    ) -> None:
        self._group = group
        self._description = description
        self._cancelled = cancelled
        self._done = done
        self._final = final
        self._ended = ended
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._lock = threading.Lock()

    def run(self, queue: TaskQueue[T], parallel: int) -> None:
        threads = [marked_thread(self._work, "levada-task", queue) for _ in range(min(parallel, len(queue)))]
        for thread in threads:
            thread.start()
        self._wait(threads)
        if self._cancelled.is_set():
            raise Transient("copy_cancelled", f"{self._description}: the process is stopping")
        if (ended := self._ended()) is not None:
            raise ended
        if self._error is not None:
            raise self._error

    def _wait(self, threads: Sequence[threading.Thread]) -> None:
        try:
            for thread in threads:
                while thread.is_alive():
                    thread.join(_POLL_S)
                    if self._cancelled.is_set() or self._ended() is not None:
                        self._stop.set()
                    if self._stop.is_set():
                        # Cancel in each round, because a task that is about to start is not in the group yet.
                        self._group.cancel()
        except BaseException:
            self._stop.set()
            self._group.cancel()
            raise

    def _work(self, queue: TaskQueue[T]) -> None:
        try:
            with self._group.submitter(lambda: bool(queue) and not self._stop.is_set()) as submit:
                while submit is not None and (taken := queue.take(self._stop)) is not None:
                    index, task = taken
                    self._done(index, self._attempts(submit, _dumps(task)))
        except BaseException as error:
            with self._lock:
                self._error = self._error or error
            self._stop.set()

    def _attempts(self, submit: Submit, task: bytes) -> T:
        for number in itertools.count(1):
            try:
                return cast("T", _outcome(submit(task)))
            except Transient as error:
                if number == _ATTEMPTS or error.code in self._final or self._stop.wait(number * _RETRY_DELAY_S):
                    raise
                _log.warning("a task runs again, attempt %d: %s", number + 1, error)
        raise AssertionError


def _outcome(pickled: bytes) -> object:
    """Return the result of a task. Raise its error with its original type."""
    outcome: Any = pickle.loads(pickled)
    if not isinstance(outcome, _Failed):
        return outcome
    if not isinstance(outcome.error, LevadaError):
        outcome.error.add_note(f"raised in a task:\n{outcome.where}")
    raise outcome.error
