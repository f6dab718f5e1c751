"""`levada verify` as a user runs it: with a running engine, without one, and with one elsewhere."""

from __future__ import annotations

import json
import random
import threading
import time

import pytest
from psycopg import sql
from pyspark.sql import SparkSession
from tests.rigs.engine import Engine, engine

from levada.values import QualifiedTable

__all__ = ["engine"]


def test_tables_of_any_name(engine: Engine) -> None:
    """A table is compared whatever its name is, by its own name and with all others."""
    names = ("Up Per", "a.b", 'qu"ote', "ünï", "it's", "-o", "t" * 63)
    with engine.db.connect() as connection:
        for name in names:
            table = sql.Identifier(name)
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(table))
            connection.execute(sql.SQL("INSERT INTO {} VALUES (1), (2)").format(table))
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up(900)
    found = json.loads(engine.levada("verify", *engine.options(), "-o", "json").stdout)["tables"]
    assert {t["table"] for t in found if t.get("equal")} == {f"public.{name}" for name in names}, found
    chosen = [word for name in names for word in ("--table", QualifiedTable("public", name).quoted)]
    again = engine.levada("verify", *engine.options(), *chosen)
    assert again.stdout.count(": equal at ") == len(names), again.stdout


def test_verify_finds_and_repairs(engine: Engine, spark: SparkSession) -> None:
    """Exit code 0 for equal tables, 6 for different ones, 0 after a repair. It works with and without an engine."""
    engine.db.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text)",
        "INSERT INTO orders SELECT g, 'secret ' || g FROM generate_series(1, 500) g",
        "CREATE TABLE events (at timestamptz, item text)",
        "ALTER TABLE events REPLICA IDENTITY FULL",
        "INSERT INTO events SELECT now(), 'e' FROM generate_series(1, 50)",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    command = ["verify", *engine.options()]
    equal = engine.levada(*command)
    assert "public.orders: equal at " in equal.stdout
    assert "public.events: equal at " in equal.stdout

    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
        spark.conf.set(f"spark.sql.catalog.theirs{key}", value)
    spark.conf.set("spark.sql.catalog.theirs.warehouse", f"file://{engine.warehouse}")
    spark.sql("UPDATE theirs.shop_public.orders SET item = 'theirs' WHERE id = 3")
    different = engine.levada(*command, "--table", "orders", check=False)
    assert different.returncode == 6, different.stdout + different.stderr
    assert "changed id=3: item" in different.stdout
    assert "secret" not in different.stdout
    found = engine.levada(*command, "-o", "json", "--sample", "100%", check=False)
    tables = {t["table"]: t for t in json.loads(found.stdout)["tables"]}
    assert tables["public.orders"]["examples"] == [{"kind": "changed", "key": {"id": "3"}, "columns": ["item"]}]
    assert tables["public.events"]["equal"]
    repaired = engine.levada(*command, "--table", "orders", "--repair")
    assert "repaired: 1 key" in repaired.stdout
    assert engine.levada(*command).returncode == 0
    assert engine.levada(*command, "--table", "nothing", check=False).returncode == 1

    elsewhere = engine.levada(*command, "--work-dir", str(engine.folder / "elsewhere"), check=False)
    assert elsewhere.returncode == 1
    assert "engine_elsewhere" in elsewhere.stderr
    engine.stop()

    engine.db.execute("UPDATE orders SET item = 'while it was stopped' WHERE id < 10")
    assert "public.orders: equal at " in engine.levada(*command).stdout
    engine.assert_equal("orders")
    spark.sql("INSERT INTO theirs.shop_public.events SELECT * FROM theirs.shop_public.events LIMIT 1")
    refused = engine.levada(*command, "--repair", check=False)
    assert refused.returncode == 6, refused.stdout + refused.stderr
    assert "public.events: different at " in refused.stdout
    assert (
        "not repaired: public.events cannot be repaired: its rows have no key [verify_unrepairable]" in refused.stdout
    )


def test_killed_while_it_verifies_and_repairs(engine: Engine, spark: SparkSession) -> None:
    """kill -9 at any moment of a comparison or a repair, with a writer: no tag and no slot is left, and no row is lost.

    A table whose repair did not end is parked until the next one.
    """
    engine.db.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, item text, v int DEFAULT 0)",
        "INSERT INTO orders SELECT g, 'item ' || g FROM generate_series(1, 5000) g",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    for key, value in {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "hadoop",
        ".cache-enabled": "false",
    }.items():
        spark.conf.set(f"spark.sql.catalog.others{key}", value)
    spark.conf.set("spark.sql.catalog.others.warehouse", f"file://{engine.warehouse}")
    r = random.Random(3)
    ended = threading.Event()

    def write() -> None:
        with engine.db.connect() as connection:
            while not ended.wait(0.02):
                connection.execute("UPDATE orders SET v = v + 1 WHERE id % 50 = 3")
                connection.execute("INSERT INTO orders SELECT max(id) + 1, 'new' FROM orders")

    spark.sql("UPDATE others.shop_public.orders SET item = 'theirs' WHERE id % 10 = 3")
    writer = threading.Thread(target=write)
    writer.start()
    try:
        for repair in (True, False, True):
            engine.request_verification("orders", repair=repair)
            time.sleep(r.uniform(0.3, 4))
            engine.kill()
            engine.start()
            engine.wait_for(lambda p: p["state"] == "Running" and bool(p["tables"]))
    finally:
        ended.set()
        writer.join()
    engine.levada("verify", *engine.options(), "--repair")
    engine.wait_caught_up()
    engine.assert_equal("orders")
    assert [r.name for r in spark.sql("SELECT name FROM others.shop_public.orders.refs").collect()] == ["main"]
    assert engine.db.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == [
        (f"levada_{engine.db.name}",)
    ]


@pytest.mark.parametrize("share", ["0%", "101%", "much", "1%x"])
def test_a_sample_is_a_share(engine: Engine, share: str) -> None:
    """Any other text is a usage error."""
    engine.write_manifest()
    assert engine.levada("verify", *engine.options(), "--sample", share, check=False).returncode == 2
