"""Tasks that run in Spark, each in its own job."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from levada.copy.tasks import Submit, attempt
from levada.errors import Transient

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_groups: Final = itertools.count(1)


@dataclass(frozen=True, slots=True)
class SparkTasks:
    """The `levada.copy.tasks.TaskRunner` of a Spark session, which belongs to the caller.

    ``check_session`` raises Permanent if the session has ended.
    """

    spark: SparkSession
    check_session: Callable[[SparkSession], None] = lambda spark: None

    def group(self, description: str) -> _JobGroup:
        """Return a new group of jobs."""
        return _JobGroup(self.spark.sparkContext, description, f"levada-tasks-{next(_groups)}")

    def check(self) -> None:
        """Raise Permanent if the session has ended."""
        self.check_session(self.spark)

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
            raise Transient("spark_task_failed", f"{self.description}: {cause}") from error
        return cast("bytes", outcome)
