"""Results of tasks in order, to which this process contributes while it waits."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.rigs.waiting import until

from levada.copy.process_tasks import ProcessTasks
from levada.copy.results_in_order import results_in_order

pytestmark = pytest.mark.usefixtures("own_process")


@pytest.fixture(scope="module")
def workers() -> Iterator[ProcessTasks]:
    """Worker processes for the tests of this file."""
    runner = ProcessTasks()
    yield runner
    runner.close()


def meets(folder: Path, number: int) -> tuple[int, int]:
    """Return the number and the process once a second process runs such a task too."""
    (folder / str(os.getpid())).touch()
    until(lambda: len(list(folder.iterdir())) >= 2)
    return number, os.getpid()


def begins(folder: Path, number: int) -> int:
    """Leave a trace, and return the number."""
    (folder / str(number)).touch()
    return number


def fails(number: int) -> int:
    """Return the number, or raise ValueError for 3."""
    if number == 3:
        raise ValueError("never")
    return number


def test_this_process_runs_tasks_while_it_waits(workers: ProcessTasks, tmp_path: Path) -> None:
    """With one worker both processes run tasks at the same time, and the results have their order."""
    tasks = [partial(meets, tmp_path, n) for n in range(8)]
    with results_in_order(workers, tasks, "t", parallel=1, window=8, unused=print) as results:
        found = list(results)
    assert [r.value[0] for r in found if r.value] == list(range(8))
    assert {r.elsewhere for r in found} == {False, True}
    assert all((r.value[1] == os.getpid()) is not r.elsewhere for r in found if r.value)


def test_few_tasks_begin_before_their_results_are_taken(workers: ProcessTasks, tmp_path: Path) -> None:
    """No more tasks than the window have a result that was not taken, however slow the caller is."""
    tasks = [partial(begins, tmp_path, n) for n in range(20)]
    with results_in_order(workers, tasks, "t", parallel=2, window=3, unused=print) as results:
        for number, result in enumerate(results):
            assert result.value == number
            assert len(list(tmp_path.iterdir())) <= number + 1 + 3
    assert len(list(tmp_path.iterdir())) == 20


def test_values_that_are_not_taken_are_handed_back(workers: ProcessTasks, tmp_path: Path) -> None:
    """A caller that stops early gets every value that it has not taken, once."""
    unused: list[int] = []
    tasks = [partial(begins, tmp_path, n) for n in range(9)]
    with results_in_order(workers, tasks, "t", parallel=2, window=9, unused=unused.append) as results:
        assert [next(results).value, next(results).value] == [0, 1]
        until(lambda: len(list(tmp_path.iterdir())) >= 5)
    assert len(unused) == len(set(unused))
    assert not set(unused) & {0, 1}


def test_the_value_of_a_task_that_fails_is_missing(workers: ProcessTasks) -> None:
    """It is None wherever the task failed, and all others have their values."""
    for parallel in (1, 3):
        tasks = [partial(fails, n) for n in range(9)]
        with results_in_order(workers, tasks, "t", parallel=parallel, window=4, unused=print) as results:
            assert [r.value for r in results] == [0, 1, 2, None, 4, 5, 6, 7, 8]
