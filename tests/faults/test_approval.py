"""`levada run` with approval Manual: tables are not copied again before someone has asked for it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine

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
        assert "copies 1 table again: public.orders" in refused.stderr
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


def test_small_tables_are_copied_again_without_an_approval(engine: Engine, db: Database) -> None:
    """Up to approvalAbove, by the tables' sizes at the source now, while it runs and at a start. Then a table grows."""
    for name in ("orders", "events"):
        db.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text, w text)", f"INSERT INTO {name} VALUES (1, 'a', 'b')"
        )
    engine.spec = {"approval": "Manual", "approvalAbove": "1Mi"}
    engine.write_manifest()
    engine.start()
    assert all(table["sourceBytes"] for table in engine.wait_caught_up()["tables"])
    engine.write_manifest(orders(columns={"exclude": ["w"]}))
    engine.wait_log("table public.orders is copied again")
    engine.wait_caught_up()
    assert engine.stop() == 0
    engine.write_manifest(orders())
    engine.start()
    engine.wait_log("copied again without an approval, as they are small: public.orders")
    engine.wait_caught_up()
    engine.assert_equal("orders", "events")
    db.execute("INSERT INTO orders SELECT i, repeat(md5(i::text), 20), '' FROM generate_series(2, 5000) i")
    engine.wait_caught_up()
    engine.write_manifest(orders(columns={"exclude": ["w"]}))
    waiting = engine.wait_for(lambda p: p["manifest"]["waiting"])["manifest"]["waiting"]
    assert [field["field"] for field in waiting] == ["TableSync public.orders spec.columns.exclude"]
    # A table without a copy needs no approval for the fields of its first one.
    events = {**orders(mode="Changelog"), "metadata": {"name": "fresh"}}
    events["spec"] = {**events["spec"], "table": {"name": "fresh"}}
    engine.write_manifest(orders(columns={"exclude": ["w"]}), events)
    engine.wait_log("TableSync public.fresh (Hot)")
    db.execute("CREATE TABLE fresh (id int PRIMARY KEY)", "INSERT INTO fresh VALUES (1)")
    progress = engine.wait_for(lambda p: any(t["name"] == "fresh" and t["phase"] == "Ready" for t in p["tables"]))
    assert {t["name"]: t["mode"] for t in progress["tables"]} == {
        "orders": "Upsert",
        "events": "Upsert",
        "fresh": "Changelog",
    }
    assert engine.stop() == 0
    refused = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
    assert "copies 1 table again: public.orders, about" in refused.stderr
    assert "and spec.approvalAbove 1Mi" in refused.stderr
    engine.levada("run", *engine.options(), "--until", "caught-up", "--approve")


def masked(engine: Engine, db: Database) -> dict[str, Any]:
    """Let the engine replicate into PostgreSQL with a key of masks, and return the TableSync that masks a column."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (1, 'a')")
    place: dict[str, Any] = {"host": "127.0.0.1", "port": db.server.port, "database": db.name}
    place |= {"schema": "replica", "tls": {"mode": "Disable"}, "credentialsSecretRef": {"name": "pg"}}
    tables = {
        "include": [{"schema": "public", "name": "orders"}],
        "maskKeySecretRef": {"name": "masks", "key": "key"},
    }
    engine.spec = {"approval": "Manual", "destination": {"postgres": place}, "tables": tables}
    engine.write_secret("masks", {"key": "the former key, long enough"})
    table = orders(columns={"mask": {"v": {"method": "HMAC"}}})
    engine.write_manifest(table)
    return table


@pytest.mark.nightly
def test_another_key_of_masks_waits_for_the_option(engine: Engine, db: Database) -> None:
    """While it runs, also when the manifest or another Secret changes, and at its next start."""
    table = masked(engine, db)
    engine.start()
    engine.wait_caught_up()
    before = db.query("SELECT v FROM replica.orders")
    engine.write_secret("masks", {"key": "another key, also long enough"})
    engine.wait_log("the changed key of masks waits")
    engine.spec["freshnessSeconds"] = 1
    engine.write_manifest(table)
    engine.wait_log("the changed configuration is applied")
    db.execute("INSERT INTO orders VALUES (2, 'a')")
    engine.wait_caught_up()
    assert db.query("SELECT v FROM replica.orders") == before * 2
    engine.write_secret("pg", {"more": "x"})
    engine.wait_log("the destination's Secret has changed")
    db.execute("INSERT INTO orders VALUES (3, 'a')")
    engine.wait_for(lambda _: db.query("SELECT v FROM replica.orders") == before * 3)
    assert engine.stop() == 0
    refused = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
    assert refused.returncode == Exit.PREFLIGHT, refused.stdout + refused.stderr
    assert "[approval_required]" in refused.stderr
    engine.levada("run", *engine.options(), "--until", "caught-up", "--approve")
    after = db.query("SELECT v FROM replica.orders")
    assert len(set(after)) == 1
    assert after[0] != before[0]


@pytest.mark.nightly
def test_another_key_of_masks_waits_in_a_cluster(engine: Engine, db: Database) -> None:
    """For the printed approval, while it runs and at a start. With it, the running engine takes the key up."""
    masked(engine, db)
    pod = {"LEVADA_PIPELINE_UID": "0b6c", "LEVADA_NAMESPACE": "data"}
    engine.start(**pod)
    engine.wait_caught_up()
    before = db.query("SELECT v FROM replica.orders")
    engine.write_secret("masks", {"key": "another key, also long enough"})
    waiting = engine.wait_for(lambda p: p["manifest"]["approval"])["manifest"]["approval"]
    assert "Secret masks copies 1 table again: public.orders" in waiting["reason"]
    command, _, digest = waiting["solution"].rpartition("=")
    assert command == "kubectl annotate pipeline shop -n data --overwrite levada.dev/approve"
    engine.write_secret("masks", {"key": "the former key, long enough"})
    engine.wait_for(lambda p: p["manifest"]["approval"] is None)
    engine.write_secret("masks", {"key": "another key, also long enough"})
    engine.wait_for(lambda p: p["manifest"]["approval"])
    assert engine.stop() == 0
    refused = engine.levada("run", *engine.options(), "--until", "caught-up", check=False, **pod)
    assert refused.returncode == Exit.PREFLIGHT, refused.stdout + refused.stderr
    assert waiting["solution"] in refused.stdout + refused.stderr
    engine.write_secret("masks", {"key": "the former key, long enough"})
    engine.start(**pod)
    engine.wait_caught_up()
    assert db.query("SELECT v FROM replica.orders") == before
    engine.write_secret("masks", {"key": "another key, also long enough"})
    engine.wait_for(lambda p: p["manifest"]["approval"])
    approved = engine.manifest.parent / "approved"
    approved.write_text("0" * 16)
    db.execute("INSERT INTO orders VALUES (2, 'a')")
    engine.wait_caught_up()
    assert db.query("SELECT v FROM replica.orders") == before * 2
    approved.write_text(digest)
    engine.wait_log("the destination's Secret has changed")
    engine.wait_for(lambda _: len(after := db.query("SELECT v FROM replica.orders")) == 2 and before[0] not in after)
    assert len(set(db.query("SELECT v FROM replica.orders"))) == 1
