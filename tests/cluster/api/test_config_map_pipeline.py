"""A pipeline that keeps its state in ConfigMaps, through the command line, against a real API server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cluster.kubectl import Kubectl
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.movers import INTERRUPTED, Movers, configure, create_items, finished_before, run_until_killed

from levada.spec import state_names

pytestmark = pytest.mark.nightly


def test_every_command_works_with_it(db: Database, tmp_path: Path, kubectl: Kubectl) -> None:
    """Run, stop, ask, resync, run again, clean up: nothing is kept in the source, nothing is left in the cluster."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, word text)",
        "INSERT INTO orders SELECT i, 'w' || i FROM generate_series(1, 1000) i",
    )
    engine = Engine(db, tmp_path, {"store": {"configMap": {}}})
    manifest = engine.write_manifest()
    manifest.write_text(
        manifest.read_text().replace("name: shop\n", f"name: shop\n  namespace: {kubectl.namespace}\n", 1)
    )
    engine.levada("check", *engine.options())
    engine.levada("run", *engine.options(), "--until", "caught-up")
    engine.assert_equal("orders")
    status = json.loads(engine.levada("status", *engine.options(), "-o", "json").stdout)
    assert [(t["name"], t["phase"]) for t in status["tables"]] == [("orders", "Ready")]
    engine.levada("resync", *engine.options(), "public.orders")
    assert [key for key in kubectl.get("configmap", "shop-state")["data"] if key.startswith("action.")]
    db.execute("INSERT INTO orders VALUES (0, 'new')", "DELETE FROM orders WHERE id = 1")
    engine.levada("run", *engine.options(), "--until", "caught-up")
    engine.assert_equal("orders")
    assert kubectl.get("configmap", "shop-state")["data"]["epoch"] == "2"
    assert db.query("SELECT tablename FROM pg_tables WHERE schemaname = 'levada'") == []
    engine.levada("cleanup", *engine.options(), "--yes")
    for name in state_names("shop"):
        assert set(kubectl.get("configmap", name)["data"]) == {"epoch", "write"}


def test_an_interrupted_copy_continues(db: Database, tmp_path: Path, kubectl: Kubectl) -> None:
    """kill -9 after a range: the finished ranges are in a ConfigMap, and nothing of them is left in the end."""
    create_items(db)
    engine = Engine(db, tmp_path)
    configure(engine)
    engine.spec["store"] = {"configMap": {}}
    manifest = engine.write_manifest()
    manifest.write_text(
        manifest.read_text().replace("name: shop\n", f"name: shop\n  namespace: {kubectl.namespace}\n", 1)
    )

    def state() -> str:
        return "".join(json.dumps(kubectl.get("configmap", name).get("data")) for name in state_names("shop"))

    try:
        with Movers(db):
            for _ in range(3):
                run_until_killed(engine, "range")
            assert "ranges_" in state()
            engine.start(*INTERRUPTED)
            engine.wait_for(lambda p: p["ready"])
        assert [n for n, _ in finished_before(engine)] == [1, 2, 3]
        engine.wait_caught_up()
        engine.assert_equal("items")
        assert "ranges_" not in state()
        assert engine.stop() == 0
    finally:
        engine.kill()
