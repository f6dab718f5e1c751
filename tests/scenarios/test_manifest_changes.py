"""The manifest is changed under `levada run`."""

from __future__ import annotations

from typing import Any

from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S


def table(progress: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a table's progress, empty if there is none."""
    return next((t for t in progress["tables"] if t["name"] == name), {})


def table_sync(name: str, **spec: Any) -> dict[str, Any]:
    """Return a TableSync as it is written."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": name},
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"name": name}, **spec},
    }


def test_manifest_changes(engine: Engine, db: Database) -> None:
    """Hot fields take effect, and others are reported.

    Invalid ones change nothing. Suspend ends the engine with code 0.
    """
    db.execute(
        "CREATE TABLE first (id int PRIMARY KEY, v text)",
        "CREATE TABLE second (id int PRIMARY KEY, v text)",
        "INSERT INTO first SELECT i, 'v' FROM generate_series(1, 100) i",
        "INSERT INTO second SELECT i, 'v' FROM generate_series(1, 100) i",
    )
    engine.spec = {"tables": {"include": [{"schema": "public", "name": "first"}]}}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()

    engine.spec = {"tables": {"include": [{"schema": "public", "name": "*"}]}, "driver": {"mode": "Cluster"}}
    engine.write_manifest(table_sync("first", suspend=True))
    taken = engine.wait_for(lambda p: p["ready"] and bool(table(p, "second")) and table(p, "first")["suspended"])
    assert taken["manifest"]["waiting"] == [{"field": "spec.driver.mode", "change": "Restart"}]
    db.execute("UPDATE first SET v = 'first'", "UPDATE second SET v = 'second'")
    engine.wait_for(lambda p: table(p, "second")["rowsApplied"] == 100 and table(p, "first")["pendingRows"] == 100)
    engine.assert_equal("second")

    engine.manifest.write_text("spec: [")
    wrong = engine.wait_for(lambda p: p["manifest"]["error"] is not None)
    assert wrong["manifest"]["error"]["code"] == "invalid_manifest"
    assert table(wrong, "first")["suspended"]

    engine.spec = {"tables": {"include": [{"schema": "publc", "name": "*"}]}}
    engine.write_manifest(table_sync("first", suspend=True))
    slipped = engine.wait_for(lambda p: (p["manifest"]["error"] or {}).get("code") == "no_tables_selected")
    assert "none of the 2 tables" in slipped["manifest"]["error"]["reason"]
    assert [t["name"] for t in slipped["tables"]] == ["first", "second"]

    engine.spec = {"suspend": False}
    engine.write_manifest(
        table_sync("first", destinationTable="renamed"), table_sync("second", mode="Changelog", resyncNonce=3)
    )
    again = engine.wait_for(
        lambda p: p["ready"] and table(p, "second")["mode"] == "Changelog" and not table(p, "first")["suspended"]
    )
    assert (again["manifest"]["error"], again["manifest"]["waiting"]) == (None, [])
    assert table(again, "second")["resyncNonce"] == 3
    db.execute("INSERT INTO first VALUES (101, 'new')", "DELETE FROM second WHERE id = 1")
    engine.wait_caught_up()
    tables = engine.warehouse / "shop_public"
    engine.wait_for(lambda p: p["ready"] and (tables / "renamed").is_dir() and not (tables / "first").exists())

    engine.spec = {"suspend": True}
    engine.write_manifest()
    assert engine.process is not None
    assert engine.process.wait(LIMIT_S) == 0, engine.log[-3000:]
    assert "suspended (spec.suspend: true)" in engine.log


def test_another_destination_is_refused(engine: Engine, db: Database) -> None:
    """Check and run name the changed field and leave the tables alone, which then go on at the former destination."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    path = engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    former = path.read_text()
    path.write_text(former.replace("/warehouse", "/elsewhere"))
    for command in (["check"], ["plan"], ["run", "--until", "caught-up"]):
        refused = engine.levada(*command, *engine.options(), check=False)
        assert refused.returncode != 0
        words = " ".join((refused.stdout + refused.stderr).split())
        assert "spec.destination.iceberg.catalog.warehouse cannot be changed from" in words
    assert not (engine.folder / "elsewhere").exists()
    path.write_text(former)
    db.execute("INSERT INTO orders VALUES (2)")
    engine.start()
    engine.wait_caught_up()
    engine.assert_equal("orders")
