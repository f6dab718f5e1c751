"""Tables that the manifest no longer selects leave a managed publication, and no other table does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.managed_publication import published
from tests.rigs.pipeline import Only
from tests.rigs.waiting import until
from tests.runtime.publication_rig import Published


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Published]:
    """A pipeline of two small tables that has copied them, and runs."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "CREATE TABLE by_hand (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
    )
    made = Published(db, tmp_path)
    made.config = replace(made.config, discovery_s=0.5)
    made.start()
    made.wait_caught_up()
    yield made
    made.stop()


def test_a_deselected_table_leaves_the_publication(rig: Published, db: Database) -> None:
    """One that another hand has added stays. A table that is selected again is published and copied again."""
    rig.sql("ALTER PUBLICATION {p} ADD TABLE by_hand")
    rig.change(selects=Only("orders"))
    until(lambda: published(db), lambda members: members == {"orders", "by_hand"})
    db.execute("INSERT INTO items VALUES (7)")
    rig.change(selects=Only("orders", "items"))
    until(lambda: published(db), lambda members: members == {"orders", "items", "by_hand"})
    db.execute("INSERT INTO items VALUES (8)")
    rig.wait(lambda p: len(p.tables) == 2)
    rig.wait_caught_up()
    assert [rows for name, _, _, rows in rig.destination.copies if name == "items"] in ([0, 1], [0, 2])


def test_a_table_that_is_deselected_while_no_engine_runs(rig: Published, db: Database) -> None:
    """The next start finds it, and it leaves also if it is locked at that time and the engine ends before."""
    rig.stop()
    rig.config = replace(rig.config, selects=Only("orders"))
    with db.connect() as other, other.transaction():
        other.execute("LOCK TABLE items IN SHARE MODE")
        rig.start()
        rig.wait_caught_up()
        rig.stop()
        assert published(db) == {"orders", "items"}
    rig.start()
    until(lambda: published(db), lambda members: members == {"orders"})


def test_a_publication_of_another_hand_keeps_its_tables(rig: Published, db: Database) -> None:
    """A comment that is not Levada's says that others may read the publication."""
    rig.sql("COMMENT ON PUBLICATION {p} IS 'read by the warehouse'")
    rig.change(selects=Only("orders"))
    rig.wait(lambda p: len(p.tables) == 1)
    # A discovery of its own, after the one that has forgotten the table.
    db.execute("CREATE TABLE others (id int PRIMARY KEY)")
    rig.change(selects=Only("orders", "others"))
    until(lambda: published(db), lambda members: "others" in members)
    assert published(db) == {"orders", "items", "others"}
