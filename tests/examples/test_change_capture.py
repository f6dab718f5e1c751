"""The example of change capture, as a process that is killed in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.cluster.kubectl import eventually
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S

EXAMPLE = Path(__file__).parents[2] / "examples" / "change-capture" / "change_capture.py"


@contextmanager
def running(db: Database, path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the example for the table stock."""
    words = ["127.0.0.1", str(db.server.port), db.name, str(path), "public.stock"]
    with subprocess.Popen([sys.executable, EXAMPLE, *words], env={**os.environ, "PGUSER": "postgres"}) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(path: Path) -> list[dict[str, Any]]:
    """Return the documents of the file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def stock(path: Path) -> dict[str, int]:
    """Return the table that the lines make, by key."""
    rows: dict[str, int] = {}
    for change in lines(path):
        match change["op"]:
            case "insert" | "update":
                rows.pop(change.get("old", {}).get("sku"), None)
                rows[change["row"]["sku"]] = change["row"]["pieces"]
            case "delete":
                rows.pop(change["old"]["sku"], None)
            case "truncate":
                rows.clear()
    return rows


@pytest.mark.nightly
def test_every_change_is_in_the_file_also_after_a_kill(db: Database, tmp_path: Path) -> None:
    """The file has the rows, then each change, including those made while no process ran.

    SIGTERM ends it with exit code 0.
    """
    path = tmp_path / "changes.jsonl"
    db.execute("CREATE TABLE stock (sku text PRIMARY KEY, pieces int)")
    db.execute("INSERT INTO stock SELECT 's' || i, i FROM generate_series(1, 2500) i")
    with running(db, path) as process:
        eventually(path.with_suffix(".snapshot").exists)
        assert stock(path) == {f"s{i}": i for i in range(1, 2501)}
        db.execute("UPDATE stock SET pieces = 0 WHERE sku = 's1'")
        eventually(lambda: stock(path)["s1"] == 0)
        process.kill()
    db.execute("UPDATE stock SET sku = 'moved' WHERE sku = 's2'", "DELETE FROM stock WHERE pieces > 10")
    with running(db, path) as process:
        eventually(lambda: stock(path) == {"s1": 0, "moved": 2, **{f"s{i}": i for i in range(3, 11)}})
        db.execute("TRUNCATE stock", "INSERT INTO stock VALUES ('new', 1)")
        eventually(lambda: stock(path) == {"new": 1})
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
    places = [(change["lsn"], change["ordinal"]) for change in lines(path)[2500:]]
    assert len(set(places)) == 2494
