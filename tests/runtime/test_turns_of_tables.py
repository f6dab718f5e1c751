"""Tables take turns: what waits for a turn, and for what it does not wait."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S

from levada.segments.batch import EventBatch
from levada.values import Durability, TableId, Watermark

NAMES = [f"t{n}" for n in range(6)]


class Held(Recording):
    """Keeps the tables of each call, and waits in calls while it is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.batches_open, self.maintenance_open = threading.Event(), threading.Event()
        self.batches_open.set()
        self.maintenance_open.set()
        self.maintained = 0
        self.batches_before: dict[TableId, int] = {}
        """The number of batches before the first maintenance of each table."""

    def write_events(self, events: EventBatch, mark: Watermark) -> Durability:
        self.calls += [events.changes(t).schema.name.name for t in events.tables]
        assert self.batches_open.wait(LIMIT_S)
        return super().write_events(events, mark)

    def maintain(self, table: TableId) -> None:
        self.maintained += 1
        self.batches_before.setdefault(table, len(self.calls))
        assert self.maintenance_open.wait(LIMIT_S)


@pytest.fixture
def held() -> Held:
    """A destination whose calls a test holds."""
    return Held()


@pytest.fixture
def rig(db: Database, tmp_path: Path, held: Held) -> Iterator[Rig]:
    """A running pipeline of six tables, to one of which changes are applied at a time."""
    for name in NAMES:
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY)")  # type: ignore[arg-type]  # names of this file
    made = Rig(db, tmp_path)
    made.destination = held
    made.config = replace(
        made.config, selects=lambda t: t.name in NAMES, freshness_s=0.2, apply_threads=1, maintenance_s=1e9
    )
    made.start()
    made.wait_caught_up()
    yield made
    held.batches_open.set()
    held.maintenance_open.set()
    made.stop()


def insert(db: Database, row: int) -> None:
    """Insert the row into every table, in transactions of their own."""
    for name in NAMES:
        db.execute(f"INSERT INTO {name} VALUES ({row})")  # type: ignore[arg-type]  # names of this file


def test_a_table_that_waits_for_its_turn_gets_all_that_was_staged_meanwhile(rig: Rig, db: Database, held: Held) -> None:
    """One table is written and one is next. The others have one batch, with the changes that came while they waited."""
    held.batches_open.clear()
    insert(db, 1)
    rig.wait(lambda p: bool(held.calls) and all(table(p, name).pending_rows for name in NAMES))
    insert(db, 2)
    rig.wait(lambda p: all(table(p, name).pending_rows == 2 for name in NAMES))
    held.batches_open.set()
    rig.wait_caught_up()
    assert [held.applied_rows[name] for name in NAMES] == [2] * len(NAMES)
    assert sorted(held.calls.count(name) for name in NAMES)[:4] == [1, 1, 1, 1]


def test_a_batch_does_not_wait_for_the_maintenance_of_other_tables(rig: Rig, db: Database, held: Held) -> None:
    """While maintenance takes long, two tables at a time have it and the changes of all others are applied."""
    held.maintenance_open.clear()
    rig.change(maintenance_s=0.1)
    rig.wait(lambda p: held.maintained == 2)
    insert(db, 1)
    rig.wait(lambda p: len(held.applied_rows) == len(NAMES) - 2)
    assert held.maintained == 2


def test_a_table_whose_next_batch_is_always_due_has_maintenance(rig: Rig, db: Database, held: Held) -> None:
    """Maintenance that is due comes before the next batch, or a table that trails would never be compacted."""
    [(oid,)] = db.query("SELECT 't0'::regclass::oid")
    rig.change(batch_rows=1)
    held.batches_open.clear()
    for row in range(8):
        db.execute(f"INSERT INTO t0 VALUES ({row})")  # type: ignore[arg-type]  # a number
        rig.wait(lambda p, row=row: table(p, "t0").pending_rows == row + 1)  # type: ignore[misc]  # its default
    rig.change(maintenance_s=0.1)
    held.batches_open.set()
    rig.wait_caught_up()
    rig.wait(lambda p: oid in held.batches_before)
    assert held.calls.count("t0") > 2
    assert held.batches_before[TableId(oid)] < len(held.calls)
