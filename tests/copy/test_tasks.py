"""Promises of both runners of tasks: worker processes, and Spark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.process_tasks import alive, run
from tests.rigs.waiting import LIMIT_S, until

from levada.copy.tasks import TaskRunner
from levada.errors import LevadaError, NeedsOperator, Permanent, Transient


@dataclass(frozen=True)
class Point:
    """A value of a module."""

    x: int


@pytest.mark.usefixtures("own_process")
def test_results_are_in_the_order_of_the_tasks(runner: TaskRunner, tmp_path: Path) -> None:
    """Whatever ends first: each result is at its task's place, and was reported with its index."""
    done: dict[int, int] = {}
    last = tmp_path / "last"
    tasks = [lambda: until(last.exists) and 0, lambda: 10, lambda: last.touch() or 20]
    assert run(runner, *tasks, parallel=2, done=done.__setitem__) == [0, 10, 20]
    assert done == {0: 0, 1: 10, 2: 20}
    assert run(runner) == []


def test_closures_and_values_cross_the_processes(runner: TaskRunner) -> None:
    """A lambda with what it closes over, a local class, None and large bytes arrive as they are."""

    class Local:
        def __init__(self, x: int) -> None:
            self.x = x

    big = bytes(range(256)) * 40_000
    pid = os.getpid()
    found = run(
        runner,
        lambda: Local(3),
        partial(Point, 4),
        lambda: None,
        lambda: big[::-1],
        lambda: os.getpid() != pid,
    )
    assert type(found[0]) is Local
    assert found[0].x == 3
    assert found[1:] == [Point(4), None, big[::-1], True]


@pytest.mark.sampled
def test_no_more_than_parallel_run_at_the_same_time(runner: TaskRunner, tmp_path: Path) -> None:
    """With two places, a third task waits for one of the first two."""
    folder = str(tmp_path)

    def count() -> int:
        mine = Path(folder, str(os.urandom(8).hex()))
        mine.touch()
        time.sleep(0.3)
        running = len(list(Path(folder).iterdir()))
        time.sleep(0.1)
        mine.unlink()
        return running

    assert max(run(runner, *[count] * 6)) <= 2


@pytest.mark.parametrize(
    "error",
    [
        NeedsOperator("lake_full", "no space", hint="buy a disk"),
        Permanent("broken", "for ever"),
        ZeroDivisionError("a bug"),
    ],
)
def test_errors_keep_their_type(runner: TaskRunner, error: Exception) -> None:
    """Levada's errors keep code and hint. Others name the place where they were raised."""

    def fail() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        run(runner, fail)
    assert str(raised.value) == str(error)
    if not isinstance(error, LevadaError):
        assert "in fail" in raised.value.__notes__[0]


@pytest.mark.sampled
def test_what_cannot_be_pickled_is_an_error(runner: TaskRunner) -> None:
    """A task, a result or an error that cannot be pickled ends the call, and not the process of the task."""
    with pytest.raises(TypeError, match="pickle"):
        run(runner, partial(str, threading.Lock()))
    with pytest.raises(TypeError, match="pickle"):
        run(runner, threading.Lock)

    class OddError(Exception):
        def __init__(self) -> None:
            super().__init__("held")
            self.lock = threading.Lock()

    def fail() -> None:
        raise OddError

    with pytest.raises(RuntimeError, match="OddError: held"):
        run(runner, fail)
    assert run(runner, lambda: 1) == [1]


@pytest.mark.sampled
def test_the_first_error_stops_the_others(runner: TaskRunner, tmp_path: Path) -> None:
    """A task that would go on for ever ends when another one fails, and no further one starts."""
    begun, late = str(tmp_path / "begun"), str(tmp_path / "late")

    def hang() -> None:
        Path(begun).touch()
        threading.Event().wait()

    def fail() -> None:
        until(Path(begun).exists)
        raise NeedsOperator("first", "the first")

    with pytest.raises(NeedsOperator) as raised:
        run(runner, hang, fail, Path(late).touch)
    assert raised.value.code == "first"
    assert not Path(late).exists()


def test_transient_errors_are_retried_unless_final(runner: TaskRunner, tmp_path: Path) -> None:
    """A Transient error is retried twice, but not with a code after which all must begin again."""
    tried = str(tmp_path / "tried")

    def fail(code: str, times: int) -> int:
        with Path(tried).open("a") as file:
            file.write("x")
        count = len(Path(tried).read_text())
        if count <= times:
            raise Transient(code, "not now")
        return count

    assert run(runner, partial(fail, "cut", 2)) == [3]
    for code, times in (("cut", 3), ("snapshot_gone", 1)):
        Path(tried).unlink()
        with pytest.raises(Transient) as raised:
            run(runner, partial(fail, code, 100), final=frozenset({"snapshot_gone"}))
        assert raised.value.code == code
        assert len(Path(tried).read_text()) == times


def hang_until_stopped(runner: TaskRunner, folder: Path, stop: Callable[[], object], **more: Any) -> LevadaError:
    """Run tasks that never end until ``stop``. Return the error, once the tasks are gone."""
    begun, places = str(folder), 2

    def hang() -> None:
        Path(begun, str(os.getpid())).touch()
        threading.Event().wait()

    raised: list[LevadaError] = []

    def body() -> None:
        try:
            run(runner, *[hang] * 3, parallel=places, **more)
        except LevadaError as error:
            raised.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    until(lambda: len(list(folder.iterdir())) >= places, alive=thread.is_alive, report=lambda: repr(raised))
    stop()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    until(lambda: not any(alive(int(file.name)) for file in folder.iterdir()))
    return raised[0]


def test_cancelling_ends_tasks_that_hang(runner: TaskRunner, tmp_path: Path) -> None:
    """Setting the event ends running tasks, whatever they do, and their processes."""
    cancelled = threading.Event()
    error = hang_until_stopped(runner, tmp_path, cancelled.set, cancelled=cancelled)
    assert (type(error), error.code) == (Transient, "copy_cancelled")


@pytest.mark.sampled
def test_an_end_of_the_whole_ends_tasks_that_hang(runner: TaskRunner, tmp_path: Path) -> None:
    """Once ``ended`` returns an error, the tasks end with it."""
    ends: list[LevadaError] = []
    error = hang_until_stopped(
        runner,
        tmp_path,
        lambda: ends.append(Transient("yielded", "another session waits")),
        ended=lambda: ends[0] if ends else None,
    )
    assert error is ends[0]


def test_a_killed_task_is_retried(runner: TaskRunner, tmp_path: Path) -> None:
    """The end of a task's process, as by the kernel for lack of memory, is Transient. Only that task runs again."""
    folder = str(tmp_path)

    def die(name: str, times: int) -> str:
        with Path(folder, name).open("a") as file:
            file.write("x")
        if len(Path(folder, name).read_text()) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return name

    tasks = [partial(die, name, times) for name, times in (("a", 0), ("b", 1), ("c", 0), ("d", 0))]
    assert run(runner, *tasks) == ["a", "b", "c", "d"]
    assert {name: len((tmp_path / name).read_text()) for name in "abcd"} == {"a": 1, "b": 2, "c": 1, "d": 1}
    with pytest.raises(Transient) as raised:
        run(runner, partial(die, "e", 100))
    assert raised.value.code in ("worker_process_ended", "spark_task_failed")


SCRIPT = """
import sys, threading
from dataclasses import dataclass

from levada.copy.tasks import run_tasks

{make}

@dataclass(frozen=True)
class Point:
    x: int

class Own(Exception):
    pass

def double(point):
    return Point(point.x * 2)

def fail():
    raise Own("mine")

def run(*tasks):
    return run_tasks(runner, tasks, "t", parallel=1, cancelled=threading.Event())

assert run(lambda: double(Point(4))) == [Point(8)]
try:
    run(fail)
except Own as error:
    print("caught", error)
"""
MAKE = {
    "processes": "from levada.copy.process_tasks import ProcessTasks\nrunner = ProcessTasks()",
    "spark": "from levada.copy.spark_tasks import SparkTasks\n"
    "from levada.runtime.resources.spark import spark_session\nrunner = SparkTasks(spark_session('t', cores=1))",
}


@pytest.mark.sampled
@pytest.mark.usefixtures("own_process")
@pytest.mark.parametrize("kind", MAKE)
def test_a_script_needs_no_guard(kind: str, tmp_path: Path) -> None:
    """Functions, classes and errors of a script that is run cross the processes. The script runs once."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(make=MAKE[kind]))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.stdout == "caught mine\n", done.stderr
