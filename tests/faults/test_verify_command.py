"""`levada verify` as a user runs it: with a running engine, without one, and with one elsewhere."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from tests.faults.conftest import engine
from tests.scenarios.engine import Engine

__all__ = ["engine"]


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
    assert "repaired: 1 keys" in repaired.stdout
    assert engine.levada(*command).returncode == 0
    assert engine.levada(*command, "--table", "nothing", check=False).returncode == 1

    elsewhere = engine.levada(*command, "--work-dir", str(engine.folder / "elsewhere"), check=False)
    assert elsewhere.returncode == 1
    assert "engine_elsewhere" in elsewhere.stderr
    engine.stop()

    engine.db.execute("UPDATE orders SET item = 'while it was stopped' WHERE id < 10")
    assert "public.orders: equal at " in engine.levada(*command).stdout
    engine.assert_equal("orders")


@pytest.mark.parametrize("share", ["0%", "101%", "much", "1%x"])
def test_a_sample_is_a_share(engine: Engine, share: str) -> None:
    """Any other text is a usage error."""
    engine.write_manifest()
    assert engine.levada("verify", *engine.options(), "--sample", share, check=False).returncode == 2
