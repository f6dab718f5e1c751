"""Tables that are created while a pipeline runs. The rig's discovery is due after an hour."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig

from levada.runtime.source.new_tables import NewTables
from levada.spec.source import IncludedTables


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over all tables of schema public, not started."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    made = Rig(db, tmp_path)
    made.config = replace(made.config, selects=lambda table: table.schema == "public")
    yield made
    made.stop()


@pytest.mark.sampled
@pytest.mark.parametrize("managed", [True, False], ids=["managed", "unmanaged"])
@pytest.mark.parametrize("trigger", [True, False], ids=["with the trigger", "without"])
def test_a_new_table_does_not_wait_for_the_next_discovery(rig: Rig, db: Database, managed: bool, trigger: bool) -> None:
    """It is copied soon after its CREATE TABLE, or after it was added to a publication of the user."""
    rig.config = replace(rig.config, ddl_trigger=trigger)
    if not managed:
        db.execute("CREATE PUBLICATION p FOR TABLE orders")
        rig.config = replace(rig.config, publication=replace(rig.config.publication, name="p", managed=False))
    rig.start()
    rig.wait_caught_up()
    db.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    if not managed:
        db.execute("ALTER PUBLICATION p ADD TABLE later")
    rig.wait(lambda p: rig.destination.copies_of("later") == 1)
    db.execute("CREATE TABLE unselected (id int)", "ALTER TABLE orders RENAME TO ordered")
    rig.wait(lambda p: {t.table.name for t in p.tables} == {"ordered", "later"})


def test_what_is_not_selected_requests_no_discovery(rig: Rig, db: Database) -> None:
    """Neither do partitions, temporary tables and dropped ones. A table that was made again under its name does."""
    looks, config = NewTables(clock=itertools.count().__next__), replace(rig.config, selects=Only("orders", "p"))
    with db.connect() as connection:

        def appeared(*statements: LiteralString) -> bool:
            for statement in statements:
                connection.execute(statement)
            return looks.appeared(connection, config)

        assert appeared()
        assert not appeared()
        assert not appeared("CREATE TABLE unselected (id int)", "CREATE TEMP TABLE p (id int)", "DROP TABLE p")
        assert appeared("CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id)")
        assert not appeared("CREATE TABLE p_1 PARTITION OF p DEFAULT")
        assert not appeared("DROP TABLE p, unselected")
        assert appeared("DROP TABLE orders", "CREATE TABLE orders (id int)")


def test_a_source_that_creates_tables_all_the_time_is_not_read_all_the_time(rig: Rig, db: Database) -> None:
    """After some tables have appeared, the next ones wait for a time that grows with the number of tables."""
    now = 1.0
    looks = NewTables(clock=lambda: now)
    with db.connect() as connection:
        assert looks.appeared(connection, rig.config)
        connection.execute("CREATE TABLE items (id int)")
        assert not looks.appeared(connection, rig.config)
        now = 2.0
        assert looks.appeared(connection, rig.config)


def test_tables_stay_while_an_entry_matches_none(rig: Rig, db: Database) -> None:
    """The entry may be mistyped. The tables that it leaves out are streamed meanwhile, and are not copied again."""
    db.execute("CREATE TABLE bills (id int PRIMARY KEY)")

    def select(*names: str) -> None:
        entries = tuple(IncludedTables.model_validate({"schema": "public", "name": name}) for name in names)
        rig.change(include=entries, selects=Only(*names))

    select("orders", "bills")
    rig.start()
    rig.wait_caught_up()
    select("orders", "bils")
    slipped = rig.wait(lambda p: p.publication.error)
    assert slipped.publication.error is not None
    assert slipped.publication.error.code == "pattern_without_table"
    db.execute("INSERT INTO bills VALUES (1)")
    select("orders", "bills")
    rig.wait(lambda p: not p.publication.error)
    rig.wait_caught_up()
    assert rig.destination.copies_of("bills") == 1
    select("orders")
    rig.wait(lambda p: {t.table.name for t in p.tables} == {"orders"})
