"""The end of an engine whose source is away, with its state in it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.replica_server import differences, server, target, write_manifest

from levada.local.postgres import temporary_postgres

__all__ = ["server", "target"]


@pytest.mark.parametrize("staging", ["durable", "scratch"])
def test_a_stop_does_not_wait_for_a_source_that_is_away(target: Database, tmp_path: Path, staging: str) -> None:
    """An engine that waits for the source and its store ends at a signal with code 0. Its next run loses nothing.

    On scratch staging the slot is moved back before changes that are applied already. Once every table has applied
    them, the store has the evidence that the source still has the same history.
    """
    with temporary_postgres() as started:
        db = Database(started, "postgres")
        db.execute("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a SELECT generate_series(1, 9), 0")
        db.execute("CREATE TABLE still (id int PRIMARY KEY, v int)", "INSERT INTO still VALUES (1, 0)")
        engine = Engine(db, tmp_path)
        if staging == "scratch":
            engine.spec["staging"] = {"scratch": True}
        write_manifest(engine, target)
        engine.start()
        engine.wait_caught_up()
        db.execute("UPDATE a SET v = v + 1", "INSERT INTO a VALUES (100, 1)")
        if staging == "scratch":
            [(end,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
            engine.wait_for(lambda p: lsn(p["capture"]["acknowledgedLsn"]) >= lsn(end))
        started.stop("immediate")
        try:
            engine.wait_for(lambda p: p["store"]["error"] is not None)
            assert engine.stop() == 0
        finally:
            engine.kill()
            started.start()
        db.execute("INSERT INTO a VALUES (101, 1)")
        engine.start()
        engine.wait_caught_up()
        assert differences(db, target, "a") == differences(db, target, "still") == []
        assert engine.stop() == 0
