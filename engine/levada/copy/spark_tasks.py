"""Tasks that run in Spark, each in its own job."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from levada.copy.tasks import Submit, attempt
from levada.errors import Transient
from levada.segments.limits import BatchLimits

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_groups: Final = itertools.count(1)
_LARGE: Final = 2
"""The number of tasks from which a batch is large, and is written by tasks."""
_IN_ONE_JVM: Final = re.compile(r"local(\[|$)")


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """The `levada.copy.tasks.TaskRunner` of a Spark session, which belongs to the caller.

    ``check_session`` raises Permanent if the session has ended. ``fewest_cores`` are the fewest cores of this machine
    with which the tasks of a batch are worth their cost: without tasks the engine's process reads Parquet with two
    cores already.
    """

    spark: SparkSession
    check_session: Callable[[SparkSession], None] = lambda spark: None
    fewest_cores: int = 3
    _waking: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def group(self, description: str) -> _JobGroup:
        """Return a new group of jobs."""
        return _JobGroup(self.spark.sparkContext, description, f"levada-tasks-{next(_groups)}")

    def check(self) -> None:
        """Raise Permanent if the session has ended."""
        self.check_session(self.spark)

    def capacity(self) -> int:
        """Return the number of tasks of a batch that run at the same time once all executors are started.

        It is 0 if the cores of this machine are too few for tasks.
        """
        context = self.spark.sparkContext
        conf = context.getConf()
        most, cores = conf.get("spark.dynamicAllocation.maxExecutors"), conf.get("spark.executor.cores", "1")
        if self.on_this_machine:
            return int(context.defaultParallelism) if context.defaultParallelism >= self.fewest_cores else 0
        if most is None or cores is None:
            return int(context.defaultParallelism)
        return int(most) * int(cores)

    def sizes(self, limits: BatchLimits) -> BatchLimits:
        """Return the limits themselves, which are for Spark's tasks."""
        return limits

    def places(self, changes: int, tasks: float) -> int:
        """Return the number of tasks to run at the same time, or 0 if the batch is small or has no place."""
        return self.free_places() if tasks >= _LARGE else 0

    def free_places(self) -> int:
        """Return the number of tasks to run at the same time, or 0 if they would wait or are not worth their cost.

        They would wait for other tasks, or for the first executor, whose pod may need a minute. In this case one is
        requested. Further ones are started while tasks wait.
        """
        context = self.spark.sparkContext
        tracker = context.statusTracker()
        stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
        taken = sum(stage.numTasks - stage.numCompletedTasks for stage in stages if stage is not None)
        if self.on_this_machine:
            free = int(context.defaultParallelism) - taken
            return free if free >= self.fewest_cores else 0
        # The driver is one of them.
        if len(cast("Any", context)._jsc.sc().statusTracker().getExecutorInfos()) < 2:
            self._request_executor()
            return 0
        return self.capacity() - taken if context.defaultParallelism > taken else 0

    @property
    def is_helped(self) -> bool:
        """True, because the first tasks wait for executors or Python workers."""
        return True

    @property
    def on_this_machine(self) -> bool:
        """True if Spark has no executors of its own."""
        return _IN_ONE_JVM.match(self.spark.sparkContext.master or "local") is not None

    def _request_executor(self) -> None:
        """Let a job wait for an executor, unless there is one that waits."""

        def wait() -> None:
            # The job fails if the session ends before.
            with suppress(Exception):
                self.spark.sparkContext.parallelize([0], 1).count()
            self._waking.release()

        if self._waking.acquire(blocking=False):
            threading.Thread(target=wait, name="levada-executor-request", daemon=True).start()

    def close(self) -> None:
        """Do nothing, because the session belongs to the caller."""


@dataclass(frozen=True, slots=True)
class _JobGroup:
    context: SparkContext
    description: str
    name: str

    @contextmanager
    def submitter(self, needed: Callable[[], bool]) -> Iterator[Submit]:
        """Yield the function. Spark itself limits the number of its tasks."""
        self.context.setJobGroup(self.name, self.description, interruptOnCancel=True)
        yield self._submit

    def cancel(self) -> None:
        # Spark logs a warning for a group without jobs, which occurs between two jobs.
        tracker = self.context.statusTracker()
        if not set(tracker.getActiveJobsIds()).isdisjoint(tracker.getJobIdsForGroup(self.name)):
            self.context.cancelJobGroup(self.name)

    def _submit(self, task: bytes) -> bytes:
        from py4j.protocol import Py4JError

        try:
            one = self.context.parallelize([0], 1)
            # Read the input to its end. Otherwise Spark does not reuse the Python worker.
            outcome: Any = self.context.runJob(one, lambda items: [attempt(task) for _ in items])[0]
        except Py4JError as error:
            # A task returns its own errors as results. So this is a lost executor, a lack of memory, or a cancelled
            # job.
            cause = str(getattr(error, "java_exception", error)).partition("\n")[0]
            raise Transient(
                "spark_task_failed",
                f"{self.description}: {cause}",
                hint="if this persists, see the log, and raise the memory limit",
            ) from error
        return cast("bytes", outcome)
