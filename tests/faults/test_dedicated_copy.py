"""``copy.driver: Dedicated``: a table copied by another process, which meets the engine in the store and the lake."""

from __future__ import annotations

import os
import signal
from typing import Any

from tests.rigs.dedicated_copy import copy_job, dedicated
from tests.rigs.engine import Engine
from tests.rigs.shop import Writers, create
from tests.rigs.waiting import LIMIT_S

TABLES = ("customers", "orders", "notes")


def orders(progress: dict[str, Any]) -> str:
    """Return the identifier of the table's ordered copy."""
    found: str = next(t["copyOrder"] for t in progress["tables"] if t["name"] == "orders")
    return found


def wait_until_taken(engine: Engine) -> None:
    """Wait until a process has the order."""
    taken = "SELECT FROM levada.documents WHERE kind = 'order' AND content->>'worker' <> ''"
    engine.until(lambda: engine.db.query(taken))


def test_dedicated_copy_survives_the_death_of_its_process(engine: Engine) -> None:
    """The engine copies the other tables, waits for this one's copy, then streams it, and again after a resync."""
    create(engine.db, 3000)
    engine.spec["tables"] = {"include": [{"schema": "public", "name": name} for name in TABLES]}
    engine.write_manifest(dedicated("orders"))
    with Writers(engine.db, pause_s=0.05):
        engine.start(LEVADA_DEDICATED_COPIES="1")
        engine.wait_for(
            lambda p: (
                bool(p["tables"])
                and orders(p) != ""
                and all(t["phase"] == "Ready" for t in p["tables"] if t["name"] != "orders")
            )
        )
        first = copy_job(engine, 1)
        wait_until_taken(engine)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait(LIMIT_S)
        second = copy_job(engine, 2)
        assert second.wait(LIMIT_S) == 0, engine.log[-4000:]
        engine.wait_for(lambda p: all(t["phase"] == "Ready" for t in p["tables"]))
        engine.levada("resync", *engine.options(), "public.orders")
        engine.wait_for(lambda p: orders(p) != "")
        third = copy_job(engine, 3)
        assert third.wait(LIMIT_S) == 0, engine.log[-4000:]
    engine.wait_caught_up()
    assert engine.db.query("SELECT FROM levada.documents WHERE kind = 'order'") == []
    engine.assert_equal(*TABLES)
    assert engine.levada("copy", *engine.options(), "--table", "public.orders").stdout.endswith(
        "no dedicated copy is ordered\n"
    )
    assert engine.stop() == 0
