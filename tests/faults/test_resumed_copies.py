"""Copies that are killed at every range while the rows move: resumed, and equal in the end."""

from __future__ import annotations

import re
import threading

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.movers import (
    INTERRUPTED,
    RESUMED,
    ROWS,
    Movers,
    configure,
    finished_before,
    items,
    kill_at_each_range,
    run_until_killed,
)

__all__ = ["items"]


def test_killed_at_every_range(engine: Engine, items: Database) -> None:
    """kill -9 after every range and after the changed rows: no range is read twice, and no row is wrong."""
    configure(engine)
    with Movers(items):
        run_until_killed(engine, "range")
        ranges = kill_at_each_range(engine)
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
        assert finished_before(engine)[-1] == (ranges, ranges)
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")
    assert not [p for p in engine.warehouse.rglob("*.json") if re.fullmatch(r"[0-9a-f]{16}-\d+\.json", p.name)]


@pytest.mark.parametrize("version", [2, 3])
def test_killed_in_a_table_with_partitions(engine: Engine, db: Database, version: int) -> None:
    """The same with partitions at the source and in the lake, and with each way to delete rows of finished ranges."""
    db.execute(
        "CREATE TABLE items (shop int, code text, n int, v text, big text, PRIMARY KEY (shop, code))"
        " PARTITION BY LIST (shop)",
        "CREATE TABLE items_a PARTITION OF items FOR VALUES IN (0, 1, 2)",
        "CREATE TABLE items_b PARTITION OF items FOR VALUES IN (3, 4)",
        "CREATE TABLE items_c PARTITION OF items DEFAULT",
        "INSERT INTO items SELECT i % 7, 'o''k\\' || i, 0, repeat(md5(i::text), 5),"
        f" CASE WHEN i % 60 = 0 THEN repeat(md5(i::text), 100) END FROM generate_series(1, {ROWS}) i",
        "ANALYZE items",
    )
    configure(engine, formatVersion=version)
    sync = {"pipelineRef": {"name": "shop"}, "table": {"schema": "public", "name": "items"}}
    engine.write_manifest(
        {
            "apiVersion": "levada.dev/v1alpha1",
            "kind": "TableSync",
            "metadata": {"name": "items"},
            "spec": {**sync, "iceberg": {"partitionBy": ["shop"]}},
        }
    )
    with Movers(db):
        for _ in range(3):
            run_until_killed(engine, "range")
        run_until_killed(engine, "changes")
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_killed_after_the_commit(engine: Engine, items: Database) -> None:
    """A kill between the commit of a resumed copy and its record: the table is copied again, and equal."""
    configure(engine)
    with Movers(items):
        run_until_killed(engine, "range")
        run_until_killed(engine, "commit")
        engine.start(*INTERRUPTED)
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_connections_that_are_lost(engine: Engine, items: Database) -> None:
    """The snapshot's connection is lost again and again. The copy is resumed in the same process, and equal."""
    configure(engine)
    lost = threading.Event()

    def lose() -> None:
        with items.connect() as connection:
            while not lost.wait(0.01):
                connection.execute(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE temporary AND active"
                    " AND EXISTS (SELECT FROM pg_stat_progress_copy WHERE tuples_processed > 5000)"
                )

    with Movers(items):
        thread = threading.Thread(target=lose, daemon=True)
        thread.start()
        engine.start(*INTERRUPTED)
        engine.wait_log(RESUMED)
        lost.set()
        thread.join()
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    engine.assert_equal("items")


@pytest.mark.parametrize(
    "statements",
    [
        ["VACUUM FULL items"],
        ["TRUNCATE items", "INSERT INTO items SELECT 1, i::text, 2 FROM generate_series(1, 100) i"],
        ["ALTER TABLE items ADD extra int", "ALTER TABLE items DROP extra"],
        ["ALTER TABLE items REPLICA IDENTITY FULL", "DELETE FROM items WHERE n = 0 AND shop = 1"],
    ],
    ids=["rewritten", "truncated", "altered", "identity"],
)
def test_a_changed_table_is_copied_from_the_beginning(engine: Engine, items: Database, statements: list[str]) -> None:
    """After a rewrite, a TRUNCATE, or DDL that was undone, no finished range is used."""
    configure(engine)
    run_until_killed(engine, "range")
    with items.connect() as connection:
        for statement in statements:
            connection.execute(statement)  # type: ignore[call-overload]  # the statements are constants
    engine.start(*INTERRUPTED)
    engine.wait_for(lambda p: p["ready"])
    assert "begins again" in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_an_interrupted_copy_continues_while_copies_are_paused(engine: Engine, items: Database) -> None:
    """Its staged changes have passed the guard's limit, and only its end makes room: it must not wait for that."""
    configure(engine)
    engine.spec = {**engine.spec, "guard": {"staged": {"pauseCopies": "64Ki"}}}
    engine.write_manifest()
    run_until_killed(engine, "range")
    items.execute("UPDATE items SET v = v || md5(random()::text) WHERE shop < 3")
    run_until_killed(engine, "changes")
    items.execute("CREATE TABLE fresh (id int PRIMARY KEY)")
    engine.start(*INTERRUPTED)
    engine.wait_for(lambda p: p["guard"]["policy"] == "PauseCopies" and p["tables"])
    engine.wait_caught_up()
    engine.assert_equal("items", "fresh")
    guarded = engine.log.index("the limit of PauseCopies")
    assert engine.log.index("so the policy ends", guarded) < engine.log.index("public.fresh: Init -> DataSync")
