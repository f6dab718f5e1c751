"""Copies into DuckLake and PostgreSQL that are killed at every range while the rows move: resumed, and equal."""

from __future__ import annotations

from typing import Protocol

import pytest
from tests.rigs import ducklake, replica_server
from tests.rigs.database import Database
from tests.rigs.ducklake import lake
from tests.rigs.engine import Engine
from tests.rigs.movers import INTERRUPTED, Movers, finished_before, items, kill_at_each_range, run_until_killed
from tests.rigs.replica_server import server, target
from tests.servers.ducklake import DuckLake

__all__ = ["items", "lake", "server", "target"]


class Place(Protocol):
    """A destination of the table."""

    def write_manifest(self, engine: Engine) -> None:
        """Write a manifest with this destination."""
        ...

    def assert_equal(self, db: Database) -> None:
        """Compare the rows with the source's."""
        ...

    def left_of_copies(self) -> list[str]:
        """Return what is still there of copies that ended."""
        ...


class InDuckLake:
    """Tables in a lake."""

    def __init__(self, lake: DuckLake) -> None:
        self._lake = lake

    def write_manifest(self, engine: Engine) -> None:
        ducklake.write_manifest(engine, self._lake)

    def assert_equal(self, db: Database) -> None:
        assert not ducklake.differences(db, self._lake, "items")

    def left_of_copies(self) -> list[str]:
        return [str(path) for path in self._lake.folder.rglob("*.json")]


class InPostgres:
    """Tables on a second server."""

    def __init__(self, target: Database) -> None:
        self._target = target

    def write_manifest(self, engine: Engine) -> None:
        replica_server.write_manifest(engine, self._target)

    def assert_equal(self, db: Database) -> None:
        assert not replica_server.differences(db, self._target, "items")

    def left_of_copies(self) -> list[str]:
        found = self._target.query(
            "SELECT relname::text FROM pg_class WHERE relname ~ '^_levada_[0-9a-f]{32}$' AND relkind = 'r'"
            " UNION ALL SELECT part_id::text FROM levada.destination_copy_parts"
            " UNION ALL SELECT copy_id::text FROM levada.destination_copies"
        )
        return [name for (name,) in found]


@pytest.fixture(params=["lake", "target"], ids=["ducklake", "postgres"])
def place(request: pytest.FixtureRequest) -> Place:
    """Each destination without Spark that keeps finished ranges."""
    made = request.getfixturevalue(request.param)
    return InDuckLake(made) if isinstance(made, DuckLake) else InPostgres(made)


@pytest.fixture
def interrupted(engine: Engine, place: Place) -> Engine:
    """An engine whose copies read one range after another."""
    engine.spec = {"copy": {"connectionsPerTable": 1}, "retries": {"delaySeconds": 1, "maxDelaySeconds": 1}}
    place.write_manifest(engine)
    return engine


def test_killed_at_every_range(interrupted: Engine, items: Database, place: Place) -> None:
    """kill -9 after every range and after the changed rows: no range is read twice, and no row is wrong."""
    engine = interrupted
    with Movers(items):
        run_until_killed(engine, "range")
        ranges = kill_at_each_range(engine)
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
        assert finished_before(engine)[-1] == (ranges, ranges)
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    place.assert_equal(items)
    assert not place.left_of_copies()


def test_killed_after_the_commit(interrupted: Engine, items: Database, place: Place) -> None:
    """A kill between the commit of a resumed copy and its record: the table is copied again, and equal."""
    engine = interrupted
    with Movers(items):
        run_until_killed(engine, "range")
        run_until_killed(engine, "commit")
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    place.assert_equal(items)


def test_a_shadow_copy(interrupted: Engine, items: Database, place: Place) -> None:
    """The copy of a resync continues too, while the table receives its changes. VACUUM FULL makes it begin again."""
    engine = interrupted
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
    place.assert_equal(items)
    assert not place.left_of_copies()
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
    place.assert_equal(items)
