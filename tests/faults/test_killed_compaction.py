"""``kill -9`` at each step of the compaction of a small table, while its rows change and get columns."""

from __future__ import annotations

import sys
from typing import Any

from tests.faults import killed_compaction
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S
from tests.writers import Writers


class Load(Writers):
    """Changes rows, their keys and values in TOAST storage, deletes some, and inserts them again."""

    def write(self, connection: Any, seed: int) -> None:
        n = (self.count * 7 + seed) % 300
        connection.execute("UPDATE small SET n = n + 1 WHERE id = %s", [n])
        connection.execute("DELETE FROM small WHERE id = %s", [(n * 3) % 300])
        connection.execute("INSERT INTO small (id) VALUES (%s) ON CONFLICT DO NOTHING", [(n * 5) % 300])
        moved = (n + 11) % 300
        connection.execute(
            "UPDATE small SET id = -id WHERE id = %s AND NOT EXISTS (SELECT FROM small WHERE id = %s)", [moved, -moved]
        )
        self.stopped.wait(0.02)


def test_rows_are_whole_after_each_kill(engine: Engine, db: Database) -> None:
    """The table is equal to the source after kills before and after the commit, with a new and a renamed column."""
    db.execute(
        "CREATE TABLE small (id int PRIMARY KEY, n int DEFAULT 0, big text)",
        "ALTER TABLE small ALTER big SET STORAGE EXTERNAL",
        "INSERT INTO small SELECT i, i, repeat(md5(i::text), 100) FROM generate_series(1, 299) i",
    )
    wrapper = (sys.executable, "-m", killed_compaction.__name__)
    engine.spec["freshnessSeconds"] = 1
    engine.write_manifest()
    changes = iter(("ADD COLUMN extra text DEFAULT 'x'", "RENAME COLUMN big TO large", "ALTER n TYPE bigint"))
    with Load(db):
        for point in killed_compaction.POINTS:
            engine.start(*wrapper, KILL_AT=point)
            assert engine.process is not None
            assert engine.process.wait(LIMIT_S) == -9, f"{point}: {engine.log[-4000:]}"
            if change := next(changes, ""):
                db.execute(f"ALTER TABLE small {change}")
        engine.start(*wrapper)
        engine.wait_for(lambda p: engine.log.count("small_tables: compacted") >= 3)
    engine.wait_caught_up()
    engine.assert_verified("small")
    engine.assert_equal("small")
    assert engine.stop() == 0
