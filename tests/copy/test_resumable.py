"""Rows of a copy that is resumed: finished ranges are kept, changed rows are read again by their keys."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from tests.rigs.database import Database
from tests.rigs.process_tasks import processes

from levada.copy.guard import GUARDS, hold_table
from levada.copy.kept import KeptCopy
from levada.copy.plan import RangeLimits
from levada.copy.process_tasks import ProcessTasks
from levada.copy.resumable import Keeping, ResumableRows
from levada.copy.rows import CopiedRows, FinishedRange
from levada.errors import LevadaError, Transient, Yielded
from levada.postgres.catalog import published_tables, read_table_description
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.slots import export_snapshot
from levada.values import Lsn, OnUnrepresentable

__all__ = ["processes"]

ROWS = 3000
SMALL = RangeLimits(64 << 10, 64 << 10, in_process_bytes=0)
_slots = itertools.count(1)


@dataclass(frozen=True)
class Files:
    """Keeps results as JSON files in a folder."""

    place: str

    def save(self, name: str, finished: FinishedRange[list[Any]]) -> None:
        (Path(self.place) / name).write_text(json.dumps([finished.value, finished.rows, finished.unrepresentable]))

    def load(self, name: str) -> FinishedRange[list[Any]]:
        return FinishedRange(*json.loads((Path(self.place) / name).read_text()))

    def remove(self, names: Any) -> None:
        """Keep them, so that a test can look at them."""


@dataclass(frozen=True)
class Changed:
    """Keys that a test knows to have changed, and the number of those that exist."""

    keys: pa.Table
    left: int

    def exist(self, found: pa.Table) -> bool:
        return bool(found.num_rows == self.left)


def as_rows(reader: pa.RecordBatchReader) -> list[Any]:
    return [[*row.values()] for row in reader.read_all().to_pylist()]


class Interrupted:
    """Reads rows, and fails at the ``at``-th range of its process."""

    def __init__(self, at: int, folder: Path) -> None:
        self.at, self.folder = at, folder

    def __call__(self, reader: pa.RecordBatchReader) -> list[Any]:
        count = len(list(self.folder.glob("read-*")))
        if count == self.at:
            raise Transient("snapshot_gone", "the snapshot is gone")
        (self.folder / f"read-{count}").touch()
        return as_rows(reader)


@dataclass(frozen=True)
class Blocking:
    """Reads rows, and lets the copy block a statement at the ``at``-th range, until the copy gives way."""

    at: int
    folder: Path
    uri: str

    def __call__(self, reader: pa.RecordBatchReader) -> list[Any]:
        count = len(list(self.folder.glob("read-*")))
        if count == self.at:
            with psycopg.connect(self.uri, autocommit=True) as connection:
                connection.execute("BEGIN; LOCK TABLE items IN ACCESS EXCLUSIVE MODE; COMMIT")
        (self.folder / f"read-{count}").touch()
        return as_rows(reader)


@contextmanager
def rows_of(
    db: Database,
    runner: ProcessTasks,
    saved: list[KeptCopy | None],
    changes: Callable[..., Any],
    limits: RangeLimits = SMALL,
) -> Iterator[ResumableRows]:
    """Begin an attempt with the record that was saved last."""
    with db.connect() as c:
        published = next(t for t in published_tables(c, "pub"))
        description = read_table_description(c, published.id)
    schema = description.schema()
    keeping = Keeping("basis", Lsn(1), saved[-1] if saved else None, saved.append, changes)
    with (
        export_snapshot(db.connection, f"levada_test_resumed_{next(_slots)}") as snapshot,
        IdleReaders(db.connection, GUARDS) as guards,
        hold_table(guards, published, schema, description) as guard,
    ):
        yield ResumableRows(
            runner,
            db.connection,
            snapshot,
            published,
            schema,
            keeping=keeping,
            connections=1,
            policy=OnUnrepresentable.ERROR,
            cancelled=threading.Event(),
            guard=guard,
            limits=limits,
        )


def never(*_: object) -> Any:
    raise AssertionError("no changes are needed")


@pytest.fixture
def items(db: Database) -> Database:
    db.execute(
        "CREATE TABLE items (id bigint PRIMARY KEY, v text)",
        f"INSERT INTO items SELECT i, repeat('v', 100) FROM generate_series(1, {ROWS}) i",
        "CREATE PUBLICATION pub FOR TABLE items",
    )
    return db


def begin(db: Database, runner: ProcessTasks, folder: Path, finished: int) -> list[KeptCopy | None]:
    """Make an attempt that ends after ``finished`` ranges, and return what it saved."""
    saved: list[KeptCopy | None] = []
    with rows_of(db, runner, saved, never) as rows, pytest.raises(Transient, match="gone"):
        rows.map_ranges(Interrupted(finished, folder), Files(str(folder)))
    assert saved[-1] is not None
    assert len(saved[-1].ranges) == finished
    return saved


def keys(*ids: int) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int64())})


def test_finished_ranges_are_not_read_again(items: Database, processes: ProcessTasks, tmp_path: Path) -> None:
    """The second attempt reads the other ranges, and the changed rows as they are in its snapshot."""
    saved = begin(items, processes, tmp_path, 3)
    items.execute("UPDATE items SET v = 'new' WHERE id = 7", "DELETE FROM items WHERE id = 8")
    asked: list[Any] = []

    def changes(first: Lsn, until: Lsn, copied: int, stopped: Callable[[], LevadaError | None]) -> Changed:
        asked.append((first, until, copied, stopped()))
        return Changed(keys(7, 8), 1)

    with rows_of(items, processes, saved, changes) as rows:
        copied: CopiedRows[list[Any]] = rows.map_ranges(as_rows, Files(str(tmp_path)))
        assert rows.complete
        done = rows.progress()
        assert done.rows == sum(len(part) for parts in copied.snapshots for part in parts)
        assert (done.ranges_finished, done.resumable, done.note) == (done.ranges, True, "")
        assert done.percent == 100
    first, now = copied.snapshots
    assert len(first) == 3
    assert len(first) + len(now) == len(copied.names)
    assert all((tmp_path / name).exists() for name in copied.names)
    assert copied.changed_keys == keys(7, 8)
    assert [row for part in copied.changed for row in part] == [[7, "new"]]
    known = {tuple(row) for parts in copied.snapshots for part in parts for row in part if row[0] not in (7, 8)}
    assert known == {(i, "v" * 100) for i in range(1, ROWS + 1) if i not in (7, 8)}
    ((since, until, _, stopped),) = asked
    assert since == saved[0].first_lsn if saved[0] else False
    assert until > since
    assert stopped is None


def test_a_copy_that_gives_way_loses_the_range_that_it_was_reading(
    items: Database, processes: ProcessTasks, tmp_path: Path
) -> None:
    """The statement gets its lock, and the next attempt reads no finished range again."""
    saved: list[KeptCopy | None] = []
    with rows_of(items, processes, saved, never) as rows, pytest.raises(Yielded):
        rows.map_ranges(Blocking(3, tmp_path, items.uri), Files(str(tmp_path)))
    kept = saved[-1]
    assert kept is not None
    with rows_of(items, processes, saved, lambda *_: Changed(keys(), 0)) as rows:
        copied: CopiedRows[list[Any]] = rows.map_ranges(as_rows, Files(str(tmp_path)))
    assert len(copied.snapshots[0]) == len(kept.ranges) >= 3
    assert sorted(row[0] for parts in copied.snapshots for part in parts for row in part) == [*range(1, ROWS + 1)]


def test_rows_that_the_stream_does_not_have_end_the_copy(
    items: Database, processes: ProcessTasks, tmp_path: Path
) -> None:
    """If the changed rows are not those of the stream, the finished ranges are given up."""
    saved = begin(items, processes, tmp_path, 2)
    with rows_of(items, processes, saved, lambda *_: Changed(keys(7), 0)) as rows:
        with pytest.raises(Transient, match="begins again") as caught:
            rows.map_ranges(as_rows, Files(str(tmp_path)))
        assert caught.value.code == "copy_outdated"
        assert rows.kept_place is None
    assert saved[-1] is None


def test_another_place_has_no_finished_ranges(items: Database, processes: ProcessTasks, tmp_path: Path) -> None:
    """If the destination has another folder by now, every range is read in one snapshot."""
    saved = begin(items, processes, tmp_path, 2)
    other = tmp_path / "other"
    other.mkdir()
    with rows_of(items, processes, saved, never) as rows:
        copied: CopiedRows[list[Any]] = rows.map_ranges(as_rows, Files(str(other)))
    assert copied.changed_keys is None
    assert sum(len(part) for part in copied.snapshots[0]) == ROWS


def test_a_small_table_is_not_kept(items: Database, processes: ProcessTasks, tmp_path: Path) -> None:
    """A table whose ranges are all read at the same time has no record and no descriptions."""
    saved: list[KeptCopy | None] = []
    with rows_of(items, processes, saved, never, RangeLimits(in_process_bytes=0)) as rows:
        copied: CopiedRows[list[Any]] = rows.map_ranges(as_rows, Files(str(tmp_path)))
        assert not rows.progress().resumable
        assert (
            rows.progress().note
            == "if it is interrupted, the copy begins again, because all of its ranges are read at the same time"
        )
    assert sum(len(part) for part in copied.snapshots[0]) == ROWS
    assert not saved
    assert not list(tmp_path.iterdir())
