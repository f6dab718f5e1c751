"""The lake's keys change while the engine runs: in its Secret and at the object store, one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.equality import table_differences
from tests.servers.ports import free_port
from tests.servers.s3 import BUCKET, ObjectStore, object_store

WAREHOUSE = f"s3://{BUCKET}/lake"


@contextmanager
def store(folder: Path, port: int, secret: str) -> Iterator[ObjectStore]:
    """The object store while it answers to one secret key, always in the same place."""
    folder.mkdir(exist_ok=True)
    with object_store(folder, port=port, secret=secret) as running:
        yield running


def begin(db: Database, engine: Engine, s3: ObjectStore, state: dict[str, Any]) -> None:
    """Start an engine whose lake and staging area are in the store, and wait until it streams."""
    db.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 1000)")
    engine.write_secret("lake", {"jdbc.user": "postgres", **s3.keys})
    uri = f"jdbc:postgresql://127.0.0.1:{db.server.port}/{db.name}"
    catalog = {"type": "Jdbc", "uri": uri, "warehouse": WAREHOUSE, "properties": s3.place}
    engine.spec = {
        "destination": {
            "iceberg": {"namespace": "shop_{schema}", "catalog": catalog, "credentialsSecretRef": {"name": "lake"}}
        },
        "staging": {"uri": f"s3://{BUCKET}/staging"},
        # Not the catalog's own, which are in the same database.
        "tables": {"include": [{"schema": "public", "name": "item"}]},
        "store": state,
    }
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()


def assert_equal(db: Database, s3: ObjectStore) -> None:
    """Compare the table with the lake, as the key of now reads it."""
    uri = f"postgresql+psycopg2://postgres@127.0.0.1:{db.server.port}/{db.name}"
    properties = {**s3.properties, "uri": uri, "warehouse": WAREHOUSE, "init_catalog_tables": "false"}
    lake = SqlCatalog("levada_shop", **properties).load_table("shop_public.item").scan().to_arrow()
    with db.connect() as connection:
        assert not table_differences(connection, lake, "public", "item")


@pytest.mark.parametrize("state", [{"postgres": {}}, {"memory": {}}], ids=["postgres", "memory"])
def test_a_new_key_is_taken_up(db: Database, engine: Engine, tmp_path: Path, state: dict[str, Any]) -> None:
    """The process goes on with the new key, whichever of the two places has it first. No table is copied again."""
    folder, port = tmp_path / "s3", free_port()
    with store(folder, port, "first") as s3:
        begin(db, engine, s3, state)
    with store(folder, port, "second") as s3:
        db.execute("INSERT INTO item VALUES (2001)")
        engine.wait_for(lambda p: p["capture"]["error"] is not None or any(t["error"] for t in p["tables"]))
        engine.write_secret("lake", s3.keys)
        engine.wait_caught_up()
        assert_equal(db, s3)
    copied = engine.log.count("copied")
    with store(folder, port, "second") as s3:
        engine.wait_for(lambda p: p["capture"]["error"] is None and p["ready"])
        engine.write_secret("lake", {"s3.secret-access-key": "third"})
        # Refused for now, it tries again.
        engine.wait_log("cannot restart the pipeline yet")
    with store(folder, port, "third") as s3:
        db.execute("DELETE FROM item WHERE id < 500")
        engine.wait_caught_up()
        assert_equal(db, s3)
    assert engine.log.count("copied") == copied
    assert engine.stop() == 0
