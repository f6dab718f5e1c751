"""When the batches of a backlog have places for tasks, and where these run."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from tests.rigs.process_tasks import run

from levada.copy.batch_processes import BatchProcesses
from levada.copy.process_tasks import ProcessTasks
from levada.segments.limits import BatchLimits


class Seconds:
    """A clock that the test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def workers() -> Iterator[ProcessTasks]:
    """Worker processes of copies, at most two."""
    runner = ProcessTasks(limit=2)
    yield runner
    runner.close()


def test_only_a_backlog_has_places(workers: ProcessTasks) -> None:
    """A large batch has places, as has a small one after many others. A steady stream and a few changes have none."""
    clock = Seconds()
    runner = BatchProcesses(workers, 2, clock=clock)
    assert runner.places(60_000, 1) == 2
    assert runner.places(5_000, 1) == 2
    assert runner.places(100, 1) == 0
    for _ in range(100):
        clock.now += 5
        places = runner.places(20_000, 1)
    assert places == 0
    assert [runner.places(5_000, 1) for _ in range(10)][-1] == 2


def test_copies_have_the_places_first(workers: ProcessTasks) -> None:
    """While copies have all places, batches have none."""
    runner = BatchProcesses(workers, 2)
    with workers.place(lambda: True, first=True), workers.place(lambda: True, first=True):
        assert runner.places(100_000, 1) == 0
    assert runner.places(100_000, 1) == 2


def test_the_tasks_of_batches_share_their_places(workers: ProcessTasks) -> None:
    """A task of a second batch waits for a place as long as it is needed."""
    needed = iter([True, False])
    runner = BatchProcesses(workers, 1)
    with (
        runner.place(lambda: True, first=True) as first,
        runner.place(lambda: next(needed), first=True) as second,
    ):
        assert (first, second) == (True, False)


@pytest.mark.usefixtures("own_process")
def test_workers_are_those_of_copies(processes: ProcessTasks) -> None:
    """A batch uses the worker that a copy has left."""
    copied = run(processes, os.getpid, parallel=1)
    assert run(BatchProcesses(processes, 1), os.getpid, parallel=1) == copied
    assert copied != [os.getpid()]


def test_tasks_are_not_larger_than_the_limits_of_the_batch(workers: ProcessTasks) -> None:
    """The sizes are those of worker processes, unless the batch has smaller ones."""
    runner = BatchProcesses(workers, 1)
    assert runner.sizes(BatchLimits(task_rows=3, task_bytes=5)) == BatchLimits(task_rows=3, task_bytes=5)
    assert runner.sizes(BatchLimits()).task_rows < BatchLimits().task_rows
