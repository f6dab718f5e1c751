"""A driver that is paused while another one takes its pipeline over, and then goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.rigs.database import Database
from tests.rigs.engine import Engine, Second
from tests.rigs.waiting import LIMIT_S


def test_a_paused_driver_changes_nothing_after_its_takeover(engine: Engine, db: Database, tmp_path: Path) -> None:
    """It ends with ``stale_epoch``, and drops, stages and writes nothing of what the newer driver has."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "INSERT INTO t SELECT i, 'copied' FROM generate_series(1, 100) i",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    db.execute("CREATE TABLE u AS SELECT i AS id, md5(i::text) AS v FROM generate_series(1, 300000) i")
    db.execute("ALTER TABLE u ADD PRIMARY KEY (id)")
    engine.wait_for(lambda p: any(n["name"] == "u" and n["phase"] == "DataSync" for n in p["tables"]))
    db.execute("INSERT INTO t SELECT i, 'streamed' FROM generate_series(101, 5000) i")
    assert engine.process is not None
    os.killpg(engine.process.pid, signal.SIGSTOP)
    folder = tmp_path / "second"
    folder.mkdir()
    second = Second(engine, folder)
    try:
        second.start()
        # As the server does a minute later by itself.
        db.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
        second.wait_for(lambda p: p["ready"])
        db.execute("UPDATE t SET v = 'changed' WHERE id % 3 = 0", "DELETE FROM u WHERE id % 7 = 0")
        second.wait_caught_up()
        os.killpg(engine.process.pid, signal.SIGCONT)
        assert engine.process.wait(LIMIT_S) != 0
        assert "stale_epoch" in engine.log
        db.execute("INSERT INTO t VALUES (6000, 'last')", "INSERT INTO u VALUES (300001, 'last')")
        second.wait_caught_up()
        engine.assert_equal("t", "u")
        assert second.stop() == 0
        # What is staged is one history, so that the next start is not refused.
        second.levada("run", *second.options(), "--until", "caught-up")
        engine.assert_equal("t", "u")
    finally:
        second.kill()
