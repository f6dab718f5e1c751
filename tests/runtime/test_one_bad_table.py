"""A pipeline of a good table and one that cannot be copied. The bad one waits with its reason, the good one goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table

from levada.runtime.config import RetryLimits
from levada.stores.interface import TableAction


@dataclass(frozen=True)
class Fault:
    """A fault of table ``bad`` since a version: the statements that create it, and those that end it."""

    code: str
    begin: tuple[LiteralString, ...]
    end: tuple[LiteralString, ...]
    since: int = 14


FAULTS = (
    Fault(
        "reserved_column_name",
        ("CREATE TABLE bad (id int PRIMARY KEY, _levada_note text)", "ALTER PUBLICATION p ADD TABLE bad"),
        ("ALTER TABLE bad RENAME COLUMN _levada_note TO note",),
    ),
    Fault(
        "identity_missing",
        (
            "CREATE TABLE bad (id int, twice int GENERATED ALWAYS AS (id * 2) STORED PRIMARY KEY)",
            "ALTER PUBLICATION p ADD TABLE bad",
        ),
        ("ALTER TABLE bad DROP CONSTRAINT bad_pkey, ADD PRIMARY KEY (id)",),
    ),
    Fault(
        "identity_missing",
        ("CREATE TABLE bad (id int, k int DEFAULT 1, PRIMARY KEY (id, k))", "ALTER PUBLICATION p ADD TABLE bad (k)"),
        ("ALTER PUBLICATION p SET TABLE orders, bad",),
        since=15,
    ),
)


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over a publication of the user's, not started."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION p FOR TABLE orders")
    made = Rig(db, tmp_path)
    made.config = replace(
        made.config,
        publication=replace(made.config.publication, name="p", managed=False),
        selects=Only("orders", "bad"),
        discovery_s=0.5,
        retries=RetryLimits(delay_s=0.2, max_delay_s=0.2),
    )
    yield made
    made.stop()


@pytest.mark.parametrize(
    "running", [False, pytest.param(True, marks=pytest.mark.nightly)], ids=["at the start", "while running"]
)
@pytest.mark.parametrize("fault", [pytest.param(f, id=f.code, marks=pytest.mark.since(f.since)) for f in FAULTS])
def test_a_bad_table_spares_the_good_one(rig: Rig, db: Database, fault: Fault, running: bool) -> None:
    """Its error has the code, over a restart too. A resync copies it once the fault has ended."""
    steps: list[Callable[[], None]] = [lambda: db.execute(*fault.begin), rig.start]
    for step in reversed(steps) if running else steps:
        step()
    require_parked(rig, fault.code)
    db.execute("INSERT INTO orders VALUES (1)", "INSERT INTO bad (id) VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    rig.stop()
    rig.start()
    require_parked(rig, fault.code)
    assert rig.destination.copies_of("orders") == 1
    assert rig.destination.copies_of("bad") == 0
    db.execute(*fault.end)
    seen = rig.wait(lambda p: table(p, "orders").phase == "Ready")
    rig.store().request_table_action(table(seen, "bad").id, TableAction.RESYNC)
    rig.wait(lambda p: p.ready and rig.destination.copies_of("bad") == 1)


def require_parked(rig: Rig, code: str) -> None:
    """Wait until the bad table has the error, and the good one is replicated."""
    seen = rig.wait(
        lambda p: (
            {t.table.name for t in p.tables} == {"orders", "bad"}
            and table(p, "bad").error is not None
            and table(p, "orders").phase == "Ready"
        )
    )
    error = table(seen, "bad").error
    assert error is not None
    assert error.code == code


def test_tables_that_levada_writes_are_left_out_later(rig: Rig, db: Database) -> None:
    """A catalog of a lake that comes into the publication of a running pipeline stops no start, and is not copied."""
    rig.config = replace(rig.config, selects=lambda table: True)
    rig.start()
    rig.wait_caught_up()
    db.execute("CREATE TABLE levada_tables (id int PRIMARY KEY)", "CREATE TABLE ducklake_snapshot (id int PRIMARY KEY)")
    db.execute("CREATE TABLE later (id int PRIMARY KEY)")
    db.execute("ALTER PUBLICATION p ADD TABLE levada_tables, ducklake_snapshot, later")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("later") == 1)
    rig.stop()
    rig.start()
    db.execute("INSERT INTO orders VALUES (1)", "INSERT INTO ducklake_snapshot VALUES (1)")
    seen = rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    assert {t.table.name for t in seen.tables} == {"orders", "later"}
