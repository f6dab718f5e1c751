"""The four policies of the guard in one run on durable staging, with kill -9 at random moments in between."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from tests.faults.guarded import ROWS, actions, phases, source, suspended, table
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.writers import Writers

TABLES = ("held", "goes", "fresh", "late")


class Load(Writers):
    """Writes small transactions to the table that is never held."""

    def write(self, connection: Any, seed: int) -> None:
        n = self.count + 1000
        connection.execute("INSERT INTO goes VALUES (%s, 'v') ON CONFLICT (id) DO UPDATE SET v = 'again'", [n])
        connection.execute("UPDATE goes SET v = v || '.' WHERE id = %s", [n // 2])
        self.stopped.wait(0.02)


def killed_until(engine: Engine, chance: random.Random, what: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """Kill and restart the engine at random moments until the progress satisfies, and once more then."""
    for _ in range(20):
        engine.wait_for(lambda p: p["state"] == "Running")
        for _ in range(chance.randrange(10, 450)):
            if (progress := engine.progress()) is not None and what(progress):
                engine.kill()
                engine.start()
                return progress
            time.sleep(0.1)  # paced: the engine lives for a random time
        engine.kill()
        engine.start()
    raise AssertionError(f"not reached: {engine.progress()}\n{engine.log[-4000:]}")


@pytest.mark.timeout(2400)
def test_all_policies_under_kills(engine: Engine, db: Database) -> None:
    """Copies pause, a table is parked, and the slot is dropped. Nothing is lost."""
    chance = random.Random(23)
    for name in ("held", "goes"):
        table(db, name, 500)
    engine.spec = {
        "guard": {
            "staged": {"warn": "1Mi", "pauseCopies": "2Mi", "parkSlowest": "12Mi"},
            "retainedWal": {"warn": "40Mi", "releaseSlot": "60Mi"},
        },
        "source": {**source(engine), "slot": {"name": f"levada_{db.name}", "onLost": "Resync"}},
        "tables": {"include": [{"schema": "public", "name": "*"}]},
    }
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    with Load(db):
        engine.write_manifest(suspended("held"))
        engine.wait_for(lambda p: any(t["suspended"] for t in p["tables"]))
        db.execute(ROWS.format("held", 1_000, 6_000))
        killed_until(engine, chance, lambda p: p["guard"]["policy"] == "PauseCopies")
        table(db, "fresh", 3_000)
        killed_until(engine, chance, lambda p: p["guard"]["pausesCopies"] and phases(p).get("fresh") == "Init")
        db.execute(ROWS.format("held", 10_000, 40_000))
        killed_until(engine, chance, lambda p: any("are parked: public.held" in a for a in actions(p)))
        engine.write_manifest()
        db.execute("DELETE FROM held WHERE id % 3 = 0", "UPDATE held SET v = 'u' || id WHERE id % 7 = 0")
        killed_until(engine, chance, lambda p: phases(p) == dict.fromkeys(TABLES[:3], "Ready"))
        table(db, "late", 3_000)
        with db.connect() as opened:
            opened.autocommit = False
            opened.execute("INSERT INTO goes VALUES (-1, 'open')")
            db.execute(ROWS.format("held", 50_000, 110_000), "DELETE FROM held WHERE id > 100_000")
            killed_until(engine, chance, lambda p: any(a.endswith("is dropped") for a in actions(p)))
            db.execute("UPDATE held SET v = 'while there is no slot' WHERE id % 11 = 0", "TRUNCATE late")
            db.execute("INSERT INTO late SELECT i, 'again' FROM generate_series(1, 2000) i")
            time.sleep(chance.uniform(5, 30))
            with contextlib.suppress(psycopg.Error):
                opened.commit()
        killed_until(engine, chance, lambda p: phases(p) == dict.fromkeys(TABLES, "Ready"))
    engine.wait_caught_up(600)
    seen = [a["policy"] for a in engine.wait_for(lambda p: True)["guard"]["actions"]]
    engine.assert_verified(*TABLES)
    engine.assert_equal(*TABLES)
    assert engine.stop() == 0
    print(seen, engine.log.count("page at"))
