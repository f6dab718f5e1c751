"""Tables that are compared after their slot was lost, while the engine is killed at each step of it."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database
from tests.rigs.ducklake import differences, lake, write_manifest
from tests.rigs.engine import Engine
from tests.servers.ducklake import DuckLake

__all__ = ["lake"]

TABLES = ("orders", "items")
STEPS = (
    ("created slot", False),
    ("comparison_pending", False),
    ("wrote the rows of", False),
    ("equals the source at", False),
    ("created slot", True),
    ("wrote the rows of", False),
    ("orders: Ready", False),
)
"""Words of the log after which the engine is killed, and whether the slot is lost before that engine starts."""


def lose_slot(db: Database, turn: int) -> None:
    """Drop the slot of an engine that was killed, and change both tables without one."""
    db.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = current_database()",
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()",
        f"UPDATE orders SET v = 'missed {turn}' WHERE id % 10 = {turn}",  # type: ignore[arg-type]  # a number
        f"UPDATE orders SET id = id + {turn}00000 WHERE id % 50 = 1",  # type: ignore[arg-type]  # a number
        f"DELETE FROM items WHERE id % 20 = {turn}",  # type: ignore[arg-type]  # a number
    )


@pytest.mark.nightly
def test_kills_at_each_step(engine: Engine, db: Database, lake: DuckLake) -> None:
    """At the end each table equals the source, and none was copied again. Changes meanwhile are among its rows."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v text, long text)",
        "ALTER TABLE orders ALTER long SET STORAGE EXTERNAL",
        "INSERT INTO orders SELECT g, 'v', repeat('w', 5000) FROM generate_series(1, 1000) g",
        "CREATE TABLE items (id int, part int, PRIMARY KEY (id, part))",
        "INSERT INTO items SELECT g, g % 3 FROM generate_series(1, 1000) g",
    )
    write_manifest(engine, lake)
    engine.manifest.write_text(engine.manifest.read_text().replace("slot:\n", "slot:\n      onLost: Compare\n", 1))
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    lose_slot(db, 1)
    for turn, (words, loses) in enumerate(STEPS):
        if loses:
            lose_slot(db, 2)
        before = engine.log.count(words)
        engine.start()
        engine.until(lambda before=before, words=words: engine.log.count(words) > before)
        db.execute(
            f"INSERT INTO items VALUES ({5000 + turn}, 0)",  # type: ignore[arg-type]  # a number
            f"UPDATE orders SET v = 'meanwhile' WHERE id = {turn + 3}",  # type: ignore[arg-type]  # a number
        )
        engine.kill()
    engine.start()
    engine.wait_caught_up()
    assert differences(db, lake, *TABLES) == []
    assert engine.log.count("Init -> DataSync") == len(TABLES), "each table was copied once, before the slot was lost"
    assert engine.stop() == 0
