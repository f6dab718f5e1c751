"""A small budget of memory under a load of wide rows: capture waits, and nothing is lost."""

from __future__ import annotations

import threading
from typing import Any

from tests.rigs.database import Database
from tests.rigs.engine import Engine

WIDE = (
    "INSERT INTO {} SELECT i, (SELECT string_agg(md5((i * 10000 + j)::text), '') FROM generate_series(1, 3000) j)"
    " FROM generate_series({}, {}) i"
)
"""Rows of about 100 kB that do not compress well."""


def test_wide_rows_in_a_small_budget(engine: Engine, db: Database) -> None:
    """A transaction larger than the budget arrives, and so does the stream while batches hold all of it."""
    for name in "ab":
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
    engine.spec = {"memory": "64Mi"}
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    seen: list[dict[str, Any]] = []
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.05):
            seen.append((engine.progress() or {}).get("memory", {}))

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        db.execute(WIDE.format("a", 1, 2_000))
        for first in range(2_001, 6_001, 200):
            db.execute(WIDE.format("ab"[first % 400 == 1], first, first + 199))
        engine.wait_caught_up(600)
    finally:
        done.set()
        watcher.join()
    engine.assert_equal("a", "b")
    assert any(memory.get("waiting") for memory in seen)
    assert {memory["budgetBytes"] for memory in seen if memory} == {64 << 20}
    idle = engine.wait_for(lambda p: not p["memory"]["usedBytes"])["memory"]
    assert not idle["waiting"]
    assert peak(engine) < 1 << 30


def peak(engine: Engine) -> int:
    """Return the highest memory of the engine's process in bytes, without Spark's JVM. It was seen to be 550 MB."""
    assert engine.process is not None
    with open(f"/proc/{engine.process.pid}/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) << 10
