"""Copies into DuckLake that are killed at every range while the rows move: resumed, and equal in the end."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database
from tests.rigs.ducklake import differences, lake, write_manifest
from tests.rigs.engine import Engine
from tests.rigs.movers import INTERRUPTED, Movers, finished_before, items, kill_at_each_range, run_until_killed
from tests.servers.ducklake import DuckLake

__all__ = ["items", "lake"]


@pytest.fixture
def into_ducklake(engine: Engine, lake: DuckLake) -> Engine:
    """An engine whose copies read one range after another."""
    engine.spec = {"copy": {"connectionsPerTable": 1}, "retries": {"delaySeconds": 1, "maxDelaySeconds": 1}}
    write_manifest(engine, lake)
    return engine


def left_of_copies(lake: DuckLake) -> list[str]:
    """Return the descriptions of ranges that are still there."""
    return [str(path) for path in lake.folder.rglob("*.json")]


def test_killed_at_every_range(into_ducklake: Engine, items: Database, lake: DuckLake) -> None:
    """kill -9 after every range and after the changed rows: no range is read twice, and no row is wrong."""
    engine = into_ducklake
    with Movers(items):
        run_until_killed(engine, "range")
        ranges = kill_at_each_range(engine)
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
        assert finished_before(engine)[-1] == (ranges, ranges)
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    assert not differences(items, lake, "items")
    assert not left_of_copies(lake)


def test_killed_after_the_commit(into_ducklake: Engine, items: Database, lake: DuckLake) -> None:
    """A kill between the commit of a resumed copy and its record: the table is copied again, and equal."""
    engine = into_ducklake
    with Movers(items):
        run_until_killed(engine, "range")
        run_until_killed(engine, "commit")
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    assert not differences(items, lake, "items")


def test_a_shadow_copy(into_ducklake: Engine, items: Database, lake: DuckLake) -> None:
    """The copy of a resync continues too, while the table receives its changes. VACUUM FULL makes it begin again."""
    engine = into_ducklake
    engine.start(*INTERRUPTED)
    engine.wait_caught_up()
    engine.kill()
    engine.start(*INTERRUPTED, KILL_AT="range")
    engine.wait_for(lambda p: p["ready"])
    with Movers(items):
        engine.levada("resync", *engine.options(), "public.items")
        assert engine.process is not None
        engine.until(engine.process.poll, lambda ended: ended == -9)
        run_until_killed(engine, "range")
        run_until_killed(engine, "changes")
        assert len(finished_before(engine)) == 2
        engine.start(*INTERRUPTED)
        engine.wait_log("table public.items: resynced")
        assert "begins again" not in engine.log
    engine.wait_caught_up()
    assert not differences(items, lake, "items")
    assert not left_of_copies(lake)
    engine.kill()
    engine.start(*INTERRUPTED, KILL_AT="range")
    engine.wait_for(lambda p: p["ready"])
    engine.levada("resync", *engine.options(), "public.items")
    engine.until(engine.process.poll, lambda ended: ended == -9)
    items.execute("VACUUM FULL items")
    engine.start(*INTERRUPTED)
    engine.wait_log("the table was altered, rewritten or truncated")
    engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    assert not differences(items, lake, "items")
