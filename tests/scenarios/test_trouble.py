"""Each problem is reported once, clearly, and affects only its own part."""

from __future__ import annotations

import itertools
import shutil
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn


def test_one_table_fails_and_comes_back(engine: Engine, db: Database) -> None:
    """A table that its destination refuses is parked with reason and solution.

    The rest goes on, and a retry resumes it.
    """
    db.execute(
        "CREATE TABLE good (id int PRIMARY KEY, v int)",
        "CREATE TABLE bad (id int PRIMARY KEY, v int)",
        "INSERT INTO bad SELECT i, i FROM generate_series(1, 100) i",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    data = engine.warehouse / "shop_public" / "bad" / "data"
    saved = data.rename(data.with_name("saved"))
    data.write_text("a file where the destination's folder was")
    db.execute("UPDATE bad SET v = v + 1", "INSERT INTO good SELECT i, i FROM generate_series(1, 100) i")

    def table(progress: dict[str, Any], name: str) -> dict[str, Any]:
        return next(t for t in progress["tables"] if t["name"] == name)

    ids = itertools.count(101)

    def parked(progress: dict[str, Any]) -> bool:
        # Only while other tables are written is it an error of this one, and not of the whole lake.
        db.execute(f"INSERT INTO good VALUES ({next(ids)}, 0)")
        bad = table(progress, "bad")
        return bool(bad["phase"] == "Errored" and bad["error"]["retryPolicy"] == "ManualRetry")

    failed = engine.wait_for(parked)
    error = table(failed, "bad")["error"]
    assert error["reason"]
    assert error["solution"]
    db.execute("INSERT INTO good SELECT i, i FROM generate_series(100001, 100100) i")
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    engine.wait_for(
        lambda p: (
            lsn(table(p, "good")["appliedLsn"]) >= lsn(target) and lsn(p["capture"]["acknowledgedLsn"]) >= lsn(target)
        )
    )
    engine.assert_verified("good")
    data.unlink()
    shutil.move(saved, data)
    engine.levada("retry", *engine.options(), "public.bad")
    engine.wait_caught_up()
    engine.assert_verified("good", "bad")
    # A comparison that shares no code with it keeps it honest.
    engine.assert_equal("good", "bad")


def test_resync_copies_again(engine: Engine, db: Database) -> None:
    """A resync replaces whatever the lake has with a new copy, and streaming goes on from there."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT i, 'v' FROM generate_series(1, 100) i"
    )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    db.execute("ALTER TABLE t ALTER v TYPE int USING 5")
    db.execute("INSERT INTO t VALUES (200, 9)")
    engine.wait_for(lambda p: p["tables"][0]["phase"] == "Errored")
    assert "resync" in engine.wait_for(lambda p: True)["tables"][0]["error"]["solution"]
    engine.levada("resync", *engine.options(), "public.t")
    engine.wait_caught_up()
    engine.assert_verified("t")


def test_tables_without_a_key_keep_a_changelog(engine: Engine, db: Database) -> None:
    """A table whose rows cannot be distinguished is a changelog, and the status has the reason."""
    db.execute(
        "CREATE TABLE keyless (v int)", "ALTER TABLE keyless REPLICA IDENTITY FULL", "INSERT INTO keyless VALUES (1)"
    )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    db.execute("INSERT INTO keyless VALUES (2)", "DELETE FROM keyless WHERE v = 1")
    progress = engine.wait_caught_up()
    assert progress["tables"][0]["mode"] == "Changelog"
    assert "key" in progress["tables"][0]["note"]


def test_new_table_is_picked_up_while_running(engine: Engine, db: Database) -> None:
    """A table made after the start, and selected, is copied and streamed without a restart."""
    db.execute("CREATE TABLE first (id int PRIMARY KEY)")
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    db.execute("CREATE TABLE second (id int PRIMARY KEY)", "INSERT INTO second SELECT generate_series(1, 50)")
    engine.wait_for(lambda p: len(p["tables"]) == 2)
    engine.wait_caught_up()
    engine.assert_verified("first", "second")


@pytest.mark.parametrize("rows", [300_000])
def test_large_transaction(engine: Engine, db: Database, rows: int) -> None:
    """A transaction far larger than a batch arrives whole."""
    db.execute("CREATE TABLE big (id int PRIMARY KEY, a text, b numeric(12,2), c timestamptz)")
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    with db.connect() as c:
        c.execute("INSERT INTO big SELECT i, 'row ' || i, i / 7.0, now() FROM generate_series(1, %s) i", [rows])
    engine.wait_caught_up()
    engine.assert_equal("big")
