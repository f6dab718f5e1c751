"""Tasks that worker processes run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from levada.copy.process_tasks import ProcessTasks
from levada.copy.snapshot import SnapshotRows
from levada.copy.spark_tasks import SparkTasks
from levada.copy.tasks import TaskRunner, run_tasks


def run(runner: TaskRunner, *tasks: Callable[[], Any], parallel: int = 2, **more: Any) -> list[Any]:
    """Run the tasks, not cancelled unless the test says so."""
    more.setdefault("cancelled", threading.Event())
    return run_tasks(runner, tasks, "a test", parallel=parallel, **more)


def alive(pid: int) -> bool:
    """Return True if the process runs. One that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        # It ends before the file is opened, or before it is read.
        return False


CopyOf = Callable[..., SnapshotRows]


@pytest.fixture(scope="session")
def processes() -> Iterator[ProcessTasks]:
    """Worker processes, forked from one process for the whole run."""
    runner = ProcessTasks()
    yield runner
    runner.close()


@pytest.fixture(params=["processes", "spark"])
def runner(request: pytest.FixtureRequest) -> TaskRunner:
    """Each place where tasks run: worker processes, and Spark."""
    if request.param == "spark":
        return SparkTasks(request.getfixturevalue("spark"))
    processes: ProcessTasks = request.getfixturevalue("processes")
    return processes
