"""The work of the engine for each of many tables, in counts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.counting import Counting
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S

from levada.values import TableId, Watermark

WRITES_OF_A_TABLE = 8
"""The most writes from a table's discovery until it is Ready. Before they were stored together, there were 10."""
WRITES_OF_A_START = 3
"""The most writes of a start with tables that are Ready already."""


@pytest.fixture
def counting(db: Database, tmp_path: Path) -> Iterator[tuple[Rig, Counting]]:
    """A pipeline of all tables of the database, not started."""
    made, storage = Rig(db, tmp_path), Counting()
    made.storage = storage
    made.config = replace(made.config, selects=lambda table: table.schema == "public")
    yield made, storage
    made.stop()


def writes(rig: Rig, storage: Counting) -> int:
    """Run the pipeline until all tables are Ready, and return the number of writes."""
    storage.writes = 0
    rig.start()
    rig.wait(lambda p: bool(p.tables) and all(table.phase == "Ready" for table in p.tables))
    rig.stop()
    return storage.writes


@pytest.mark.nightly
def test_the_writes_of_a_copy_do_not_grow_with_the_tables(counting: tuple[Rig, Counting], db: Database) -> None:
    """Each of 60 further tables has as many as each of the first 10, and a start with 70 tables has a few for all."""
    db.execute(*(f"CREATE TABLE t_{n} (id int PRIMARY KEY)" for n in range(10)))  # type: ignore[arg-type]  # numbers of the test
    assert writes(*counting) <= 10 * WRITES_OF_A_TABLE
    db.execute(*(f"CREATE TABLE t_{n} (id int PRIMARY KEY)" for n in range(10, 70)))  # type: ignore[arg-type]  # as above
    assert writes(*counting) <= 60 * WRITES_OF_A_TABLE
    assert writes(*counting) <= WRITES_OF_A_START


class Gated(Recording):
    """A destination that reports no watermark until the test lets it. It records the order of the tables."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.read: list[int] = []

    def applied(self, table: TableId) -> Watermark | None:
        assert self.gate.wait(LIMIT_S)
        with self.lock:
            self.read.append(int(table))
        return super().applied(table)


@pytest.mark.nightly
def test_the_watermark_of_a_table_with_changes_is_read_before_others(
    counting: tuple[Rig, Counting], db: Database
) -> None:
    """After a restart few of the many tables without changes come first, so that a change is applied soon."""
    rig, storage = counting
    rig.destination = gated = Gated()
    rig.config = replace(rig.config, apply_threads=1, maintenance_s=3600.0)
    db.execute(*(f"CREATE TABLE t_{n} (id int PRIMARY KEY)" for n in range(40)))  # type: ignore[arg-type]  # numbers of the test
    [(last,)] = db.query("SELECT 't_39'::regclass::oid")
    writes(rig, storage)
    gated.gate.clear()
    gated.read.clear()
    db.execute("INSERT INTO t_39 VALUES (1)")
    try:
        rig.start()
        rig.wait(lambda p: any(t.id == last and t.pending_segments for t in p.tables))
    finally:
        gated.gate.set()
    rig.wait_caught_up()
    assert gated.read.index(last) < 20
