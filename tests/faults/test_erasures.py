"""`levada erase` through the command line: every file is searched for the values of the erased rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clear_values import files_with
from tests.rigs.database import Database
from tests.rigs.engine import Engine

PERSON, OTHER = "zzpersonzz", "zzotherzz"


def people(db: Database) -> None:
    """Create a table with rows of a person, whose key is 7, and of others."""
    db.execute(
        "CREATE TABLE people (id int PRIMARY KEY, email text, note text)",
        f"INSERT INTO people SELECT n, 'm' || n || '@{OTHER}', repeat('x', 50) FROM generate_series(1, 5) n",
        f"INSERT INTO people VALUES (7, 'p@{PERSON}', '{PERSON}')",
        "CREATE TABLE orders (who int, number int, item text, PRIMARY KEY (who, number))",
        f"INSERT INTO orders VALUES (7, 1, '{PERSON}'), (7, 2, '{PERSON}'), (8, 1, '{OTHER}')",
    )


def erase(engine: Engine, *arguments: str, check: bool = True) -> dict[str, Any]:
    """Run the command without a question, and return its result or its error."""
    command, table, *rest = ["erase", *arguments]
    done = engine.levada(command, *engine.options(), table, *rest, "--yes", "-o", "json", check=check)
    return json.loads(done.stdout) if done.returncode == 0 else {"error": done.stderr}


def places(engine: Engine, text: str = PERSON) -> list[str]:
    """Return all files of the engine that have a text: the lake, staged changes, caches and logs."""
    return files_with(engine.folder, text.encode())


def test_a_person_is_erased_while_the_engine_runs(engine: Engine, db: Database) -> None:
    """Of a deleted person nothing is left: not in snapshots, manifests, staged changes, caches or logs."""
    people(db)
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    db.execute(f"UPDATE people SET note = '{PERSON} again' WHERE id = 7")
    engine.wait_caught_up()
    assert places(engine), "the search finds nothing, so the test shows nothing"
    refused = erase(engine, "people", "7", check=False)["error"]
    assert "erase_at_source" in refused
    assert places(engine)
    db.execute("DELETE FROM people WHERE id = 7", "DELETE FROM orders WHERE who = 7")
    shown = engine.levada("erase", *engine.options(), "people", "7", "--dry-run").stdout
    assert "former state" in shown
    found = erase(engine, "people", "7")
    assert (found["keys"], found["atSource"]) == (1, 0)
    assert found["states"] > 0
    keys = engine.folder / "keys.jsonl"
    keys.write_text('{"who": 7, "number": 1}\n{"number": "2", "who": 7}\n{"who": 9, "number": 9}\n')
    assert erase(engine, "orders", "--file", str(keys))["keys"] == 3
    assert not any("segment" in place["where"] for place in found["remaining"])
    assert places(engine) == []
    assert places(engine, OTHER)
    db.execute(f"INSERT INTO people VALUES (7, 'another@{OTHER}', NULL)", "DELETE FROM people WHERE id = 3")
    engine.wait_caught_up()
    engine.assert_verified("people", "orders")
    assert engine.stop() == 0
    db.execute("DELETE FROM people WHERE id = 7")
    # No engine runs, so the command runs one, which applies what happened meanwhile.
    assert erase(engine, "people", "7")["rows"] == 0
    assert erase(engine, "people", "7")["states"] == 0
    assert places(engine, f"another@{OTHER}") == []


def test_what_is_refused(engine: Engine, db: Database, tmp_path: Path) -> None:
    """Wrong keys, tables without a key and unknown tables have an error without a value, and nothing is removed."""
    people(db)
    db.execute("CREATE TABLE events (what text)", f"INSERT INTO events VALUES ('{PERSON}')")
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: any(t["phase"] == "Ready" for t in p["tables"]))
    engine.until(lambda: places(engine))
    for arguments, code in (
        (("people", "no-number-at-all"), "erase_key_invalid"),
        (("people", '{"id": 7, "email": "x"}'), "erase_key_invalid"),
        (("orders", "7"), "erase_key_invalid"),
        (("nothing", "7"), "unknown_table"),
    ):
        refused = erase(engine, *arguments, check=False)["error"]
        assert code in refused
        assert "no-number-at-all" not in refused
    assert "no-number-at-all" not in engine.log
    found = erase(engine, "people", "99")
    assert (found["rows"], found["files"], found["states"]) == (0, 0, 0)
    anyway = erase(engine, "people", "7", "--anyway")
    assert (anyway["rows"], anyway["atSource"]) == (1, 1)


pytestmark = pytest.mark.timeout(600)
