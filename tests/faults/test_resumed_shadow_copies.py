"""Shadow copies of tables that stream, killed at every range while the rows move: resumed, and equal in the end."""

from __future__ import annotations

import re

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.movers import (
    INTERRUPTED,
    Movers,
    configure,
    finished_before,
    items,
    kill_at_each_range,
    run_until_killed,
)

__all__ = ["items"]


@pytest.fixture
def copied(engine: Engine, items: Database) -> Engine:
    """An engine that has copied the table, and ends itself after the first range of its shadow copy."""
    configure(engine)
    engine.start(*INTERRUPTED)
    engine.wait_caught_up()
    engine.kill()
    engine.start(*INTERRUPTED, KILL_AT="range")
    engine.wait_for(lambda p: p["ready"])
    return engine


def resync_until_killed(engine: Engine) -> None:
    engine.levada("resync", *engine.options(), "public.items")
    assert engine.process is not None
    engine.until(engine.process.poll, lambda ended: ended == -9)


def test_killed_at_every_range(copied: Engine, items: Database) -> None:
    """kill -9 after every range and after the changed rows: no range is read twice, and no row is wrong."""
    engine = copied
    with Movers(items):
        resync_until_killed(engine)
        ranges = kill_at_each_range(engine)
        engine.start(*INTERRUPTED)
        engine.wait_log("table public.items: resynced")
        assert finished_before(engine)[-1] == (ranges, ranges)
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")
    assert not [p for p in engine.warehouse.rglob("*.json") if re.fullmatch(r"[0-9a-f]{16}-\d+\.json", p.name)]


def test_the_table_is_up_to_date_meanwhile(copied: Engine, items: Database) -> None:
    """Between two attempts the table receives its changes, and the shadow copy that continues has them too."""
    engine = copied
    engine.spec = {**engine.spec, "guard": {"staged": {"pauseCopies": "1Ki"}}}
    resync_until_killed(engine)
    items.execute("UPDATE items SET n = n + 1 WHERE shop < 2", "DELETE FROM items WHERE shop = 6")
    run_until_killed(engine, "range")
    engine.write_manifest()
    items.execute("UPDATE items SET n = n + 1 WHERE shop = 1")
    engine.start(*INTERRUPTED)
    engine.wait_log("table public.items: resynced")
    engine.wait_caught_up()
    engine.assert_equal("items")


@pytest.mark.parametrize(
    "statements",
    [
        ["VACUUM FULL items"],
        [
            "ALTER TABLE items ADD extra int DEFAULT 1",
            "ALTER TABLE items DROP extra",
            "ALTER TABLE items ADD extra int",
        ],
        ["TRUNCATE items", "INSERT INTO items SELECT 1, i::text, 2 FROM generate_series(1, 100) i"],
    ],
    ids=["rewritten", "altered", "truncated"],
)
def test_a_changed_table_is_copied_from_the_beginning(copied: Engine, items: Database, statements: list[str]) -> None:
    """After a rewrite, a TRUNCATE, or DDL, no finished range is used."""
    engine = copied
    resync_until_killed(engine)
    for statement in statements:
        items.execute(statement)
    engine.start(*INTERRUPTED)
    engine.wait_log("table public.items: resynced")
    assert not finished_before(engine)
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_a_resync_that_is_requested_again_reads_every_range(copied: Engine, items: Database) -> None:
    """A person who types the command again wants all rows from the source."""
    engine = copied
    resync_until_killed(engine)
    engine.levada("resync", *engine.options(), "public.items")
    engine.start(*INTERRUPTED)
    engine.wait_for(lambda p: p["ready"])
    assert not finished_before(engine)
    engine.wait_caught_up()
    engine.assert_equal("items")
