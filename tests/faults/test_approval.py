"""`levada run` with approval Manual: tables are not copied again before someone has asked for it."""

from __future__ import annotations

from typing import Any

from tests.conftest import Database
from tests.scenarios.engine import Engine

from levada.cli.exit_codes import Exit


def orders(**changes: Any) -> dict[str, Any]:
    """Return a TableSync of the table ``orders``."""
    return {
        "apiVersion": "levada.dev/v1alpha1",
        "kind": "TableSync",
        "metadata": {"name": "orders"},
        "spec": {"pipelineRef": {"name": "shop"}, "table": {"name": "orders"}, **changes},
    }


def test_a_changed_manifest_waits_for_the_option(engine: Engine, db: Database) -> None:
    """While it runs, and at its next start. Other changes are taken up, and a requested resync is no question."""
    for name in ("orders", "events"):
        db.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text, w text)", f"INSERT INTO {name} VALUES (1, 'a', 'b')"
        )
    engine.spec = {"approval": "Manual"}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    engine.write_manifest(orders(columns={"exclude": ["w"]}, suspend=True))
    waiting = engine.wait_for(lambda p: p["manifest"]["waiting"])["manifest"]["waiting"]
    assert waiting == [{"field": "TableSync public.orders spec.columns.exclude", "change": "Resync"}]
    engine.wait_for(lambda p: any(t["suspended"] for t in p["tables"]))
    engine.write_manifest(orders(columns={"exclude": ["w"]}, resyncNonce=1))
    engine.wait_log("TableSync public.orders spec.resyncNonce (Resync)")
    engine.wait_log("table public.orders: resynced")
    engine.wait_caught_up()
    engine.assert_equal("orders", "events")
    assert engine.stop() == 0
    for _ in range(2):
        refused = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
        assert refused.returncode == Exit.PREFLIGHT, refused.stdout + refused.stderr
        assert "copies 1 tables again: public.orders" in refused.stderr
        assert "[approval_required]" in refused.stderr
    engine.write_manifest(orders(resyncNonce=1))
    engine.levada("run", *engine.options(), "--until", "caught-up")
    engine.assert_equal("orders", "events")
    engine.spec = {"approval": "Manual", "onUnrepresentable": "Text"}
    engine.write_manifest(orders(resyncNonce=1))
    refused = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
    assert "copies 2 tables again: public.events, public.orders" in refused.stderr
    engine.levada("run", *engine.options(), "--until", "caught-up", "--approve")
    engine.levada("run", *engine.options(), "--until", "caught-up")
    engine.assert_equal("orders", "events")
