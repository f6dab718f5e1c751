"""Many tables, large tables, few descriptors, kills in maintenance: equal at the end."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest
from psycopg import sql
from tests.rigs import shop
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import until

_READS_LARGE = (
    "SELECT pid FROM pg_stat_activity WHERE state = 'active' AND query ~ '^COPY.*large' AND pid <> pg_backend_pid()"
)


def test_three_hundred_tables(engine: Engine, db: Database) -> None:
    """300 tables are copied, streamed and equal, whatever their number does to pools, connections and commits."""
    tables = [f"t{i:03d}" for i in range(300)]
    with db.connect() as connection:
        for name in tables:
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY, v text)").format(sql.Identifier(name)))
            connection.execute(
                sql.SQL("INSERT INTO {} SELECT i, 'v' || i FROM generate_series(1, 20) i").format(sql.Identifier(name))
            )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]), 600)
    with db.connect() as connection:
        for name in tables:
            connection.execute(sql.SQL("UPDATE {} SET v = v || '!' WHERE id <= 5").format(sql.Identifier(name)))
            connection.execute(sql.SQL("DELETE FROM {} WHERE id > 15").format(sql.Identifier(name)))
    engine.wait_caught_up(1100)
    engine.assert_equal(*tables)


def test_a_table_a_hundred_times_larger_than_the_others(engine: Engine, db: Database) -> None:
    """Small tables stream while a large one is copied, and all are equal in the end."""
    small = ["s1", "s2", "s3"]
    with db.connect() as connection:
        connection.execute("CREATE TABLE large (id bigint PRIMARY KEY, v text, w text)")
        connection.execute(
            "INSERT INTO large SELECT i, md5(i::text), repeat(md5((i + 1)::text), 4) FROM generate_series(1, 1500000) i"
        )
        for name in small:
            table = sql.Identifier(name)
            connection.execute(sql.SQL("CREATE TABLE {} (id bigint PRIMARY KEY, v text)").format(table))
            connection.execute(sql.SQL("INSERT INTO {} SELECT i, 'v' FROM generate_series(1, 15000) i").format(table))
    engine.spec = {"copy": {"maxConcurrentTables": 2, "connectionsPerTable": 1}}
    engine.write_manifest()
    engine.start()

    def streams_meanwhile(progress: dict[str, Any]) -> bool:
        phases = {t["name"]: t["phase"] for t in progress["tables"]}
        return phases.get("large") == "DataSync" and all(phases.get(name) == "Ready" for name in small)

    readers: list[tuple[Any, ...]] = []

    def reads_large(progress: dict[str, Any]) -> bool:
        readers.extend(db.query(_READS_LARGE))
        return bool(readers)

    engine.wait_for(reads_large)
    os.kill(readers[0][0], signal.SIGSTOP)  # a fast machine would copy the large table before the small ones
    try:
        engine.wait_for(streams_meanwhile, 600)
    finally:
        os.kill(readers[0][0], signal.SIGCONT)
    db.execute("UPDATE large SET v = 'changed' WHERE id % 1000 = 0", "UPDATE s1 SET v = 'changed' WHERE id % 10 = 0")
    engine.wait_caught_up(900)
    engine.assert_equal("large", *small)


@pytest.mark.parametrize("descriptors", [256, 400])
def test_few_descriptors(engine: Engine, db: Database, descriptors: int) -> None:
    """With too few descriptors the engine ends with an error of its own or works, and nothing is lost."""
    shop.create(db, 6_000)
    engine.write_manifest()
    with shop.Writers(db, pause_s=0.05):
        engine.start("prlimit", f"--nofile={descriptors}:{descriptors}")
        assert engine.process is not None
        until(lambda: not engine.runs() or (engine.progress() or {}).get("ready"), report=lambda: engine.log[-4000:])
        assert "internal_error" not in engine.log, engine.log[-4000:]
        engine.kill()
        engine.start()
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    engine.assert_equal(*shop.TABLES)


def test_killed_in_maintenance(engine: Engine, db: Database) -> None:
    """kill -9 while tables are compacted: nothing lost, nothing twice, and maintenance succeeds afterwards."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t SELECT i, 0 FROM generate_series(1, 20000) i"
    )
    engine.spec = {
        "freshnessSeconds": 1,
        "destination": {
            "iceberg": {
                "catalog": {"type": "Hadoop", "warehouse": f"file://{engine.warehouse}"},
                "namespace": "shop_{schema}",
                "maintenance": {"compactEverySeconds": 1},
            }
        },
    }
    engine.write_manifest()
    for attempt in range(3):
        engine.start()
        for i in range(12):
            db.query("UPDATE t SET v = v + 1 WHERE id %% 12 = %s RETURNING 1", i)
            engine.wait_caught_up()
        engine.wait_for(lambda p: any(t["job"] == "maintain" for t in p["tables"]))
        time.sleep(0.3 * attempt)
        engine.kill()
    engine.start()
    db.execute("UPDATE t SET v = v + 1 WHERE id < 100")
    engine.wait_caught_up()
    engine.wait_log("compacted shop_public.t")
    engine.wait_caught_up()
    engine.assert_equal("t")
