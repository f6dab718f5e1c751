"""Tables without a key that are appended, under ``levada run`` with kills."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.replica_server import server, target, write_manifest

from levada.cli.exit_codes import Exit

__all__ = ["server", "target"]


@pytest.mark.nightly
@pytest.mark.parametrize("trigger", ["Managed", "None"])
def test_each_appended_row_is_there_once_after_kills(
    engine: Engine, db: Database, target: Database, trigger: str
) -> None:
    """Rows are appended in the copy and in the stream, while the engine is killed. None is lost or doubled."""
    db.execute(
        "CREATE TABLE visits (id int, page text)", "INSERT INTO visits SELECT i, 'a' FROM generate_series(1, 50000) i"
    )
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "*"}], "keyless": "Append"}
    engine.spec["source"] = {
        "host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"},
        "credentialsSecretRef": {"name": "pg"}, "ddlTrigger": trigger,
    }  # fmt: skip
    write_manifest(engine, target)
    over, last = threading.Event(), [50_000]

    def append() -> None:
        with db.connect() as connection:
            while not over.is_set():
                last[0] += 1
                connection.execute("INSERT INTO visits VALUES (%s, 'b')", [last[0]])
                connection.execute("UPDATE visits SET page = 'c' WHERE id = -1")
                over.wait(0.01)

    writer = threading.Thread(target=append)
    writer.start()
    try:
        engine.start()
        for _ in range(3):
            engine.wait_for(lambda p: any(t["phase"] in ("DataSync", "Ready") for t in p["tables"]))
            engine.kill()
            engine.start()
        engine.wait_for(lambda p: p["tables"] and all(t["phase"] == "Ready" for t in p["tables"]))
    finally:
        over.set()
        writer.join()
    engine.wait_caught_up()
    counts = "SELECT count(*), count(DISTINCT id), max(id) FROM public.visits"
    assert target.query(counts) == [(last[0], last[0], last[0])]
    assert engine.stop() == 0


@pytest.mark.nightly
def test_what_is_not_seen_is_said(engine: Engine, db: Database) -> None:
    """A row that was deleted differs and leaves the table Ready. A row that the destination lacks does not."""
    db.execute("CREATE TABLE visits (id int, page text)", "INSERT INTO visits VALUES (1, 'a'), (1, 'a'), (2, 'b')")
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "*"}], "keyless": "Append"}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()

    def verify(code: Exit) -> dict[str, Any]:
        done = engine.levada("verify", *engine.options(), "-o", "json", check=False)
        assert done.returncode == code, done.stdout + done.stderr
        [found] = json.loads(done.stdout)["tables"]
        return dict(found)

    assert "UPDATEs and DELETEs" in verify(Exit.OK)["notCompared"][-1]
    db.execute("DELETE FROM visits WHERE id = 2")
    assert verify(Exit.DIFFERENT)["differences"] == {"extra": 1}
    assert engine.wait_caught_up()["tables"][0]["phase"] == "Ready"
    db.execute("UPDATE visits SET page = 'changed'")
    assert verify(Exit.DIFFERENT)["differences"]["missing"]
    engine.wait_for(lambda p: (p["tables"][0]["error"] or {}).get("code") == "rows_differ")
    assert engine.stop() == 0
