"""`levada erase` through the command line: every file is searched for the values of the erased rows."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.clear_values import files_with
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.servers.ducklake import DuckLake

from levada.destinations import DestinationContext
from levada.local.postgres import temporary_postgres
from levada.runtime.host.engine_api import ERASURES, EngineApi, EngineWork

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


def listed_cuts(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the cuts by name."""
    done = engine.levada("cuts", *engine.options(), "-o", "json")
    return {cut["name"]: cut for cut in json.loads(done.stdout)["cuts"]}


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
    engine.levada("cut", *engine.options(), "noon")
    db.execute("DELETE FROM people WHERE id = 7", "DELETE FROM orders WHERE who = 7")
    kept = erase(engine, "people", "7", check=False)["error"]
    assert "erase_kept_by_cuts" in kept
    shown = engine.levada("erase", *engine.options(), "people", "7", "--dry-run").stdout
    assert "former state" in shown
    found = erase(engine, "people", "7", "--cuts")
    assert found["cuts"] == ["noon"]
    assert (found["keys"], found["atSource"]) == (1, 0)
    assert found["states"] > 0
    keys = engine.folder / "keys.jsonl"
    keys.write_text('{"who": 7, "number": 1}\n{"number": "2", "who": 7}\n{"who": 9, "number": 9}\n')
    assert erase(engine, "orders", "--file", str(keys), "--cuts")["keys"] == 3
    cuts = engine.until(lambda: listed_cuts(engine), lambda found: found["noon"]["phase"] == "Incomplete")
    assert all("its tag is gone" in why for why in cuts["noon"]["leftOut"])
    # It was made before the rows came that are erased below.
    engine.levada("cut", *engine.options(), "later")
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


@pytest.mark.nightly
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["iceberg", "ducklake"])
def test_kills(engine: Engine, db: Database, ducklake: DuckLake, kind: str) -> None:
    """After kills of the engine at any step, the table equals the source, and the same command erases the rest."""
    people(db)
    db.execute("DELETE FROM orders WHERE who = 7")
    db.execute("INSERT INTO people SELECT n, 'm' || n, repeat(md5(n::text), 4) FROM generate_series(1000, 60000) n")
    if kind == "ducklake":
        engine.write_secret("lake", {"username": "postgres", "password": "unused"})
        engine.spec["destination"] = {"ducklake": ducklake.settings(credentialsSecretRef={"name": "lake"})}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    for number in range(6):
        db.execute(f"INSERT INTO people VALUES (7, 'p@{PERSON}', '{PERSON}') ON CONFLICT DO NOTHING")
        engine.wait_caught_up()
        db.execute(
            "DELETE FROM people WHERE id = 7",
            f"INSERT INTO people VALUES ({100 + number}, 'm', NULL)",
            f"UPDATE people SET note = 'changed' WHERE id % 1000 = {number}",
        )
        client = EngineWork(EngineApi(f"http://127.0.0.1:{engine.port}", {}), ERASURES)
        made = client.start({"table": '"public"."people"', "keys": ["7"]})
        engine.until(partial(client.state, made), lambda s: s["finished"] or s["step"] == "removing the rows")
        # A different moment in each round. Whatever it is, the promise is the same.
        time.sleep(number * 0.15)
        engine.kill()
        engine.start()
        engine.wait_caught_up()
        engine.until(lambda: erase(engine, "people", "7"), lambda found: "error" not in found)
        assert files_with(engine.folder, PERSON.encode()) == []
        assert files_with(ducklake.folder, PERSON.encode()) == []
        if kind == "iceberg":
            engine.assert_verified("people")
        else:
            assert ducklake.sql("SELECT count(*), sum(id) FROM shop_public.people") == db.query(
                "SELECT count(*), sum(id) FROM people"
            )


@pytest.fixture
def ducklake(tmp_path: Path) -> Iterator[DuckLake]:
    """A server of its own for the catalog."""
    with temporary_postgres() as server:
        context = DestinationContext("shop", tmp_path / "unused")
        yield DuckLake(Database(server, "postgres"), tmp_path / "ducklake", context)


pytestmark = pytest.mark.timeout(600)
