"""Copies that are interrupted and continued with the lake and the staging area in an object store, or a new server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.equality import table_differences
from tests.rigs.movers import INTERRUPTED, Movers, configure, create_items, finished_before, items, run_until_killed
from tests.servers.s3 import BUCKET, object_store

from levada.local.postgres import temporary_postgres

__all__ = ["items"]


def copy_of(progress: dict[str, Any]) -> dict[str, Any]:
    """Return the progress of the copy of the only table, empty without one."""
    return (progress["tables"] and progress["tables"][0]["copy"]) or {}


def test_in_an_object_store(engine: Engine, items: Database, tmp_path: Path) -> None:
    """kill -9 with the lake and the staging area on S3: the copy continues, is equal, and leaves no description."""
    warehouse, folder = f"s3://{BUCKET}/lake", tmp_path / "s3"
    folder.mkdir()
    with object_store(folder) as s3:
        engine.write_secret("lake", {"jdbc.user": "postgres", **s3.keys})
        uri = f"jdbc:postgresql://127.0.0.1:{items.server.port}/{items.name}"
        catalog = {"type": "Jdbc", "uri": uri, "warehouse": warehouse, "properties": s3.place}
        configure(engine, catalog=catalog, credentialsSecretRef={"name": "lake"})
        engine.spec |= {
            "staging": {"uri": f"s3://{BUCKET}/staging"},
            # Not the catalog's own, which are in the same database.
            "tables": {"include": [{"schema": "public", "name": "items"}]},
        }
        engine.write_manifest()
        with Movers(items):
            for _ in range(3):
                run_until_killed(engine, "range")
            run_until_killed(engine, "changes")
            engine.start(*INTERRUPTED)
            engine.wait_for(lambda p: p["ready"])
        assert [n for n, _ in finished_before(engine)][:2] == [1, 2]
        assert "begins again" not in engine.log
        engine.wait_caught_up()
        uri = f"postgresql+psycopg2://postgres@127.0.0.1:{items.server.port}/{items.name}"
        properties = {**s3.properties, "uri": uri, "warehouse": warehouse, "init_catalog_tables": "false"}
        lake = SqlCatalog("levada_shop", **properties).load_table("shop_public.items").scan().to_arrow()
        with items.connect() as connection:
            assert not table_differences(connection, lake, "public", "items")
        assert not [p for p in folder.rglob("*.json") if re.fullmatch(r"[0-9a-f]{16}-\d+\.json", p.name)]
        engine.kill()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[tuple[Database, Engine]]:
    """A table on a server of the test's own, and an engine over it."""
    with temporary_postgres() as server:
        db = Database(server, "postgres")
        create_items(db)
        engine = Engine(db, tmp_path)
        configure(engine)
        try:
            yield db, engine
        finally:
            engine.kill()


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_source_that_restarts_under_the_copy(own: tuple[Database, Engine], mode: str) -> None:
    """PostgreSQL ends or crashes in the middle of a copy: it begins again, with the reason, and is equal."""
    db, engine = own
    with Movers(db):
        run_until_killed(engine, "range")
    engine.start(*INTERRUPTED)
    engine.wait_for(lambda p: copy_of(p).get("resumable") and copy_of(p)["rangesFinished"] >= 1)
    db.server.stop(mode)
    db.server.start()
    with Movers(db):
        engine.wait_for(lambda p: p["ready"])
    engine.wait_caught_up()
    engine.assert_equal("items")


def test_a_source_that_restarted_between_two_attempts(own: tuple[Database, Engine]) -> None:
    """The status says that the copy does not continue, and why."""
    db, engine = own
    run_until_killed(engine, "range")
    db.server.stop()
    db.server.start()
    engine.start(*INTERRUPTED)
    seen = engine.wait_for(lambda p: copy_of(p).get("note", ""))
    assert "begins again: the source was restarted" in copy_of(seen)["note"]
    engine.wait_for(lambda p: p["ready"])
    assert not finished_before(engine)
    engine.wait_caught_up()
    engine.assert_equal("items")
