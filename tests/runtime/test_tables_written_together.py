"""Small tables whose first copies a destination writes as a group. None of them stops its neighbours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table
from tests.rigs.recording import Together
from tests.rigs.waiting import LIMIT_S

from levada.errors import StaleEpoch, Transient
from levada.runtime.config import RetryLimits
from levada.runtime.limits import Limits
from levada.status import Progress

SMALL = [f"t_{n:02}" for n in range(12)]
ROWS = 3


@pytest.fixture
def together() -> Together:
    """The destination of the pipeline."""
    return Together()


@pytest.fixture
def rig(db: Database, tmp_path: Path, together: Together) -> Iterator[Rig]:
    """A pipeline of 12 small tables, not started. It makes one copy at a time."""
    for name in SMALL:
        db.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, note text DEFAULT 'n')",
            f"INSERT INTO {name} SELECT i FROM generate_series(1, {ROWS}) i",
        )
    made = Rig(db, tmp_path)
    made.destination = together
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


def once(do: Callable[[], object]) -> Callable[[], None]:
    """Return a function that calls ``do`` when it is called first."""
    calls = iter([do])

    def call() -> None:
        for first in calls:
            first()

    return call


def test_a_group_is_written_at_once(rig: Rig, together: Together) -> None:
    """Each table has its rows, and one commit at the destination has all of them."""
    rig.start()
    rig.wait(lambda p: ready(p) == set(SMALL))
    assert [sorted(group) for group in together.groups] == [SMALL]
    assert sorted(copy[0] for copy in together.copies) == SMALL
    assert {copy[3] for copy in together.copies} == {ROWS}


@pytest.mark.sampled
@pytest.mark.parametrize(
    "statement",
    [
        "DROP TABLE t_05",
        "TRUNCATE t_05",
        "ALTER TABLE t_05 ADD COLUMN more int DEFAULT 5",
        "ALTER TABLE t_05 RENAME TO renamed",
        "VACUUM FULL t_05",
    ],
)
def test_a_table_that_changes_after_the_snapshot_is_copied_by_itself(
    rig: Rig, together: Together, db: Database, statement: LiteralString
) -> None:
    """Its neighbours are written together, once."""
    together.before_group = once(lambda: db.execute(statement))
    rig.start()
    dropped, others = statement.startswith("DROP"), [name for name in SMALL if name != "t_05"]
    rig.wait(lambda p: len(ready(p)) >= len(SMALL) - dropped)
    assert [sorted(group) for group in together.groups] == [others]
    assert sorted(copy[0] for copy in together.copies if copy[0] in others) == others
    copies = [copy for copy in together.copies if copy[0] not in others]
    if not dropped:
        assert copies[-1][3] == (0 if statement.startswith("TRUNCATE") else ROWS)


def test_a_locked_table_waits_by_itself(rig: Rig, together: Together, db: Database) -> None:
    """Its neighbours are written together before the lock ends."""
    holders: list[psycopg.Connection[Any]] = []

    def lock() -> None:
        holders.append(psycopg.connect(db.uri))
        holders[0].execute("LOCK TABLE t_05 IN ACCESS EXCLUSIVE MODE")

    together.before_group = once(lock)
    rig.start()
    others = [name for name in SMALL if name != "t_05"]
    try:
        rig.wait(lambda p: ready(p) == set(others))
        assert [sorted(group) for group in together.groups] == [others]
    finally:
        for holder in holders:
            holder.close()
    rig.wait(lambda p: ready(p) == set(SMALL))
    assert all(together.copies_of(name) == 1 for name in SMALL)


def test_a_statement_after_the_rows_are_read_does_not_wait(rig: Rig, together: Together, db: Database) -> None:
    """While the destination writes, the group holds no lock and no snapshot at the source."""

    def change() -> None:
        db.execute("ALTER TABLE t_05 ADD COLUMN more int", "VACUUM FULL t_06", "UPDATE t_07 SET note = 'x'")

    together.before_write = once(change)
    rig.start()
    rig.wait(lambda p: ready(p) == set(SMALL))
    rig.wait_caught_up()
    assert together.applied_rows["t_07"] == ROWS
    assert {copy[0]: copy[2] for copy in together.copies}["t_05"] == ("id", "note")


def test_a_value_without_a_place_stops_its_table_alone(rig: Rig, together: Together, db: Database) -> None:
    """The others are written together, and it has the error that it has by itself."""
    db.execute("CREATE TABLE bad (id int PRIMARY KEY, at timestamptz)", "INSERT INTO bad VALUES (1, 'infinity')")
    rig.start()
    progress = rig.wait(lambda p: ready(p) == set(SMALL) and table(p, "bad").error is not None)
    found = table(progress, "bad").error
    assert found is not None
    assert found.code == "unrepresentable_value"
    assert [sorted(group) for group in together.groups] == [SMALL]


def test_a_table_that_is_there_is_copied_by_itself(rig: Rig, together: Together) -> None:
    """So the destination's own checks and drops come first."""
    together.taken = {"t_03"}
    rig.start()
    rig.wait(lambda p: ready(p) == set(SMALL))
    assert [sorted(group) for group in together.groups] == [[name for name in SMALL if name != "t_03"]]
    assert [name for name, _ in together.dropped] == ["t_03"]


def test_a_group_that_fails_is_copied_table_by_table(rig: Rig, together: Together) -> None:
    """Its error does not say which table it is about."""

    def fail() -> None:
        raise Transient("destination_unavailable", "no answer")

    together.before_write = fail
    rig.start()
    rig.wait(lambda p: ready(p) == set(SMALL))
    assert together.groups == []
    assert sorted(copy[0] for copy in together.copies) == SMALL


def test_a_newer_driver_ends_the_pipeline(rig: Rig, together: Together) -> None:
    """The error of the group is that of the process."""

    def fail() -> None:
        raise StaleEpoch(1, 2)

    together.before_write = fail
    rig.start()
    running, rig.running = rig.running, None
    assert running is not None
    with pytest.raises(StaleEpoch):
        running.wait(LIMIT_S)
    running.stop()


def test_a_stop_in_the_middle_leaves_no_table_half_copied(rig: Rig, together: Together) -> None:
    """The tables of a group that was not written are copied after the restart."""
    reached, go_on = threading.Event(), threading.Event()

    def pause() -> None:
        reached.set()
        assert go_on.wait(LIMIT_S)

    together.before_group = once(pause)
    rig.start()
    assert reached.wait(LIMIT_S)
    stopping = threading.Thread(target=rig.stop)
    stopping.start()
    go_on.set()
    stopping.join()
    rig.start()
    rig.wait(lambda p: ready(p) == set(SMALL))
    assert {copy[3] for copy in together.copies} == {ROWS}
