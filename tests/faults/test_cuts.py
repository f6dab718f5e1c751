"""Cuts under load and kill -9: money moves between tables, and its sum is the same in each complete cut."""

from __future__ import annotations

import itertools
import json
import random
import shutil
import threading
import time

import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from tests.faults.cut_load import MONEY, TABLES, TOTAL, Load, lake_table, listed
from tests.rigs.engine import Engine, engine
from tests.rigs.verified_shop import Shop, shop

__all__ = ["engine", "shop"]

KILLS = 10


def total_at(engine: Engine, name: str) -> int:
    """Return the sum of all money at a cut."""
    total = 0
    for table, column in MONEY.items():
        read = lake_table(engine, table)
        snapshot = read.snapshot_by_name(name)
        assert snapshot is not None, f"{table} has no tag {name}"
        rows = read.scan(snapshot_id=snapshot.snapshot_id, selected_fields=(column,)).to_arrow()
        total += pc.sum(rows.column(column)).as_py() or 0
    return total


@pytest.fixture
def bank(engine: Engine) -> Engine:
    """An engine over tables with money, which makes a cut every five seconds."""
    engine.db.execute(*TABLES)
    engine.spec = {
        "cuts": {"everySeconds": 5, "keep": 200},
        "destination": {
            "iceberg": {
                "catalog": {"type": "Hadoop", "warehouse": f"file://{engine.warehouse}"},
                "namespace": "shop_{schema}",
                "maintenance": {"compactEverySeconds": 60, "expireSnapshotsAfterHours": 1},
            }
        },
    }
    engine.write_manifest()
    return engine


@pytest.mark.parametrize(("staging", "kills"), [("durable", KILLS), ("scratch", 4)])
def test_every_cut_is_consistent_through_kills(bank: Engine, staging: str, kills: int) -> None:
    """Through ten kills at random moments, with a cut every five seconds, each complete cut has the same sum."""
    chance = random.Random(15)
    if staging == "scratch":
        # Each kill loses the staged changes, so that the stream begins again below what tables have applied.
        bank.spec["staging"] = {"scratch": True}
        bank.write_manifest()
    with Load(bank.db) as load:
        bank.start()
        for _ in range(kills):
            bank.wait_for(lambda p: p["state"] == "Running" and p["cuts"]["kept"] > 0)
            time.sleep(chance.uniform(0.5, 7))
            bank.kill()
            if staging == "scratch":
                shutil.rmtree(bank.folder / ".levada" / "shop" / "staging", ignore_errors=True)
            bank.start()
        kept = bank.wait_for(lambda p: p["state"] == "Running" and p["cuts"]["kept"] > 0)["cuts"]["kept"]
        bank.wait_for(lambda p: p["cuts"]["kept"] >= kept + 2)
        requested = bank.levada("cut", *bank.options(), "mine").stdout
        assert "mine: complete at" in requested
        assert load.count > 1000
    found = listed(bank)
    complete = [cut for cut in found.values() if cut["phase"] == "Complete"]
    assert len(complete) >= kills, found
    assert {(cut["tables"], cut["tagged"]) for cut in complete} == {(len(MONEY), len(MONEY))}, found
    totals = {cut["name"]: total_at(bank, cut["name"]) for cut in complete}
    assert set(totals.values()) == {TOTAL}, totals
    snapshots = {lake_table(bank, "savings").snapshot_by_name(name).snapshot_id for name in totals}  # type: ignore[union-attr] # total_at checks it
    assert len(snapshots) > kills // 2, "the cuts are of few moments, so the test shows little"
    for cut in found.values():
        assert cut["phase"] in ("Complete", "Pending") or cut["leftOut"], cut


def test_cuts_and_verifications(shop: Shop) -> None:
    """Cuts are right while tables are held and compared at other LSNs, and no comparison finds a difference."""
    shop.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, balance bigint)",
        "CREATE TABLE u (id int PRIMARY KEY, balance bigint)",
        "INSERT INTO t SELECT i, 10 FROM generate_series(1, 200) i",
        "INSERT INTO u SELECT i, 10 FROM generate_series(1, 200) i",
    )
    shop.start()
    shop.wait_caught_up()
    pipeline, names = shop.pipeline, [f"cut{n}" for n in range(15)]
    assert pipeline is not None
    stop = threading.Event()

    def move() -> None:
        with shop.db.connect() as connection:
            for n in itertools.count():
                if stop.is_set():
                    return
                with connection.transaction():
                    connection.execute(f"UPDATE t SET balance = balance - 1 WHERE id = {n % 200 + 1}")
                    connection.execute(f"UPDATE u SET balance = balance + 1 WHERE id = {n % 170 + 1}")

    def cut() -> None:
        for name in names:
            pipeline.request_cut(name)
            stop.wait(0.5)

    threads = [threading.Thread(target=work) for work in (move, cut)]
    for thread in threads:
        thread.start()
    try:
        for table in ("t", "u") * 3:
            assert shop.verify(table, repair=True).equal
        threads[1].join()
        shop.wait(lambda p: p.cuts.kept == len(names))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    totals = {
        name: sum(shop.sql(f"SELECT sum(balance) FROM {{t}} VERSION AS OF '{name}'", t)[0][0] for t in ("t", "u"))
        for name in names
    }
    assert set(totals.values()) == {4000}, totals


def test_the_commands(bank: Engine, spark: SparkSession) -> None:
    """A cut is made, listed, read by Spark SQL and dropped by commands, with and without a running engine."""
    bank.spec["cuts"] = {}
    bank.write_manifest()
    bank.start()
    bank.wait_caught_up()
    options = bank.options()
    assert "no cuts" in bank.levada("cuts", *options).stdout
    made = json.loads(bank.levada("cut", *options, "month.end", "-o", "json").stdout)
    assert (made["phase"], made["tagged"]) == ("Complete", len(MONEY))
    bank.db.execute("UPDATE savings SET balance = 0")
    bank.wait_caught_up()
    for key, value in {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop"}.items():
        spark.conf.set(f"spark.sql.catalog.cuts{key}", value)
    spark.conf.set("spark.sql.catalog.cuts.warehouse", f"file://{bank.warehouse}")
    [(total,)] = spark.sql("SELECT sum(balance) FROM cuts.shop_public.savings VERSION AS OF 'month.end'").collect()
    assert total == 10_000
    for arguments, code in [(["month.end"], "cut_exists"), (["levada_x"], "cut_name_invalid")]:
        refused = bank.levada("cut", *options, *arguments, check=False)
        assert (refused.returncode, code in refused.stderr) == (1, True), refused.stderr
    elsewhere = bank.levada("cut", *options, "x", "--work-dir", str(bank.folder / "elsewhere"), check=False)
    assert "engine_elsewhere" in elsewhere.stderr
    bank.stop()
    stored = bank.levada("cuts", *options).stdout
    assert "month.end: complete at" in stored
    assert "This is the list in the store" in stored
    assert "later: complete at" in bank.levada("cut", *options, "later").stdout
    assert total_at(bank, "month.end") == TOTAL
    assert total_at(bank, "later") == TOTAL - 10_000
    bank.levada("cut", *options, "month.end", "--drop")
    assert set(listed(bank)) == {"later"}
    assert {name for name in lake_table(bank, "savings").metadata.refs if name != "main"} == {"later"}
    bank.start()
    while (bank.progress() or {}).get("state") != "Running":  # paced: each look is a check
        assert set(listed(bank)) == {"later"}, "the list is not that of the store while the engine starts"
