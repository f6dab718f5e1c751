"""Large batches that are folded and written by tasks: the tables are those of a batch in the engine's own process."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.destinations.memory import MemoryRows, Stream
from tests.destinations.orders import ORDERS, copy, items
from tests.destinations.random_source import RandomSource
from tests.rigs.lake import Lake
from tests.rigs.waiting import until

from levada.apply.moves import MoveEvents
from levada.copy.process_tasks import ProcessTasks
from levada.copy.results_in_order import OrderedResults
from levada.copy.spark_tasks import SparkTasks
from levada.copy.tasks import BatchRunner
from levada.destinations.data_files import parallel_upsert
from levada.destinations.data_files.batch_ranges import batch_ranges, plan_tasks
from levada.destinations.data_files.parallel_upsert import FoldTask
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import TableSettings
from levada.errors import NeedsOperator
from levada.schema import Kind, TableTarget
from levada.segments.files import SegmentFile
from levada.segments.limits import BatchLimits
from levada.testing import Source, column, table
from levada.values import Lsn, OnUnrepresentable, SnapshotId, TableId, TableMode


class Workers(ProcessTasks):
    """Worker processes, with two places for the tasks of a batch."""

    on_this_machine = True
    is_helped = True

    def sizes(self, limits: BatchLimits) -> BatchLimits:
        """Return the sizes that the test has set."""
        return limits

    def places(self, changes: int, tasks: float) -> int:
        """Return 2 for a batch of two tasks."""
        return 2 if tasks >= 2 else 0


@dataclass(frozen=True)
class TwoPlaces(SparkTasks):
    """Spark's tasks, two at the same time."""

    def free_places(self) -> int:
        """Return 2."""
        return 2


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Worker processes for the tests of this file."""
    runner = Workers(["levada.destinations.data_files.parallel_upsert", "levada.destinations.iceberg.storage"])
    yield runner
    runner.close()


@pytest.fixture(autouse=True)
def left_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the ranges to the workers as long as they run."""
    monkeypatch.setattr(OrderedResults, "next_here", lambda self: self.queue.take_now() if self.ended else None)


def beside(lake: Lake, name: str, runner: BatchRunner | None) -> tuple[Lake, IcebergDestination]:
    """Return a lake of its own next to this one, and its destination, which runs tasks in ``runner``."""
    manifest = {**lake.manifest, "catalog": {**lake.manifest["catalog"]}}
    manifest["catalog"]["warehouse"] += f"-{name}"
    context = replace(lake.context, pipeline=f"{lake.context.pipeline}{name}", work_dir=lake.context.work_dir / name)
    other = Lake(manifest, context)
    destination = other.destination()
    destination.batch_tasks = runner
    return other, destination


def file(rows: int, size: int, number: int, offset: int | None = None) -> SegmentFile:
    """A file of a segment."""
    return SegmentFile(f"{number}", offset, TableId(1), SnapshotId(0), rows, size, Lsn(1), Lsn(2), ())


@given(st.lists(st.tuples(st.integers(1, 20), st.booleans()), max_size=30))
def test_ranges_have_each_file_once_and_in_order(sizes: list[tuple[int, bool]]) -> None:
    """Every part of every file is in one range, in WAL order, and a range has more than a task's rows only if alone."""
    files = [file(rows, 1, n, 0 if piece else None) for n, (rows, piece) in enumerate(sizes)]
    ranges = list(batch_ranges(files, BatchLimits(task_rows=3)))
    shares = [(f.path, *r.share) for r in ranges for f in r.files]
    wanted = []
    for f in files:
        parts = -(-f.rows // 3) if f.offset is None and f.rows > 3 else 1
        wanted += [(f.path, part, parts) for part in range(parts)]
    assert shares == wanted
    assert all(len(r.files) == 1 or sum(f.rows for f in r.files) <= 3 for r in ranges)


def test_the_parts_of_a_batch_have_its_changes(tmp_path: Path) -> None:
    """Read one after another, the parts have the rows of the whole batch, for row groups as for pieces."""
    for bytes_, offset in ((1, False), (8 << 20, True)):
        stream = Source(tmp_path / str(bytes_), row_group_bytes=bytes_).add(ORDERS)
        for i in range(20):
            stream.insert(id=i, item=f"item {i}", note=None)
            if i == 12:
                stream.batch()
        events = stream.batch(since=1000).changes(ORDERS.id)
        assert [f.offset is not None for f in events.files] == [offset, offset]
        for count in (1, 2, 7, 30):
            parts = [events.part([f], (k, count)) for f in events.files for k in range(count)]
            assert [i for p in parts for b in p.scan(["id"]) for i in b.column("id").to_pylist()] == list(range(20))


class AlwaysTwo(Workers):
    """Worker processes with two places for every batch."""

    def places(self, changes: int, tasks: float) -> int:
        """Return 2."""
        return 2


def test_changes_without_a_file_are_not_left_to_tasks(tmp_path: Path) -> None:
    """The rows of a partition that comes or goes are in no staged file, so no task could read them."""
    runner = AlwaysTwo([])
    try:
        stream = Source(tmp_path).add(ORDERS)
        empty = MoveEvents(stream.batch().changes(ORDERS.id))
        keys = pa.table({"id": pa.array(range(100), pa.int64())})
        empty.remove((Lsn(1), 0), keys)
        assert empty.rows == 100
        assert plan_tasks(empty, runner) is None
        stream.insert(id=1, item="item", note=None)
        staged = stream.batch().changes(ORDERS.id)
        assert plan_tasks(staged, runner) is not None
        assert plan_tasks(MoveEvents(staged), runner) is None
    finally:
        runner.close()


@pytest.mark.nightly
@pytest.mark.parametrize("helps", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.parametrize(
    ("seed", "version", "partitioned"),
    [
        pytest.param(1, 2, False, marks=pytest.mark.nightly),
        pytest.param(2, 3, False, marks=pytest.mark.nightly),
        pytest.param(3, 2, True, marks=pytest.mark.nightly),
        (4, 3, True),
    ],
)
def test_random_batches_by_tasks_and_without(
    hadoop: Lake,
    workers: Workers,
    seed: int,
    version: int,
    partitioned: bool,
    helps: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Moved and exchanged keys, unknown values, truncates and new columns come to the same rows on both paths.

    So they do if this process folds ranges between those of the workers.
    """
    here = []
    if helps:
        ran = OrderedResults.run_here
        monkeypatch.setattr(OrderedResults, "next_here", lambda self: self.queue.take_now())
        monkeypatch.setattr(OrderedResults, "run_here", lambda self, *task: here.append(task) or ran(self, *task))
    hadoop.manifest["formatVersion"] = version
    settings = TableSettings.model_validate({"partitionBy": ["bucket(3, id)"]}) if partitioned else None
    source = RandomSource(seed)
    target = TableTarget.of(source.schema, settings=settings)
    source.stream.settings = settings
    source.stream.limit(task_rows=3)
    places = [beside(hadoop, name, runner) for name, runner in (("tasks", workers), ("engine", None))]
    for lake, destination in places:
        destination.write_table_rows(target, source.copied(), lake.mark(1000))
    used = 0
    for _ in range(3):
        for _ in range(4):
            source.change()
        since = source.stream.taken
        for lake, destination in places:
            source.stream.taken = since
            batch = source.stream.batch()
            destination.write_events(batch, lake.mark(batch.until))
            used += batch.changes(source.schema.id).tasks
            seen = {
                row["id"]: tuple(f"{n}={row[n]!r}" for n in sorted(c.name for c in source.schema.columns))
                for row in lake.by_pyiceberg().to_pylist()
            }
            assert seen == source.expected()
            assert lake.by_spark().num_rows == len(seen)
    assert len(here) > 5 if helps else used > 5


@pytest.mark.nightly
def test_rows_without_their_values_come_from_earlier_ranges(hadoop: Lake, workers: Workers) -> None:
    """A value that is unknown in a range is that of an earlier range, through a moved key, or of the table."""
    lake, destination = beside(hadoop, "tasks", workers)
    stream = copy(lake, destination)
    stream.limit(task_rows=3)
    stream.insert(id=10, item="new", note="ten")
    for turn in range(4):
        for i in (1, 2, 10):
            stream.update(id=i, item=f"turn {turn}", note=None, unchanged=[3])
    stream.update(old={"id": 10}, id=11, item="eleven", note=None, unchanged=[3])
    for i in range(20, 30):
        stream.insert(id=i, item="other", note="n")
    stream.update(old={"id": 11}, id=12, item="twelve", note=None, unchanged=[3])
    stream.delete(id=20)
    batch = stream.batch()
    snapshots = len(lake.iceberg().metadata.snapshots)
    destination.write_events(batch, lake.mark(batch.until))
    assert batch.changes(ORDERS.id).tasks > 3
    assert len(lake.iceberg().metadata.snapshots) == snapshots + 1
    rows = {r["id"]: (r["item"], r["note"]) for r in lake.rows()}
    assert rows.keys() == {1, 2, 3, 12, *range(21, 30)}
    assert (rows[1], rows[12]) == (("turn 3", "x" * 100), ("twelve", "ten"))


@pytest.mark.nightly
def test_too_many_incomplete_rows_are_left_to_the_engine(hadoop: Lake, workers: Workers) -> None:
    """A range whose incomplete rows are too large to return is applied in the engine's process, with its files."""
    lake, destination = beside(hadoop, "tasks", workers)
    stream = copy(lake, destination)
    stream.limit(task_rows=3, returned_bytes=0)
    for i in range(10):
        stream.update(id=1 + i % 3, item=f"turn {i}", note=None, unchanged=[3])
    batch = stream.batch()
    destination.write_events(batch, lake.mark(batch.until))
    assert batch.changes(ORDERS.id).tasks == 0
    assert items(lake) == {1: "turn 9", 2: "turn 7", 3: "turn 8"}
    assert {Path(p).name for p in lake.iceberg().inspect.files()["file_path"].to_pylist()} >= {
        p.name for p in Path(lake.manifest["catalog"]["warehouse"]).rglob("data/*.parquet")
    }


@pytest.mark.nightly
def test_a_changelog_by_tasks(hadoop: Lake, workers: Workers) -> None:
    """A changelog has each change once, with its truncates, on both paths."""
    found = []
    for name, runner in (("tasks", workers), ("engine", None)):
        lake, destination = beside(hadoop, name, runner)
        stream = copy(lake, destination, mode=TableMode.CHANGELOG)
        stream.limit(task_rows=3)
        for i in range(9):
            stream.insert(id=i + 10, item="a", note=None)
        stream.truncate()
        stream.update(old={"id": 10}, id=11, item="b", note="n")
        stream.delete(id=11)
        batch = stream.batch()
        destination.write_events(batch, lake.mark(batch.until))
        assert bool(batch.changes(ORDERS.id).tasks) == (runner is not None)
        found.append([{k: v for k, v in row.items() if k != "_levada_commit_ts"} for row in lake.rows()])
    assert found[0] == found[1]
    assert len(found[0]) == 3 + 9 + 1 + 2 + 1


@pytest.mark.nightly
def test_values_that_became_null_are_counted_once(hadoop: Lake, workers: Workers) -> None:
    """The count of a batch is that of its tasks, and an error of a value is the engine's own."""
    days = table(column(1, "id", Kind.INT8), column(2, "day", Kind.DATE))
    lake, destination = beside(hadoop, "tasks", workers)
    destination.write_table_rows(TableTarget.of(days), MemoryRows(days, []), lake.mark(1000))
    stream = Stream(days)
    stream.limit(task_rows=3)
    for i in range(10):
        stream.insert_unrepresentable(2, "infinity", id=i)
    refused = stream.batch()
    with pytest.raises(NeedsOperator) as caught:
        destination.write_events(refused, lake.mark(refused.until))
    assert caught.value.code == "unrepresentable_value"
    batch = stream.batch(since=1000, policy=OnUnrepresentable.NULL)
    destination.write_events(batch, lake.mark(batch.until))
    assert (batch.changes(days.id).nulled, len(lake.rows())) == (10, 10)
    assert batch.changes(days.id).tasks > 1


@pytest.mark.nightly
def test_tasks_that_are_killed_leave_the_batch_whole(
    hadoop: Lake, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If tasks are killed again and again, the engine applies their ranges, and the table is the same."""

    def killed(task: FoldTask, events: Any) -> Any:
        task(events)
        os.kill(os.getpid(), signal.SIGKILL)

    partial = parallel_upsert.partial
    lake, destination = beside(hadoop, "tasks", workers)
    stream = copy(lake, destination)
    stream.limit(task_rows=3)
    for i in range(20):
        stream.insert(id=i + 10, item=f"item {i}", note=None)
        stream.update(id=1 + i % 3, item=f"turn {i}", note=None, unchanged=[3])
    batch = stream.batch()
    monkeypatch.setattr(
        parallel_upsert,
        "partial",
        lambda task, part: partial(killed if part.share[0] == 5 else FoldTask.__call__, task, part),
    )
    destination.write_events(batch, lake.mark(batch.until))
    assert items(lake) == {1: "turn 18", 2: "turn 19", 3: "turn 17", **{i + 10: f"item {i}" for i in range(20)}}
    monkeypatch.undo()
    assert items(Lake(lake.manifest, lake.context)) == items(lake)
    stream.update(id=10, item="again", note=None, unchanged=[3])
    batch = stream.batch()
    destination.write_events(batch, lake.mark(batch.until))
    assert items(lake)[10] == "again"


@pytest.mark.nightly
def test_tasks_in_spark(hadoop: Lake) -> None:
    """The tasks of a destination run in Spark, and the next process finds what they wrote."""
    destination = hadoop.destination()
    destination.batch_tasks = TwoPlaces(hadoop.spark)
    stream = copy(hadoop, destination)
    stream.limit(task_rows=3)
    for i in range(20):
        stream.insert(id=i + 10, item=f"item {i}", note=None)
        stream.update(id=1 + i % 3, item=f"turn {i}", note=None, unchanged=[3])
    batch = stream.batch()
    destination.write_events(batch, hadoop.mark(batch.until))
    assert batch.changes(ORDERS.id).tasks > 3
    stream.delete(id=29)
    stream.update(old={"id": 1}, id=100, item="moved", note=None, unchanged=[3])
    batch = stream.batch()
    hadoop.destination().write_events(batch, hadoop.mark(batch.until))
    wanted = {2: "turn 19", 3: "turn 17", 100: "moved", **{i + 10: f"item {i}" for i in range(19)}}
    assert items(hadoop) == wanted


def test_places(hadoop: Lake, tmp_path: Path) -> None:
    """A batch has the places that no other task has, and none if the rest is too few. The engine then writes it."""
    tasks = SparkTasks(hadoop.spark)
    assert (tasks.capacity(), tasks.free_places()) == (0, 0)
    tasks = SparkTasks(hadoop.spark, fewest_cores=1)
    assert (tasks.capacity(), tasks.free_places()) == (2, 2)
    end = tmp_path / "end"

    def waits(_: int) -> None:
        until(end.exists)

    context = hadoop.spark.sparkContext
    others = threading.Thread(target=lambda: context.parallelize([0, 1], 2).foreach(waits))
    others.start()
    until(lambda: not tasks.free_places())
    destination = hadoop.destination()
    destination.batch_tasks = tasks
    stream = copy(hadoop, destination)
    stream.limit(task_rows=3)
    for i in range(20):
        stream.insert(id=i + 10, item=f"item {i}", note=None)
    batch = stream.batch()
    destination.write_events(batch, hadoop.mark(batch.until))
    end.touch()
    others.join()
    assert batch.changes(ORDERS.id).tasks == 0
    assert len(items(hadoop)) == 23
    stream.delete(id=10)
    stream.insert(id=10, item="again", note=None)
    for i in range(6):
        stream.update(id=11, item=f"{i}", note=None)
    batch = stream.batch()
    destination.write_events(batch, hadoop.mark(batch.until))
    assert batch.changes(ORDERS.id).tasks > 1
    assert (items(hadoop)[10], items(hadoop)[11]) == ("again", "5")
