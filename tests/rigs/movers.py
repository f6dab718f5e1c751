"""Rows that move between the ranges of a copy while it runs."""

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
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S

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


def finished_before(engine: Engine) -> list[tuple[int, int]]:
    """Return how many of how many ranges were finished when each copy was resumed."""
    return [(int(a), int(b)) for a, b in re.findall(rf"(\d+) of (\d+) {RESUMED}", engine.log)]


def run_until_killed(engine: Engine, at: str) -> None:
    """Start the engine, which kills itself."""
    engine.start(*INTERRUPTED, KILL_AT=at)
    assert engine.process is not None
    assert engine.process.wait(LIMIT_S) == -9, engine.log[-4000:]


def kill_at_each_range(engine: Engine) -> int:
    """Kill the engine at each range of a copy that was killed at its first one. Return the number of ranges."""
    run_until_killed(engine, "range")
    ((_, ranges),) = finished_before(engine)
    assert ranges >= 5
    for _ in range(ranges - 2):
        run_until_killed(engine, "range")
    assert finished_before(engine) == [(n, ranges) for n in range(1, ranges)]
    run_until_killed(engine, "changes")
    return ranges
