"""PostgreSQL as a destination with ``ordering: Pipeline``: a reader never sees a part of a transaction."""

from __future__ import annotations

import random
import re
import threading
import time
from typing import Any

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.replica_server import server, target, write_manifest
from tests.rigs.waiting import until
from tests.writers import Writers

__all__ = ["server", "target"]

TOTAL = 100_000
ACCOUNTS = 100


class Transfers(Writers):
    """Moves money between accounts of two tables, and enters each transfer with its parent into two more."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._chance = random.Random(1)

    def write(self, connection: Any, seed: int) -> None:
        c, rng, number = connection, self._chance, self.count + 1
        amount, one, two = rng.randint(-50, 50), rng.randint(1, ACCOUNTS), rng.randint(1, ACCOUNTS)
        with c.transaction():
            c.execute("INSERT INTO orders VALUES (%s)", [number])
            c.execute("UPDATE checking SET balance = balance - %s WHERE id = %s", [amount, one])
            c.execute("UPDATE savings SET balance = balance + %s WHERE id = %s", [amount, two])
            c.execute("INSERT INTO items VALUES (%s, %s)", [number, number])
            if number % 7 == 0:
                c.execute("DELETE FROM items WHERE id = %s", [number - 3])
                c.execute("DELETE FROM orders WHERE id = %s", [number - 3])
        self.stopped.wait(0.002)


class Reader:
    """A thread that reads the invariants at the destination in a loop, once it is released."""

    QUERY = (
        "SELECT (SELECT sum(balance) FROM checking) + (SELECT sum(balance) FROM savings),"
        " (SELECT count(*) FROM items FULL JOIN orders ON items.id = orders.id WHERE items.id IS NULL"
        " OR orders.id IS NULL), (SELECT max(id) FROM orders)"
    )

    def __init__(self, target: Database, engine: Engine) -> None:
        self._target = target
        self._engine = engine
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.broken: list[tuple[float, Any]] = []
        self.reads = 0
        self.orders: set[int] = set()

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._target.connect() as c:
                    while not self._stop.is_set():
                        [(total, strays, newest)] = c.execute(self.QUERY).fetchall()
                        self.reads += 1
                        self.orders.add(newest)
                        if (total, strays) != (TOTAL, 0):
                            self.broken.append((time.time(), (total, strays, newest)))
            except psycopg.OperationalError:
                time.sleep(0.05)  # paced: the server is stopped

    def wait_for_batches(self, count: int) -> None:
        """Wait until this many further states were read."""
        seen = len(self.orders)
        until(
            lambda: len(self.orders),
            lambda found: found >= seen + count,
            alive=self._thread.is_alive,
            report=lambda: f"{self._engine.progress()}\n{self._engine.log[-4000:]}",
        )


@pytest.fixture
def replicated(engine: Engine, db: Database, target: Database) -> Engine:
    """An engine that replicates the four tables, which are Ready, and that has no traffic yet."""
    db.execute(
        "CREATE TABLE checking (id int PRIMARY KEY, balance int NOT NULL)",
        "CREATE TABLE savings (id int PRIMARY KEY, balance int NOT NULL)",
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE items (id int PRIMARY KEY, order_id int NOT NULL REFERENCES orders)",
        "INSERT INTO checking SELECT i, 500 FROM generate_series(1, 100) i",
        "INSERT INTO savings SELECT i, 500 FROM generate_series(1, 100) i",
    )
    engine.spec["freshnessSeconds"] = 1
    write_manifest(engine, target, ordering="Pipeline")
    engine.start()
    engine.wait_caught_up()
    target.execute(
        "SET levada.writer = 'test'",
        "ALTER TABLE items ADD FOREIGN KEY (order_id) REFERENCES orders DEFERRABLE",
    )
    return engine


def test_kills_show_no_part_of_a_transaction(replicated: Engine, db: Database, target: Database) -> None:
    """A reader in a loop sees only states that the source had, whenever the engine is killed."""
    engine = replicated
    with Transfers(db), Reader(target, engine) as reader:
        for turn in range(4):
            reader.wait_for_batches(2)
            time.sleep(0.3 * turn)
            engine.kill()
            engine.start()
            engine.wait_for(lambda p: p["ready"])
        reader.wait_for_batches(3)
    assert reader.broken == []
    assert engine.stop() == 0


def test_an_interrupted_destination_shows_no_part_of_a_transaction(
    replicated: Engine, db: Database, target: Database
) -> None:
    """Restarts of the destination's server and killed sessions park all tables, which go on together."""
    engine = replicated
    target.execute("CHECKPOINT")
    with Transfers(db), Reader(target, engine) as reader:
        for turn in range(4):
            reader.wait_for_batches(2)
            if turn % 2:
                target.server.stop("immediate")
                time.sleep(0.5)  # paced: the engine meets a server that is stopped
                target.server.start()
            else:
                for _ in range(20):
                    target.query(
                        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                        " WHERE application_name LIKE 'levada%%' AND datname = %s", target.name
                    )  # fmt: skip
                    time.sleep(0.1)  # paced: sessions are ended for two seconds
        reader.wait_for_batches(3)
    assert reader.broken == []
    assert engine.stop() == 0


def test_a_copy_of_a_table_shows_no_part_once_all_are_ready(replicated: Engine, db: Database, target: Database) -> None:
    """A resync of one table under traffic, and a new table: once every table is Ready, all states are whole."""
    engine = replicated
    with Transfers(db), Reader(target, engine) as reader:
        reader.wait_for_batches(2)
        db.execute("CREATE TABLE other AS SELECT i AS id FROM generate_series(1, 200000) i",
                   "ALTER TABLE other ADD PRIMARY KEY (id)")  # fmt: skip
        engine.levada("resync", *engine.options(), "public.savings")
        engine.wait_log("table public.savings: Ready -> Init")
        # The log has each change at once. The progress is published at intervals, so it may still be the one before.
        engine.wait_for(lambda _: {"public.savings", "public.other"} <= ready_tables(engine.log))
        ready = time.time()
        reader.wait_for_batches(4)
    late = [broken for broken in reader.broken if broken[0] > ready]
    assert late == [], engine.log[-4000:]
    assert engine.stop() == 0


def ready_tables(log: str) -> set[str]:
    """Return the tables whose last logged change of phase leads to Ready."""
    last = dict(re.findall(r"table (\S+): \w+ -> (\w+)", log))
    return {table for table, phase in last.items() if phase == "Ready"}


def test_a_foreign_key_is_dropped_for_a_resync_under_traffic(
    replicated: Engine, db: Database, target: Database
) -> None:
    """Without the foreign key a child is copied although its parent is behind. Once all are Ready, it holds again."""
    engine = replicated
    target.execute("SET levada.writer = 'test'", "ALTER TABLE items DROP CONSTRAINT items_order_id_fkey")
    with Transfers(db), Reader(target, engine) as reader:
        reader.wait_for_batches(2)
        engine.levada("resync", *engine.options(), "public.items")
        engine.wait_log("table public.items: Ready -> Init")
        engine.wait_for(lambda _: "public.items" in ready_tables(engine.log))
        reader.wait_for_batches(2)
        target.execute("ALTER TABLE items ADD FOREIGN KEY (order_id) REFERENCES orders DEFERRABLE")
        checked = time.time()
        reader.wait_for_batches(3)
    assert [broken for broken in reader.broken if broken[0] > checked] == []
    assert engine.stop() == 0
