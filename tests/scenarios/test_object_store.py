"""The main job with everything on an object store: the lake by S3FileIO, the staging area by Arrow's S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from tests.conftest import Database
from tests.scenarios.engine import Engine
from tests.scenarios.equality import table_differences
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore


@pytest.fixture
def store(s3: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """The object store, and the keys to it in the environment, as a pod has them."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    return s3


def replicate(db: Database, engine: Engine, store: ObjectStore, catalog: dict[str, Any], reader: Catalog) -> None:
    """Copy a table, stream changes with a kill among them, and compare."""
    db.execute(
        "CREATE TABLE item (id bigint PRIMARY KEY, name text, price numeric(10, 2), at timestamptz)",
        "INSERT INTO item SELECT i, 'item ' || i, i / 7.0, now() FROM generate_series(1, 20000) i",
    )
    engine.spec = {
        "destination": {"iceberg": {"catalog": catalog, "namespace": "shop_{schema}"}},
        "staging": {"uri": store.uri(f"{db.name}-staging")},
    }
    engine.write_manifest()
    engine.levada("check", *engine.options())
    engine.start()
    engine.wait_caught_up()
    db.execute(
        "UPDATE item SET price = price + 1 WHERE id % 10 = 0",
        "DELETE FROM item WHERE id % 10 = 1",
        "ALTER TABLE item ADD COLUMN note text",
        "INSERT INTO item SELECT i, 'item ' || i, i, now(), 'new' FROM generate_series(30001, 31000) i",
    )
    engine.kill()
    db.execute("UPDATE item SET note = 'after the kill' WHERE id % 100 = 0")
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    lake = reader.load_table("shop_public.item")
    assert lake.location().startswith("s3://")
    with db.connect() as connection:
        assert not table_differences(connection, lake.scan().to_arrow(), "public", "item")


def test_jdbc_catalog_on_s3(db: Database, engine: Engine, store: ObjectStore) -> None:
    """Copied, streamed and killed in between: equal."""
    address = f"127.0.0.1:{db.server.port}/{db.name}"
    warehouse = f"s3://{BUCKET}/{db.name}"
    catalog = {
        "type": "Jdbc",
        "uri": f"jdbc:postgresql://{address}",
        "warehouse": warehouse,
        "properties": {"jdbc.user": "postgres", **store.place},
    }
    uri = f"postgresql+psycopg2://postgres@{address}"
    properties = {**store.properties, "uri": uri, "warehouse": warehouse, "init_catalog_tables": "false"}
    replicate(db, engine, store, catalog, SqlCatalog("levada_shop", **properties))


def test_rest_catalog_on_s3(db: Database, engine: Engine, store: ObjectStore, tmp_path: Path) -> None:
    """The same, where a service keeps the tables: the engine knows no more than its URI and where the store is."""
    with rest_catalog(tmp_path, db, store, f"s3://{BUCKET}/{db.name}") as uri:
        catalog = {"type": "Rest", "uri": uri, "properties": store.place}
        replicate(db, engine, store, catalog, RestCatalog("levada_shop", uri=uri, **store.properties))
