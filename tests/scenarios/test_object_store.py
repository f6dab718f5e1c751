"""The main job with everything on an object store: the lake by S3FileIO, the staging area by Arrow's S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.equality import table_differences
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore


def replicate(db: Database, engine: Engine, iceberg: dict[str, Any], staging: str, reader: Catalog) -> None:
    """Copy two tables, one with the name of an Iceberg metadata table, stream changes with a kill among them, compare."""
    db.execute(
        "CREATE TABLE history (id bigint PRIMARY KEY, item bigint)",
        "INSERT INTO history SELECT i, i FROM generate_series(1, 100) i",
        "CREATE TABLE item (id bigint PRIMARY KEY, name text, price numeric(10, 2), at timestamptz)",
        "INSERT INTO item SELECT i, 'item ' || i, i / 7.0, now() FROM generate_series(1, 20000) i",
    )
    engine.spec = {
        "destination": {"iceberg": {"namespace": "shop_{schema}", **iceberg}},
        "staging": {"uri": staging},
    }
    engine.write_manifest()
    engine.levada("check", *engine.options())
    engine.start()
    engine.wait_caught_up()
    db.execute(
        "UPDATE item SET price = price + 1 WHERE id % 10 = 0",
        "DELETE FROM item WHERE id % 10 = 1",
        "DELETE FROM history WHERE id % 10 = 1",
        "ALTER TABLE item ADD COLUMN note text",
        "INSERT INTO item SELECT i, 'item ' || i, i, now(), 'new' FROM generate_series(30001, 31000) i",
    )
    engine.kill()
    db.execute("UPDATE item SET note = 'after the kill' WHERE id % 100 = 0")
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    for name in ("item", "history"):
        lake = reader.load_table(f"shop_public.{name}")
        assert lake.location().startswith("s3://")
        with db.connect() as connection:
            assert not table_differences(connection, lake.scan().to_arrow(), "public", name)


def test_jdbc_catalog_on_s3(db: Database, engine: Engine, s3: ObjectStore) -> None:
    """Copied, streamed and killed in between: equal. The catalog's Secret has the keys, also to the staging area."""
    address = f"127.0.0.1:{db.server.port}/{db.name}"
    warehouse = f"s3://{BUCKET}/{db.name}"
    engine.write_secret("lake", {"jdbc.user": "postgres", **s3.keys})
    catalog = {"type": "Jdbc", "uri": f"jdbc:postgresql://{address}", "warehouse": warehouse, "properties": s3.place}
    iceberg = {"catalog": catalog, "credentialsSecretRef": {"name": "lake"}}
    uri = f"postgresql+psycopg2://postgres@{address}"
    properties = {**s3.properties, "uri": uri, "warehouse": warehouse, "init_catalog_tables": "false"}
    replicate(db, engine, iceberg, f"{warehouse}-staging", SqlCatalog("levada_shop", **properties))


def test_rest_catalog_on_s3(
    db: Database, engine: Engine, s3: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same where a service keeps the tables, with the keys in the environment, as a pod's own identity is."""
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    with rest_catalog(tmp_path, db, s3, f"s3://{BUCKET}/{db.name}") as uri:
        iceberg = {"catalog": {"type": "Rest", "uri": uri, "properties": s3.place}}
        reader = RestCatalog("levada_shop", uri=uri, **s3.properties)
        replicate(db, engine, iceberg, s3.uri(f"{db.name}-staging"), reader)
