"""``levada run`` into BigQuery's emulator, through kills and a change of the columns."""

from __future__ import annotations

import json
import os
import signal
import threading
from decimal import Decimal
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.servers.bigquery import PROJECT, Emulator


@pytest.fixture
def into_bigquery(engine: Engine, bigquery: Emulator, db: Database) -> Engine:
    """An engine whose destination is a dataset of this test."""
    section = {"project": PROJECT, "dataset": db.name + "_{schema}", "endpoint": bigquery.endpoint}
    engine.spec = {"destination": {"bigquery": section}}
    return engine


def in_bigquery(bigquery: Emulator, db: Database, name: str) -> list[dict[str, Any]]:
    """Return the rows by BigQuery's own client."""
    rows = bigquery.read(f"{db.name}_public", name).to_pylist()
    for row in rows:
        for column in ("doc", "tags"):
            row[column] = None if row[column] is None else json.loads(row[column])
    return sorted(rows, key=lambda r: int(r["id"]))


def at_the_source(db: Database, name: str) -> list[dict[str, Any]]:
    """Return the rows as PostgreSQL has them."""
    columns = [
        c for (c,) in db.query(f"SELECT attname FROM pg_attribute WHERE attrelid = '{name}'::regclass AND attnum > 0")
    ]
    return [dict(zip(columns, row, strict=True)) for row in db.query(f"SELECT * FROM {name} ORDER BY id")]


def kill(engine: Engine) -> None:
    """End the engine and its processes at once."""
    assert engine.process is not None
    os.killpg(engine.process.pid, signal.SIGKILL)
    engine.process.wait()


def test_every_row_survives_kills(into_bigquery: Engine, bigquery: Emulator, db: Database) -> None:
    """After traffic, two kills, a truncate, keys that change and an added column, both sides have the same rows."""
    db.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, price numeric(12, 2), at timestamptz, doc jsonb,"
        " tags text[], large text)",
        "ALTER TABLE orders ALTER large SET STORAGE EXTERNAL",
        "CREATE TABLE bills (LIKE orders INCLUDING ALL)",
        "INSERT INTO orders SELECT i, 'item ' || i, i / 7.0, '2026-01-01'::timestamptz + i * interval '1 min',"
        " jsonb_build_object('n', i), ARRAY['a', NULL, i::text], repeat('x', 3000) FROM generate_series(1, 2000) i",
        "INSERT INTO bills SELECT * FROM orders WHERE id <= 100",
    )
    engine = into_bigquery
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]))
    stop, turns = threading.Event(), []

    def traffic() -> None:
        while not stop.is_set():
            n = 10_000 + 10 * len(turns)
            db.execute(
                f"INSERT INTO orders (id, item, tags, large) VALUES ({n}, 'new', '{{}}', repeat('y', 3000))",
                f"UPDATE orders SET item = item || '.', doc = NULL WHERE id % 97 = {len(turns) % 97}",
                f"UPDATE orders SET id = id + 1 WHERE id = {n}",
                f"DELETE FROM orders WHERE id = {len(turns) + 1}",
                f"UPDATE bills SET price = {len(turns)} WHERE id % 10 = {len(turns) % 10}",
            )
            turns.append(n)
            stop.wait(0.05)

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        for _ in range(2):
            before = len(turns)
            engine.wait_for(lambda p, before=before: len(turns) > before + 40)
            kill(engine)
            engine.start()
        engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]) and bool(p["tables"]))
        db.execute(
            "ALTER TABLE orders ADD COLUMN more int DEFAULT 7",
            "TRUNCATE bills",
            "INSERT INTO bills SELECT id, item, price, at, doc, tags, large FROM orders WHERE id < 500",
        )
        before = len(turns)
        engine.wait_for(lambda p: len(turns) > before + 20)
    finally:
        stop.set()
        thread.join()
    engine.wait_caught_up()
    assert in_bigquery(bigquery, db, "orders") == at_the_source(db, "orders")
    assert in_bigquery(bigquery, db, "bills") == at_the_source(db, "bills")
    assert in_bigquery(bigquery, db, "orders")[0]["more"] == 7
    assert isinstance(in_bigquery(bigquery, db, "orders")[0]["price"], Decimal)
    assert "Spark" not in engine.log
    assert engine.stop() == 0


def test_a_resync_under_traffic(into_bigquery: Engine, bigquery: Emulator, db: Database) -> None:
    """A table is readable while it is copied again, and both sides have the same rows afterwards."""
    db.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, doc jsonb, tags text[])",
        "INSERT INTO orders SELECT i, 'item ' || i FROM generate_series(1, 2000) i",
    )
    engine = into_bigquery
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    stop = threading.Event()
    counts: list[int] = []

    def traffic() -> None:
        n = 0
        while not stop.wait(0.02):
            n += 1
            db.execute(
                f"INSERT INTO orders VALUES ({5000 + n}, 'new')", f"DELETE FROM orders WHERE id = {5000 + n - 5}"
            )

    thread = threading.Thread(target=traffic)
    thread.start()
    try:
        engine.levada("resync", *engine.options(), "orders")
        while "the shadow copy replaced the table" not in engine.log:
            counts.append(len(in_bigquery(bigquery, db, "orders")))
            engine.wait_for(lambda p: True)
    finally:
        stop.set()
        thread.join()
    engine.wait_caught_up()
    # The emulator shows the middle of a transaction to readers, so that a count may be anything.
    assert counts
    assert "the shadow copy replaced the table" in engine.log
    assert in_bigquery(bigquery, db, "orders") == at_the_source(db, "orders")
    assert engine.stop() == 0
