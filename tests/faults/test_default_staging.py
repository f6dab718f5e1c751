"""Staging in the work folder, without a setting: it is durable, and what it loses is noticed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.manifests import suspended

from levada.local.postgres import temporary_postgres


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Engine]:
    """An engine over a server of the test's own, whose staging area is in the work folder."""
    with temporary_postgres() as server:
        made = Engine(Database(server, "postgres"), tmp_path, spec={"staging": {}})
        try:
            yield made
        finally:
            made.kill()


def stage_for_a_suspended_table(engine: Engine, rows: int = 100) -> None:
    """Copy the tables ``a`` and ``b``, suspend ``a``, and change both until the slot is confirmed past the changes."""
    db = engine.db
    for name in "ab":
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (0, 'copied')")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    engine.write_manifest(suspended("a"))
    engine.wait_for(lambda p: any(t["suspended"] for t in p["tables"]))
    for name in "ab":
        db.execute(f"INSERT INTO {name} SELECT i, 'staged' FROM generate_series(1, {rows}) i")
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    if (engine.spec.get("staging") or {}).get("scratch"):
        engine.wait_for(lambda p: lsn(p["capture"]["stagedLsn"]) >= lsn(target))
    else:
        engine.wait_for(lambda p: lsn(p["capture"]["acknowledgedLsn"]) >= lsn(target))
    engine.wait_for(lambda p: all(lsn(t["appliedLsn"]) >= lsn(target) for t in p["tables"] if t["name"] == "b"))


def crash_source(engine: Engine) -> None:
    """End the server without a checkpoint. The slot goes back to the position that was saved last."""
    engine.db.server.stop("immediate")
    engine.db.server.start()


def error(progress: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the error of a table, empty without one."""
    return next((dict(t["error"]) for t in progress["tables"] if t["name"] == name and t["error"]), {})


def test_the_slot_is_confirmed_once_changes_are_in_the_work_folder(alone: Engine) -> None:
    """A table that stands still holds no WAL, and kill -9 of the engine and a crash of the source lose nothing."""
    stage_for_a_suspended_table(alone)
    progress = alone.wait_for(lambda p: True)
    assert progress["staging"]["durable"]
    alone.kill()
    crash_source(alone)
    alone.write_manifest()
    alone.start()
    alone.wait_caught_up()
    alone.assert_equal("a", "b")
    assert alone.log.count("Init -> DataSync") == 2


def test_another_work_folder_lacks_what_was_confirmed(alone: Engine) -> None:
    """A second run elsewhere parks the table whose changes are in the first folder. The other one goes on."""
    stage_for_a_suspended_table(alone)
    alone.kill()
    shutil.move(alone.folder / ".levada", alone.folder / "elsewhere")
    alone.write_manifest()
    alone.start()
    progress = alone.wait_for(lambda p: error(p, "a"))
    assert error(progress, "a")["code"] == "segment_missing"
    alone.db.execute("INSERT INTO b VALUES (1000, 'new')")
    [(target,)] = alone.db.query("SELECT pg_current_wal_insert_lsn()::text")
    alone.wait_for(lambda p: all(lsn(t["appliedLsn"]) >= lsn(target) for t in p["tables"] if t["name"] == "b"))
    alone.assert_equal("b")
    alone.levada("resync", *alone.options(), "public.a")
    alone.wait_caught_up()
    alone.assert_equal("a", "b")


@pytest.mark.parametrize("lose", [False, True])
def test_scratch_staging_becomes_durable(alone: Engine, lose: bool) -> None:
    """Nothing is copied again, lost or doubled, although the source crashed or the scratch space is gone."""
    alone.spec = {"staging": {"scratch": True}}
    stage_for_a_suspended_table(alone)
    assert not alone.wait_for(lambda p: True)["staging"]["durable"]
    alone.kill()
    if lose:
        shutil.rmtree(alone.folder / ".levada")
    else:
        crash_source(alone)
    alone.spec = {"staging": {}}
    alone.write_manifest()
    alone.start()
    alone.wait_caught_up()
    assert alone.stop() == 0
    # The first durable start had no transaction of its own that identifies the source.
    crash_source(alone)
    alone.start()
    alone.db.execute("INSERT INTO a VALUES (1000, 'new')")
    alone.wait_caught_up()
    crash_source(alone)
    alone.wait_caught_up()
    alone.assert_equal("a", "b")
    assert alone.log.count("Init -> DataSync") == 2
    assert "source_changed" not in alone.log


@pytest.mark.parametrize("lose", [False, True])
def test_durable_staging_becomes_scratch(alone: Engine, lose: bool) -> None:
    """The changes on the former place are applied. If the place is lost, the table that needs them is parked."""
    stage_for_a_suspended_table(alone)
    alone.kill()
    if lose:
        shutil.rmtree(alone.folder / ".levada")
    alone.spec = {"staging": {"scratch": True}}
    alone.write_manifest()
    alone.start()
    if lose:
        assert error(alone.wait_for(lambda p: error(p, "a")), "a")["code"] == "segment_missing"
        alone.levada("resync", *alone.options(), "public.a")
    alone.wait_caught_up()
    alone.assert_equal("a", "b")
