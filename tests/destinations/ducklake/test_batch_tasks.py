"""Batches that worker processes fold and write: the tables are those of a batch in the engine's own process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.destinations.ducklake.steps import ORDERS, copy
from tests.destinations.random_source import RandomSource
from tests.servers.ducklake import DuckLake

from levada.copy.batch_processes import BatchProcesses
from levada.copy.process_tasks import ProcessTasks
from levada.destinations.data_files import parallel_upsert
from levada.destinations.data_files.parallel_upsert import FoldTask
from levada.values import TableMode


class Backlog(BatchProcesses):
    """Two places for each batch, however small."""

    def places(self, changes: int, tasks: float) -> int:
        """Return 2."""
        return 2


@pytest.fixture(scope="module")
def backlog() -> Iterator[Backlog]:
    """Worker processes for the tests of this file."""
    workers = ProcessTasks(["levada.destinations.ducklake.destination"])
    yield Backlog(workers, 2)
    workers.close()


def test_random_batches_by_workers(ducklake: DuckLake, backlog: Backlog) -> None:
    """Moved and exchanged keys, unknown values, truncates and new columns come to the rows of the source."""
    destination = ducklake.destination()
    destination.run_batches_in(backlog)
    source = RandomSource(4)
    source.stream.limit(task_rows=3)
    destination.write_table_rows(source.target, source.copied(), ducklake.mark(1000))
    used = 0
    for _ in range(3):
        for _ in range(4):
            source.change()
        batch = source.stream.batch()
        destination.write_events(batch, ducklake.mark(batch.until))
        used += batch.changes(source.schema.id).tasks
        seen = {
            row["id"]: tuple(f"{n}={row[n]!r}" for n in sorted(c.name for c in source.schema.columns))
            for row in ducklake.rows()
        }
        assert seen == source.expected()
    assert used > 5


def test_a_killed_worker_loses_a_try(
    ducklake: DuckLake, backlog: Backlog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is killed after it has written its files runs again, and the batch is applied once."""
    destination = ducklake.destination()
    destination.run_batches_in(backlog)
    stream = copy(ducklake, destination)
    stream.limit(task_rows=3)
    for i in range(9):
        stream.insert(id=i + 10, item=f"item {i}", note=None)
        stream.update(id=1 + i % 3, item=f"turn {i}", note=None, unchanged=[3])

    def dies_once(task: FoldTask, events: Any) -> Any:
        written = task(events)
        if not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    monkeypatch.setattr(parallel_upsert, "partial", lambda task, part: partial(dies_once, task, part))
    batch = stream.batch()
    destination.write_events(batch, ducklake.mark(batch.until))
    changes = batch.changes(ORDERS.id)
    assert changes.tasks > 3
    assert (tmp_path / "died").exists()
    assert ducklake.items() == {1: "turn 6", 2: "turn 7", 3: "turn 8", **{i + 10: f"item {i}" for i in range(9)}}
    assert destination.applied(ORDERS.id) == ducklake.mark(stream.taken)


@pytest.mark.nightly
def test_a_changelog_by_workers(ducklake: DuckLake, backlog: Backlog) -> None:
    """A changelog has each change once."""
    destination = ducklake.destination()
    destination.run_batches_in(backlog)
    stream = copy(ducklake, destination, mode=TableMode.CHANGELOG)
    stream.limit(task_rows=3)
    for i in range(9):
        stream.insert(id=i + 10, item="a", note=None)
    stream.truncate()
    stream.delete(id=11)
    batch = stream.batch()
    destination.write_events(batch, ducklake.mark(batch.until))
    assert batch.changes(ORDERS.id).tasks > 1
    assert len(ducklake.rows()) == 3 + 9 + 1 + 1
