"""Copies that are killed at every range while the rows move: resumed, and equal in the end."""

from __future__ import annotations

import random
import re
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.conftest import Database
from tests.scenarios.engine import TIMEOUT_S, Engine

INTERRUPTED = (sys.executable, str(Path(__file__).with_name("interrupted_copy.py")))
ROWS = 60_000
RESUMED = "ranges were copied before"


@pytest.fixture
def items(db: Database) -> Database:
    """A table with a composite key, texts in TOAST storage, and free space in its blocks."""
    create_items(db)
    return db


def create_items(db: Database) -> None:
    """Create and fill the table."""
    db.execute(
        "CREATE TABLE items (shop int, code text, n int, v text, big text, PRIMARY KEY (shop, code))",
        "ALTER TABLE items ALTER big SET STORAGE EXTERNAL",
        "ALTER TABLE items SET (autovacuum_enabled = off)",
        "INSERT INTO items SELECT i % 7, 'o''k\\' || i, 0, repeat(md5(i::text), 5),"
        f" CASE WHEN i % 60 = 0 THEN repeat(md5(i::text), 100) END FROM generate_series(1, {ROWS}) i",
        "ANALYZE items",
    )


class Movers:
    """Writers that move rows between blocks, change and exchange keys, delete and insert, until the block ends."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._stop = threading.Event()
        self._errors: list[BaseException] = []
        self._threads = [threading.Thread(target=self._write, args=(seed,), daemon=True) for seed in range(2)]
        self._threads.append(threading.Thread(target=self._vacuum, daemon=True))

    def __enter__(self) -> Movers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        assert not self._errors, self._errors

    def _write(self, seed: int) -> None:
        chance = random.Random(seed)
        try:
            with self._db.connect() as connection:
                while not self._stop.wait(0.02):
                    # The other writer may have the new key.
                    with suppress(psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
                        self._step(connection, chance, chance.randrange(1, ROWS))
        except BaseException as error:
            self._errors.append(error)

    def _step(self, connection: psycopg.Connection[object], chance: random.Random, i: int) -> None:
        key = (i % 7, f"o'k\\{i}")
        match chance.randrange(7):
            case 0 | 1:
                connection.execute("UPDATE items SET n = n + 1 WHERE (shop, code) = (%s, %s)", key)
            case 2:
                # Longer rows leave their block. The values in TOAST storage are unchanged.
                connection.execute("UPDATE items SET v = v || v WHERE n < 5 AND (shop, code) = (%s, %s)", key)
            case 3:
                connection.execute("DELETE FROM items WHERE (shop, code) = (%s, %s)", key)
            case 4:
                connection.execute("INSERT INTO items VALUES (%s, %s, 1, 'new', NULL) ON CONFLICT DO NOTHING", key)
            case 5:
                connection.execute("UPDATE items SET code = code || '-moved' WHERE (shop, code) = (%s, %s)", key)
            case 6:
                self._swap(connection, key, (i // 2 % 7, f"o'k\\{i // 2}"))

    def _swap(self, connection: psycopg.Connection[object], a: tuple[int, str], b: tuple[int, str]) -> None:
        rename = "UPDATE items SET shop = %s, code = %s WHERE (shop, code) = (%s, %s)"
        with connection.transaction():
            for old, new in ((a, (-1, a[1])), (b, a), ((-1, a[1]), b)):
                connection.execute(rename, (*new, *old))

    def _vacuum(self) -> None:
        with self._db.connect() as connection:
            while not self._stop.wait(2):
                connection.execute("VACUUM items")


def configure(engine: Engine, **iceberg: Any) -> None:
    """Let one task read at a time, so that the ranges end one after the other."""
    catalog = {"type": "Hadoop", "warehouse": f"file://{engine.warehouse}"}
    engine.spec = {
        "copy": {"connectionsPerTable": 1},
        "retries": {"delaySeconds": 1, "maxDelaySeconds": 1},
        "destination": {"iceberg": {"catalog": catalog, "namespace": "shop_{schema}", **iceberg}},
    }
    engine.write_manifest()


def run_until_killed(engine: Engine, at: str) -> None:
    """Start the engine, which kills itself."""
    engine.start(*INTERRUPTED, KILL_AT=at)
    assert engine.process is not None
    assert engine.process.wait(TIMEOUT_S) == -9, engine.log[-4000:]


def finished_before(engine: Engine) -> list[tuple[int, int]]:
    """Return how many of how many ranges were finished when each copy was resumed."""
    return [(int(a), int(b)) for a, b in re.findall(rf"(\d+) of (\d+) {RESUMED}", engine.log)]


def test_killed_at_every_range(engine: Engine, items: Database) -> None:
    """kill -9 after every range and after the changed rows: no range is read twice, and no row is wrong."""
    configure(engine)
    with Movers(items):
        run_until_killed(engine, "range")
        run_until_killed(engine, "range")
        ((_, ranges),) = finished_before(engine)
        assert ranges >= 5
        for _ in range(ranges - 2):
            run_until_killed(engine, "range")
        assert finished_before(engine) == [(n, ranges) for n in range(1, ranges)]
        run_until_killed(engine, "changes")
        assert finished_before(engine)[-1] == (ranges, ranges)
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
