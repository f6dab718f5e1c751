"""DuckLake as a destination under ``levada run``: traffic, kills, DDL and compaction, then equal row by row."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import duckdb
from tests.rigs import shop
from tests.rigs.database import Database
from tests.rigs.ducklake import differences, lake, write_manifest
from tests.rigs.engine import Engine
from tests.servers.ducklake import DuckLake

from levada.destinations import DestinationContext

__all__ = ["lake"]


def compact(lake: DuckLake) -> None:
    """Compact and clean up as a user does. Levada's commits in between may win."""
    with lake.duckdb() as connection:
        for call in (
            "CALL ducklake_merge_adjacent_files('lake')",
            "CALL ducklake_expire_snapshots('lake', older_than => now())",
            "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        ):
            with suppress(duckdb.TransactionException):
                connection.execute(call)


def test_a_catalog_in_the_source_database(engine: Engine, db: Database, tmp_path: Path) -> None:
    """All tables are selected, and those of the catalog are left out. Once nothing is written, no commit is made."""
    lake = DuckLake(db, tmp_path / "lake", DestinationContext("shop", tmp_path / "unused"))
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a'), (2, 'b')")
    engine.spec["tables"] = {"include": [{"schema": "*", "name": "*"}]}
    write_manifest(engine, lake)
    for turn in range(2):
        engine.start()
        engine.wait_caught_up()
        db.execute(f"INSERT INTO orders VALUES ({10 + turn}, 'later')")
        progress = engine.wait_caught_up()
        assert [t["name"] for t in progress["tables"]] == ["orders"]
        snapshots = lake.sql("SELECT count(*) FROM ducklake_snapshots('lake')")
        # Ten times freshnessSeconds of this manifest.
        before = progress["capture"]["receivedLsn"]
        db.execute("SELECT pg_logical_emit_message(true, 'test', repeat('x', 100000))")
        engine.wait_for(lambda p, before=before: p["capture"]["receivedLsn"] != before)  # type: ignore[misc] # bound
        assert lake.sql("SELECT count(*) FROM ducklake_snapshots('lake')") == snapshots
        assert engine.stop() == 0
    assert differences(db, lake, "orders") == []


def test_traffic_kills_and_columns(engine: Engine, db: Database, lake: DuckLake) -> None:
    """After traffic, kill -9, an ADD COLUMN and DuckDB's compaction, every table has the rows of the source."""
    shop.create(db, 60_000)
    write_manifest(engine, lake)
    with shop.Writers(db):
        engine.start()
        engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]))
        for turn in range(3):
            engine.kill()
            engine.start()
            engine.wait_for(lambda p: p["ready"])
            if turn == 1:
                db.execute(
                    "ALTER TABLE orders ADD COLUMN channel text DEFAULT 'web'",
                    "ALTER TABLE products RENAME COLUMN weight TO mass",
                    "ALTER TABLE payments ALTER COLUMN id TYPE bigint",
                )
            engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]))
            compact(lake)
    engine.wait_caught_up()
    assert differences(db, lake, *shop.TABLES) == []
    assert engine.stop() == 0
