"""Dedicated copies that are killed, or whose drivers are killed, while the rows move: resumed, and equal in the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import Any

from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.equality import lake_table
from tests.rigs.movers import INTERRUPTED, ROWS, Movers, configure, finished_before, items
from tests.rigs.waiting import LIMIT_S, until

__all__ = ["items"]

SYNC: dict[str, Any] = {
    "apiVersion": "levada.dev/v1alpha1",
    "kind": "TableSync",
    "metadata": {"name": "items"},
    "spec": {
        "pipelineRef": {"name": "shop"},
        "table": {"schema": "public", "name": "items"},
        "copy": {"driver": "Dedicated"},
    },
}


class Jobs:
    """Starts copies as the operator's Jobs do, each with a work folder of its own."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._number = 0

    def start(self, at: str = "") -> subprocess.Popen[bytes]:
        """Start ``levada copy``, which kills itself at that place."""
        self._number += 1
        folder = self._engine.folder / f"job-{self._number}"
        command = ["copy", *self._engine.options(), "--work-dir", str(folder), "--table", "public.items"]
        with open(self._engine.folder / "engine.log", "ab") as log:
            return subprocess.Popen(
                [*INTERRUPTED, sys.executable, "-m", "levada", *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "KILL_AT": at},
                start_new_session=True,
            )


def begin(engine: Engine) -> Jobs:
    """Configure a dedicated copy, and start the driver."""
    configure(engine)
    engine.write_manifest(SYNC)
    start(engine)
    return Jobs(engine)


def start(engine: Engine, at: str = "") -> None:
    """Start the driver, which kills itself at that place."""
    engine.start(*INTERRUPTED, KILL_AT=at, LEVADA_DEDICATED_COPIES="1")


def wait_for_order(engine: Engine, before: str = "") -> str:
    """Wait until the driver has ordered a copy. Return the order, which is another one than ``before``."""

    def order(progress: dict[str, Any]) -> str:
        found = [t["copyOrder"] for t in progress["tables"]]
        return found[0] if found and found[0] != before else ""

    return order(engine.wait_for(lambda p: order(p) != ""))


def recorded(db: Database) -> str:
    """Return the finished ranges that the process of the copy has recorded in its order."""
    found = db.query("SELECT content->>'answer' FROM levada.documents WHERE kind = 'order'")
    return str(found[0][0]) if found else ""


def test_killed_processes(engine: Engine, items: Database) -> None:
    """kill -9 of the copy's process after a range, again and again: no range is read twice. The driver completes it."""
    with Movers(items):
        jobs = begin(engine)
        order = wait_for_order(engine)
        for _ in range(2):
            assert jobs.start("range").wait(LIMIT_S) == -9, engine.log[-4000:]
        ((_, ranges),) = finished_before(engine)
        assert ranges >= 5
        assert jobs.start("range").wait(LIMIT_S) == -9, engine.log[-4000:]
        assert wait_for_order(engine) == order
        assert jobs.start().wait(LIMIT_S) == 0, engine.log[-4000:]
        engine.wait_for(lambda p: p["ready"])
    counts = [n for n, _ in finished_before(engine)]
    assert counts == [1, 2, 3, ranges], "the last one is the driver's"
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_killed_drivers(engine: Engine, items: Database) -> None:
    """kill -9 of the driver during a copy: the process ends, and the next order continues with what it had finished.

    The driver is killed again when it has read the changed rows. It then completes the copy without another process.
    """
    with Movers(items):
        jobs = begin(engine)
        order = wait_for_order(engine)
        # Two ranges while no driver runs, which are in the order alone.
        engine.kill()
        for _ in range(2):
            assert jobs.start("range").wait(LIMIT_S) == -9, engine.log[-4000:]
        left = jobs.start()
        until(lambda: finished_before(engine), lambda found: len(found) == 2)
        os.kill(left.pid, signal.SIGSTOP)
        start(engine)
        second = wait_for_order(engine, order)
        os.kill(left.pid, signal.SIGCONT)
        assert left.wait(LIMIT_S) != -9, "the process of the former order ends by itself"
        assert jobs.start("range").wait(LIMIT_S) == -9, engine.log[-4000:]
        assert finished_before(engine)[-1][0] >= 2
        engine.kill()
        start(engine, "changes")
        wait_for_order(engine, second)
        assert jobs.start().wait(LIMIT_S) == 0, engine.log[-4000:]
        assert engine.process is not None
        assert engine.process.wait(LIMIT_S) == -9, engine.log[-4000:]
        start(engine)
        engine.wait_for(lambda p: p["ready"])
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")
    assert recorded(items) == ""


def test_a_process_that_is_asked_to_end(engine: Engine, items: Database) -> None:
    """SIGTERM, as when a node is drained: the process records its finished ranges, and the next one continues."""
    with Movers(items):
        jobs = begin(engine)
        wait_for_order(engine)
        first = jobs.start()
        until(lambda: recorded(items), lambda found: 'finished\\":{\\"' in found or first.poll() is not None)
        first.send_signal(signal.SIGTERM)
        assert first.wait(LIMIT_S) != 0
        assert jobs.start().wait(LIMIT_S) == 0, engine.log[-4000:]
        engine.wait_for(lambda p: p["ready"])
    assert finished_before(engine)
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_a_resync_that_is_killed(engine: Engine, items: Database) -> None:
    """kill -9 of a resync by another process, and of its driver: it continues, and the table is readable meanwhile."""
    jobs = begin(engine)
    order = wait_for_order(engine)
    assert jobs.start().wait(LIMIT_S) == 0, engine.log[-4000:]
    engine.wait_caught_up()
    engine.levada("resync", *engine.options(), "public.items")
    with Movers(items):
        order = wait_for_order(engine, order)
        for _ in range(2):
            assert jobs.start("range").wait(LIMIT_S) == -9, engine.log[-4000:]
        engine.kill()
        # The table follows the writers during the resync. The shadow copy has the rows of the first ranges alone.
        assert lake_table(engine.warehouse, "shop_public", "items").num_rows > ROWS * 0.9
        start(engine)
        wait_for_order(engine, order)
        assert jobs.start().wait(LIMIT_S) == 0, engine.log[-4000:]
        engine.wait_for(lambda p: p["ready"])
    assert [n for n, _ in finished_before(engine)][:2] == [1, 2]
    assert len(finished_before(engine)) == 3, "the last one is the driver's"
    assert "begins again" not in engine.log
    engine.wait_caught_up()
    engine.assert_equal("items")
    assert not [p for p in engine.warehouse.rglob("*.json") if re.fullmatch(r"[0-9a-f]{16}-\d+\.json", p.name)]
