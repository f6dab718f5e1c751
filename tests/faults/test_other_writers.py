"""Another tool works on the lake's tables while the engine runs, and while it is stopped."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession
from tests.rigs.database import Database
from tests.rigs.engine import Engine

QUIET = ("quiet", "appended", "rolled", "dropped", "damaged")
TABLES = (*QUIET, "busy")
EXPIRE = (
    "CALL lake.system.expire_snapshots(table => {t}, older_than => timestamp '2999-01-01 00:00:00', retain_last => 1)"
)


def tables(progress: dict[str, Any]) -> dict[str, str]:
    """Return the error code of each table, its phase where it has none."""
    return {t["name"]: t["error"]["code"] if t["error"] else t["phase"] for t in progress["tables"]}


def other_tool(spark: SparkSession, engine: Engine) -> None:
    """Give the session a catalog of its own over the engine's warehouse."""
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
    spark.conf.set("spark.sql.catalog.lake.warehouse", f"file://{engine.warehouse}")
    spark.conf.set("spark.sql.catalog.lake.cache-enabled", "false")


def maintain(spark: SparkSession, table: str) -> None:
    """Compact the table and keep one snapshot, as a nightly job does."""
    name = f"'shop_public.{table}'"
    spark.sql(f"CALL lake.system.rewrite_data_files(table => {name}, options => map('rewrite-all', 'true'))")
    spark.sql(f"CALL lake.system.rewrite_manifests({name})")
    spark.sql(EXPIRE.format(t=name))


def test_other_tools_on_the_tables(db: Database, engine: Engine, spark: SparkSession) -> None:
    """Maintenance is followed. A change of rows parks its table alone until a resync, also without batches."""
    for name in TABLES:
        db.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT i, 'v' || i FROM generate_series(1, 500) i",
        )
    engine.write_manifest()
    other_tool(spark, engine)
    engine.start()
    engine.wait_caught_up()
    for turn in range(2):
        db.execute(*(f"UPDATE {name} SET v = 'turn {turn}' WHERE id % 7 = {turn}" for name in TABLES))
        engine.wait_caught_up()
    first = spark.sql("SELECT snapshot_id FROM lake.shop_public.rolled.snapshots ORDER BY committed_at").first()
    assert first is not None

    maintain(spark, "quiet")
    maintain(spark, "busy")
    spark.sql("INSERT INTO lake.shop_public.appended VALUES (1000, 'theirs')")
    spark.sql(f"CALL lake.system.rollback_to_snapshot('shop_public.rolled', {first[0]})")
    maintain(spark, "rolled")
    spark.sql("DROP TABLE lake.shop_public.dropped PURGE")
    db.execute("UPDATE busy SET v = 'after' WHERE id % 3 = 0")
    wanted = {
        "quiet": "Ready",
        "busy": "Ready",
        "appended": "foreign_write",
        "rolled": "table_rolled_back",
        "dropped": "destination_table_missing",
        "damaged": "Ready",
    }
    engine.wait_for(lambda p: tables(p) == wanted)
    for name in ("appended", "rolled", "dropped"):
        engine.levada("resync", *engine.options(), f"public.{name}")
    engine.wait_for(lambda p: set(tables(p).values()) == {"Ready"})
    engine.wait_caught_up()
    engine.assert_equal(*TABLES)
    assert engine.stop() == 0

    maintain(spark, "quiet")
    maintain(spark, "busy")
    spark.sql("DELETE FROM lake.shop_public.appended WHERE id = 3")
    metadata = engine.warehouse / "shop_public" / "damaged" / "metadata"
    file = metadata / f"v{(metadata / 'version-hint.text').read_text()}.metadata.json"
    file.with_name(f".{file.name}.crc").unlink(missing_ok=True)
    file.write_text("{")
    db.execute(*(f"DELETE FROM {name} WHERE id % 11 = 0" for name in TABLES))
    engine.start()
    wanted |= {"appended": "foreign_write", "rolled": "Ready", "dropped": "Ready", "damaged": "table_damaged"}
    engine.wait_for(lambda p: tables(p) == wanted)
    for name in ("appended", "damaged"):
        engine.levada("resync", *engine.options(), f"public.{name}")
    engine.wait_caught_up()
    engine.assert_equal(*TABLES)
    assert engine.stop() == 0
