"""Small tables that are compacted and whose snapshots expire all the time, while their rows and columns change."""

from __future__ import annotations

import sys
from typing import Any

from psycopg import sql
from tests.faults import killed_compaction
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.verify.every_type import COLUMNS, TYPES, create, insert
from tests.writers import Writers

NAMES = ('"', ".", "a", "a.b", " ", "%20", "_change_type", "é" * 31, "list.element", "`")
ROUNDS = (
    ("ALTER TABLE hot ADD COLUMN extra text DEFAULT 'x'", "UPDATE hot SET extra = 'y' WHERE id % 3 = 0"),
    (
        "ALTER TABLE hot DROP COLUMN extra",
        "ALTER TABLE hot ADD COLUMN extra int",
        "ALTER TABLE hot ALTER n TYPE bigint",
    ),
    (
        "ALTER TABLE hot RENAME big TO x",
        "ALTER TABLE hot RENAME note TO big",
        "ALTER TABLE hot RENAME x TO note",
        "ALTER TABLE hot ALTER f TYPE double precision",
        "ALTER TABLE hot ALTER d TYPE numeric(9,2)",
    ),
    ("TRUNCATE hot", "INSERT INTO hot (id, n) SELECT i, i FROM generate_series(1, 200) i ON CONFLICT DO NOTHING"),
)


class Load(Writers):
    """Changes the same rows again and again, with their keys and values in TOAST storage."""

    def write(self, connection: Any, seed: int) -> None:
        n = (self.count * 7 + seed) % 200
        connection.execute("UPDATE hot SET n = n + 1 WHERE id %% 50 = %s", [n % 50])
        connection.execute("UPDATE hot SET id = -id WHERE id = %s", [n])
        connection.execute("DELETE FROM hot WHERE id = %s", [-((n * 3) % 200)])
        connection.execute("INSERT INTO hot (id, n) VALUES (%s, 0) ON CONFLICT DO NOTHING", [(n * 5) % 200])
        connection.execute("UPDATE odd SET a = a + 1 WHERE id = %s", [n])
        connection.execute("INSERT INTO log VALUES (%s, 'x')", [n])
        connection.execute("DELETE FROM log WHERE id = %s", [(n + 100) % 200])
        column = list(COLUMNS)[self.count % len(COLUMNS)]
        _, values, changed = COLUMNS[column]
        for value, row in ((changed, self.count % 30), (values[self.count % 3], self.count % 7)):
            connection.execute(f'UPDATE every SET "{column}" = {value} WHERE id = {1 + row}')
        self.stopped.wait(0.05)


def prepare(db: Database) -> None:
    """Create a table of every type, one of odd names, one whose columns change, and one without a key."""
    columns = [sql.SQL("{} bigint DEFAULT 0").format(sql.Identifier(name)) for name in NAMES]
    statements = (
        *TYPES,
        create("every"),
        *(insert(i, "every") for i in range(1, 40, 4)),
        "CREATE TABLE hot (id int PRIMARY KEY, n int DEFAULT 0, big text, note text, f real, d numeric(5,2))",
        "ALTER TABLE hot ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO hot SELECT i, i, repeat(md5(i::text), 100), 'n', i, i FROM generate_series(1, 199) i",
        "CREATE TABLE log (id int, t text)",
        "ALTER TABLE log REPLICA IDENTITY FULL",
    )
    db.execute(*statements)  # type: ignore[arg-type]  # made of constants
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE TABLE odd (id int PRIMARY KEY, {})").format(sql.SQL(", ").join(columns)))
        connection.execute("INSERT INTO odd SELECT generate_series(0, 199)")


def test_rows_are_right_while_they_are_compacted(engine: Engine, db: Database) -> None:
    """Every type, odd names, keys that move, a changelog, new and renamed columns, TRUNCATE and a resync."""
    prepare(db)
    engine.spec["freshnessSeconds"] = 1
    engine.write_manifest()
    engine.start(sys.executable, "-m", killed_compaction.__name__, EXPIRE="yes")

    def wait_compacted(times: int) -> None:
        done = engine.log.count("compacted shop_public.hot")
        engine.wait_for(lambda _: engine.log.count("compacted shop_public.hot") >= done + times)

    with Load(db):
        wait_compacted(2)
        for statements in ROUNDS:
            db.execute(*statements)
            wait_compacted(2)
            engine.assert_verified("hot")
        engine.levada("resync", *engine.options(), "public.hot")
        engine.wait_log("table public.hot: resynced")
        wait_compacted(1)
    engine.wait_caught_up()
    engine.assert_verified("hot", "every", "odd", "log")
    engine.assert_equal("hot", "odd")
    assert all(f"compacted shop_public.{name}" in engine.log for name in ("every", "odd", "log"))
    assert "snapshots expired" in engine.log
    assert engine.stop() == 0
