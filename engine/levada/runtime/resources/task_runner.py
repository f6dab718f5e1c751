"""The runner of a pipeline's tasks: Spark for a destination that asks for it, else worker processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from levada.copy.batch_processes import BatchProcesses
from levada.copy.process_tasks import ProcessTasks
from levada.copy.spark_tasks import SparkTasks
from levada.copy.tasks import BatchRunner, TaskRunner
from levada.destinations.interface import Destination
from levada.runtime.resources.machine import available_cores, memory_limit, worker_limit
from levada.runtime.resources.spark import check_jvm, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_FEWEST_CORES: Final = 2


def open_task_runner(destination: Destination, spark: SparkSession | None, name: str) -> TaskRunner:
    """Return the runner for the destination's tasks.

    ``spark`` is the session for a destination with the capability ``spark``, None for the process's own one, which is
    started if there is none, under ``name``. For any other destination no session is used or started, and the caller
    closes the runner.
    """
    if destination.capabilities.spark:
        kind = type(destination)
        session = spark or spark_session(name, defaults=kind.spark_conf(None), jars=kind.jars())
        return SparkTasks(session, check_jvm)
    # `__main__` cannot be imported there. Its functions and classes are pickled by value.
    modules = {kind.__module__ for kind in type(destination).__mro__ if issubclass(kind, Destination)}
    return ProcessTasks(sorted(modules - {"__main__"}), worker_limit(available_cores(), memory_limit()))


def open_batch_runner(tasks: TaskRunner) -> BatchRunner | None:
    """Return the runner for tasks of batches in the worker processes of copies.

    None: the tasks of copies run in Spark, or there is one core, on which tasks are of no use.
    """
    cores = available_cores()
    if not isinstance(tasks, ProcessTasks) or cores < _FEWEST_CORES:
        return None
    return BatchProcesses(tasks, min(cores, worker_limit(cores, memory_limit())))
