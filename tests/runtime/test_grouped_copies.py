"""Small tables that wait for their first copy share a snapshot. None of them stops its neighbours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table
from tests.rigs.waiting import LIMIT_S

from levada.runtime.config import RetryLimits
from levada.runtime.limits import Limits
from levada.status import Progress

SMALL = [f"t_{n:02}" for n in range(12)]
ROWS = 3


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of 12 small tables and those that a test adds, not started. It makes one copy at a time."""
    for name in SMALL:
        db.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, note text DEFAULT 'n')",
            f"INSERT INTO {name} SELECT i FROM generate_series(1, {ROWS}) i",
        )
    made = Rig(db, tmp_path)
    made.config = replace(
        made.config,
        selects=lambda name: name.schema == "public",
        copy_tables=1,
        limits=Limits(shared_snapshot_s=LIMIT_S),
        retries=RetryLimits(max_attempts=100, delay_s=0.2, max_delay_s=0.5),
    )
    yield made
    made.stop()


def ready(progress: Progress) -> set[str]:
    """Return the names of the tables that are Ready."""
    return {its.table.name for its in progress.tables if its.phase == "Ready"}


def snapshots(rig: Rig, db: Database) -> dict[str, int]:
    """Return the LSN of the snapshot from which each table was copied last."""
    names = dict(db.query("SELECT oid, relname FROM pg_class WHERE relnamespace = 'public'::regnamespace"))
    return {names[int(oid)]: int(mark.lsn) for oid, mark in rig.destination.marks.items() if int(oid) in names}


def test_small_tables_share_a_snapshot_and_a_large_one_does_not(rig: Rig, db: Database) -> None:
    """So the source exports a few snapshots for many tables, and none of them lasts as long as a large copy."""
    db.execute(
        "CREATE TABLE big (id int PRIMARY KEY, note text)",
        "INSERT INTO big SELECT i, repeat('x', 200) FROM generate_series(1, 10000) i",
    )
    moving = iter(range(1000, 2000))
    # Each snapshot after this statement has another LSN.
    rig.destination.before_copy = lambda _: db.execute(f"INSERT INTO big VALUES ({next(moving)} + 100000)")
    rig.start()
    rig.wait(lambda p: ready(p) == {*SMALL, "big"})
    of = snapshots(rig, db)
    assert len({of[name] for name in SMALL}) < len(SMALL) / 2
    assert sorted(copy[0] for copy in rig.destination.copies) == sorted([*SMALL, "big"])
    assert {copy[3] for copy in rig.destination.copies if copy[0] != "big"} == {ROWS}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE {}",
        "TRUNCATE {}; INSERT INTO {} VALUES (7)",
        "ALTER TABLE {} ADD COLUMN more int DEFAULT 5",
        "ALTER TABLE {} RENAME TO renamed",
        "VACUUM FULL {}",
    ],
)
def test_a_table_that_changes_after_the_snapshot_is_copied_again(
    rig: Rig, db: Database, statement: LiteralString
) -> None:
    """Its neighbours are copied once. One that is dropped waits with its reason."""
    names = iter([statement])

    def change(copied: str) -> None:
        for text in names:
            last = "t_11" if copied != "t_11" else "t_10"
            for part in text.split(";"):
                db.execute(part.replace("{}", last))

    rig.destination.before_copy = change
    rig.start()
    dropped = statement.startswith("DROP")
    rig.wait(lambda p: len(ready(p)) >= len(SMALL) - dropped)
    if not dropped:
        rig.wait_caught_up()
    neighbours = [copy for copy in rig.destination.copies if copy[0] in SMALL[:10]]
    assert sorted(copy[0] for copy in neighbours) == SMALL[:10]
    copies = [copy for copy in rig.destination.copies if copy[0] not in SMALL[:11]]
    if statement.startswith("TRUNCATE"):
        assert copies[-1][3] + rig.destination.applied_rows.get("t_11", 0) == 1
    elif not dropped:
        assert copies[-1][3] == ROWS


def test_a_table_that_cannot_be_copied_does_not_stop_its_neighbours(rig: Rig, db: Database) -> None:
    """It has a column that Levada reserves."""
    db.execute("CREATE TABLE s_reserved (id int PRIMARY KEY, _levada_note text)")
    rig.start()
    progress = rig.wait(lambda p: ready(p) == set(SMALL) and table(p, "s_reserved").error is not None)
    found = table(progress, "s_reserved").error
    assert found is not None
    assert found.code == "reserved_column_name"


def test_a_locked_table_waits_by_itself(rig: Rig, db: Database) -> None:
    """Its neighbours are Ready before the lock ends."""
    holders: list[psycopg.Connection[Any]] = []

    def lock(copied: str) -> None:
        if not holders:
            holder = psycopg.connect(db.uri)
            holder.execute("LOCK TABLE t_11 IN ACCESS EXCLUSIVE MODE")
            holders.append(holder)

    rig.destination.before_copy = lock
    rig.start()
    try:
        rig.wait(lambda p: ready(p) == set(SMALL[:11]))
    finally:
        for holder in holders:
            holder.close()
    rig.wait(lambda p: ready(p) == set(SMALL))
    assert all(rig.destination.copies_of(name) == 1 for name in SMALL)


def test_tables_without_time_wait_for_a_smaller_group(rig: Rig, db: Database) -> None:
    """A snapshot that has reached its limit takes no further table, and the next one has as many as there was time for.

    Each table is copied once.
    """
    rig.config = replace(rig.config, limits=Limits(shared_snapshot_s=0.0))
    # Each snapshot after this statement has another LSN.
    rig.destination.before_copy = lambda _: db.execute("CREATE TABLE other.moving ()", "DROP TABLE other.moving")
    db.execute("CREATE SCHEMA other")
    rig.start()
    rig.wait(lambda p: ready(p) == set(SMALL))
    of = snapshots(rig, db)
    assert len(set(of.values())) == len(SMALL)
    assert all(rig.destination.copies_of(name) == 1 for name in SMALL)
