"""A copy of a table that is changed meanwhile shows one state of it, or is made again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig
from tests.rigs.waiting import until

import levada.runtime.copies.table_copy
from levada.copy.guard import LockLimits
from levada.runtime.config import RetryLimits
from levada.runtime.limits import Limits


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of a table of 100 rows, not started, that retries soon."""
    db.execute(
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE orders (id int PRIMARY KEY, note text DEFAULT 'n', feels mood DEFAULT 'bad')"
        " PARTITION BY RANGE (id)",
        "CREATE TABLE orders_1 PARTITION OF orders FOR VALUES FROM (1) TO (101)",
        "CREATE TABLE loose (id int PRIMARY KEY, note text, feels mood)",
        "INSERT INTO orders SELECT i FROM generate_series(1, 100) i",
        "INSERT INTO loose SELECT i FROM generate_series(101, 150) i",
    )
    made = Rig(db, tmp_path)
    made.change(retries=RetryLimits(max_attempts=100, delay_s=0.1, max_delay_s=0.5))
    yield made
    made.stop()


def once(work: Callable[[], None]) -> Callable[[str], None]:
    """Return a hook that does the work the first time alone."""
    left = [work]

    def hook(name: str) -> None:
        if left:
            left.pop()()

    return hook


def rows_copied(rig: Rig) -> list[int]:
    """Return how many rows each copy had that ended well."""
    return [copy[3] for copy in rig.destination.copies]


@pytest.mark.parametrize(
    "statement",
    [
        "TRUNCATE orders",
        "VACUUM FULL orders",
        "ALTER TABLE orders ALTER note TYPE varchar(10) USING 'x'",
    ],
)
def test_statements_that_rewrite_wait_for_the_copy(rig: Rig, db: Database, statement: LiteralString) -> None:
    """While a table is copied, a statement that would make it look otherwise under the snapshot waits for its lock."""
    refused: list[bool] = []

    def change() -> None:
        try:
            with db.connect() as c:
                c.execute("SET lock_timeout = '200ms'")
                c.execute(statement)
        except psycopg.errors.LockNotAvailable:
            refused.append(True)

    rig.destination.before_copy = once(change)
    rig.start()
    rig.wait_caught_up()
    assert refused
    assert rows_copied(rig) == [100]


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("ALTER TABLE orders ATTACH PARTITION loose FOR VALUES FROM (101) TO (201)", 150),
        ("ALTER TYPE mood RENAME VALUE 'bad' TO 'worse'", 100),
    ],
)
def test_changes_without_a_conflicting_lock_are_found(
    rig: Rig, db: Database, statement: LiteralString, rows: int
) -> None:
    """A partition attached, or a label renamed, in the middle of a copy: the copy is given up and made again."""
    rig.destination.before_copy = once(lambda: db.execute(statement))
    rig.start()
    rig.wait_caught_up()
    assert rows_copied(rig) == [rows]


@pytest.mark.parametrize(
    "statements",
    [
        ["CREATE TABLE orders_2 PARTITION OF orders FOR VALUES FROM (101) TO (201)"],
        [
            "CREATE TABLE orders_2 (LIKE orders INCLUDING ALL)",
            "ALTER TABLE orders ATTACH PARTITION orders_2 FOR VALUES FROM (101) TO (201)",
        ],
    ],
)
def test_new_partitions_do_not_end_a_copy(rig: Rig, db: Database, statements: list[LiteralString]) -> None:
    """A copy that lasts longer than it is until the next partition must end all the same. Its rows are streamed."""
    begun: list[str] = []

    def grow() -> None:
        db.execute(*statements)

    work = once(grow)

    def hook(name: str) -> None:
        begun.append(name)
        work(name)

    rig.destination.before_copy = hook
    rig.start()
    rig.wait_caught_up()
    assert begun == ["orders"]
    db.execute("INSERT INTO orders VALUES (150)")
    found = rig.wait_caught_up()
    assert [t.error for t in found.tables] == [None]
    assert (rows_copied(rig), rig.destination.applied_rows["orders"]) == ([100], 1)


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        ("TRUNCATE orders", 0),
        ("ALTER TABLE orders DROP note", 100),
        ("ALTER TABLE orders_1 RENAME TO orders_first", 100),
        ("ALTER TABLE orders DETACH PARTITION orders_1", 0),
    ],
)
def test_changes_between_snapshot_and_locks_are_found(
    rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch, statement: LiteralString, rows: int
) -> None:
    """A statement that gets in between is no error of the table: the copy is made again, of the table as it is now."""
    hold, work = levada.runtime.copies.table_copy.hold_table, [lambda: db.execute(statement)]

    @contextmanager
    def late(*args: Any) -> Iterator[Any]:
        if work:
            work.pop()()
        with hold(*args) as guard:
            yield guard

    monkeypatch.setattr(levada.runtime.copies.table_copy, "hold_table", late)
    rig.start()
    rig.wait_caught_up()
    assert rows_copied(rig) == [rows]


def test_a_copy_gives_way(rig: Rig, db: Database) -> None:
    """A statement that waits too long for its lock gets it: the copy ends, and is made again afterwards."""
    rig.change(limits=Limits(locks=LockLimits(blocked_s=0.2)))
    changed = threading.Event()

    def alter() -> None:
        db.execute("ALTER TABLE orders ADD extra int DEFAULT 5")
        changed.set()

    def begin() -> None:
        threading.Thread(target=alter).start()
        waiting = "SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
        until(lambda: changed.is_set() or db.query(waiting))

    rig.destination.before_copy = once(begin)
    rig.start()
    rig.wait_caught_up()
    assert changed.is_set()
    assert rows_copied(rig) == [100]
    assert "extra" in rig.destination.copies[0][2]


def test_a_lock_that_is_not_had_is_retried(rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that another transaction locked after the snapshot is copied once that transaction has ended."""
    rig.change(limits=Limits(locks=LockLimits(wait_s=0.1)))
    hold, locked = levada.runtime.copies.table_copy.hold_table, db.connect()
    work = [lambda: locked.execute("BEGIN; LOCK TABLE orders_1 IN ACCESS EXCLUSIVE MODE")]

    @contextmanager
    def late(*args: Any) -> Iterator[Any]:
        if work:
            work.pop()()
        with hold(*args) as guard:
            yield guard

    monkeypatch.setattr(levada.runtime.copies.table_copy, "hold_table", late)
    rig.start()
    # The next attempt names the session that holds the lock.
    codes = {"lock_timeout", "table_locked"}
    rig.wait(lambda p: any(t.error is not None and t.error.code in codes for t in p.tables))
    locked.close()
    rig.wait_caught_up()
    assert rows_copied(rig) == [100]
