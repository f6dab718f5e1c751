"""The main job, as a user runs it: copy while writers run, stream, survive crashes. Then source and lake are equal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.rigs import shop
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.equality import left_by_copies
from tests.rigs.replica_server import differences, server, target, write_manifest

__all__ = ["server", "target"]

Moment = Callable[[dict[str, Any]], bool]


def test_copy_and_stream_under_writers(engine: Engine, db: Database) -> None:
    """Tables that change while they are copied are equal to their source once the engine has caught up."""
    shop.create(db, 60_000)
    engine.write_manifest()
    with shop.Writers(db) as writers:
        engine.start()
        engine.wait_for(lambda p: p["ready"])
        before = writers.transactions
        engine.wait_for(lambda p: writers.transactions > before + 200)
    engine.wait_caught_up()
    engine.wait_for(lambda p: p["catchUp"] == {"state": "CaughtUp", "secondsLeft": 0.0})
    engine.wait_for(lambda p: all(t["catchUp"]["state"] == "CaughtUp" for t in p["tables"]))
    engine.assert_equal(*shop.TABLES)
    assert engine.stop() == 0, engine.log[-3000:]


def test_killed_again_and_again(engine: Engine, db: Database) -> None:
    """kill -9 in copies, segments, batches and commits, with writers running: nothing lost, nothing twice.

    No finished copy is repeated, and none leaves files that nothing names.
    """
    shop.create(db, 60_000)
    engine.write_manifest()
    kill_again_and_again(engine, db)
    engine.assert_equal(*shop.TABLES)
    for table in shop.TABLES:
        assert not left_by_copies(engine.warehouse, "shop_public", table)


@pytest.mark.nightly
def test_killed_again_and_again_without_spark(engine: Engine, db: Database, target: Database) -> None:
    """The same at a destination without a JVM, which every change runs."""
    shop.create(db, 60_000)
    write_manifest(engine, target, schema="public")
    kill_again_and_again(engine, db)
    assert differences(db, target, *shop.TABLES) == []


def kill_again_and_again(engine: Engine, db: Database) -> None:
    """Kill the engine at moments of each kind, with writers running, and let it catch up afterwards."""
    r = random.Random(7)
    copied: dict[str, str] = {}
    moments: list[tuple[Moment, float]] = [
        (lambda p: any(t["phase"] == "DataSync" for t in p["tables"]), 1.0),
        (lambda p: any(t["phase"] not in ("Init", "DataSync") for t in p["tables"]), 1.0),
        *[(lambda p: p["ready"] and any(t["rowsApplied"] for t in p["tables"]), 3.0)] * 2,
    ]
    with shop.Writers(db, pause_s=0.02):
        for moment, longest_s in moments:
            engine.start()
            engine.wait_for(moment)
            # Then somewhere inside of a copy, a segment, a batch or a commit: chance decides where.
            time.sleep(r.uniform(0, longest_s))
            engine.kill()
            for table, copy in finished_copies(db).items():
                assert copied.setdefault(table, copy) == copy, f"table {table} was copied again"
        engine.start()
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()


def finished_copies(db: Database) -> dict[str, str]:
    """Return the LSN of each table's finished copy. A second copy has a later one."""
    return dict(
        db.query(
            "SELECT table_id::text, phase->>'lsn' FROM levada.documents, json_array_elements(content->'history') AS phase"
            " WHERE kind = 'phases' AND phase->>'phase' = 'FinishedCopy'"
        )
    )
