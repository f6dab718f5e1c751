"""The manifests of the examples under ``levada run``, with the addresses of this machine, read back by each client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table
from tests.conftest import Database
from tests.destinations.bigquery.conftest import server
from tests.scenarios.conftest import engine
from tests.scenarios.engine import Engine
from tests.servers.bigquery import PROJECT, Emulator
from tests.servers.ducklake import DuckLake
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore

from levada.destinations import DestinationContext

__all__ = ["engine", "server"]

EXAMPLES = Path(__file__).parents[2] / "examples"
Row = tuple[int, int, str]


def prepare(
    engine: Engine, name: str, addresses: Mapping[str, Any], secrets: Mapping[str, Mapping[str, str]] | None = None
) -> None:
    """Write the example's own manifest with other addresses, and the Secrets that it names.

    A key of ``addresses`` is the path of a field below ``spec``. A Secret that is not in ``secrets`` is a login.
    """
    manifest, *tables = yaml.safe_load_all((EXAMPLES / name / "pipeline.yaml").read_text())
    source = {"source.host": "127.0.0.1", "source.port": engine.db.server.port, "source.database": engine.db.name}
    for path, value in {**source, **addresses}.items():
        *folders, last = path.split(".")
        section = manifest["spec"]
        for folder in folders:
            section = section[folder]
        section[last] = value
    engine.manifest.write_text(yaml.safe_dump_all([manifest, *tables]))
    for secret in _secrets(manifest["spec"]):
        engine.write_secret(secret, (secrets or {}).get(secret, {"username": "postgres", "password": "unused"}))


def _secrets(section: Any) -> Iterator[str]:
    if isinstance(section, dict):
        for key, value in section.items():
            yield from [value["name"]] if key == "credentialsSecretRef" else _secrets(value)


def run(engine: Engine, read: Callable[[], list[Row]]) -> None:
    """Check and run the manifest. Compare the rows after the copy, and after changes in another run."""
    db = engine.db
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, item text, created_at timestamptz DEFAULT now())",
        "INSERT INTO orders SELECT i, i % 7, 'item ' || i FROM generate_series(1, 100) i",
    )
    query = "SELECT id, customer_id, item FROM orders ORDER BY id"
    engine.levada("check", *engine.options())
    engine.levada("run", *engine.options(), "--until", "caught-up")
    assert read() == db.query(query)
    db.execute(
        "UPDATE orders SET item = 'changed' WHERE id < 10",
        "DELETE FROM orders WHERE id = 10",
        "UPDATE orders SET id = 1000 WHERE id = 11",
    )
    engine.levada("run", *engine.options(), "--until", "caught-up")
    assert read() == db.query(query)
    engine.levada("cleanup", *engine.options(), "--yes")
    assert db.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []


def rows_of(table: Table) -> list[Row]:
    """Return the rows of a table in a lake, in the order of their keys."""
    found = table.scan().to_arrow().select(["id", "customer_id", "item"]).sort_by("id")
    return [tuple(row.values()) for row in found.to_pylist()]


def test_changelog(engine: Engine, db: Database, tmp_path: Path) -> None:
    """The example adds a row for each change, except to the table whose TableSync asks for the last states."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, item text)",
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "INSERT INTO orders VALUES (1, 'first')",
        "INSERT INTO customers VALUES (1, 'a')",
    )
    prepare(engine, "changelog", {"destination.iceberg.catalog.warehouse": f"file://{tmp_path / 'lake'}"})
    engine.levada("run", *engine.options(), "--until", "caught-up")
    db.execute("UPDATE customers SET name = 'b'", "UPDATE orders SET item = 'second'")
    engine.levada("run", *engine.options(), "--until", "caught-up")

    def column(table: str, name: str) -> list[str]:
        rows = StaticTable.from_metadata(f"file://{tmp_path}/lake/history_public/{table}").scan().to_arrow()
        return sorted(rows[name].to_pylist())

    assert column("orders", "item") == ["first", "second"]
    assert column("customers", "name") == ["b"]


def test_s3_jdbc_catalog(engine: Engine, db: Database, s3: ObjectStore) -> None:
    """The example of an object store with a catalog in PostgreSQL, with the keys in the Secret that it names."""
    address, warehouse = f"127.0.0.1:{db.server.port}/{db.name}", f"s3://{BUCKET}/{db.name}"
    addresses: dict[str, Any] = {
        "source.tls": {"mode": "Disable"},
        "destination.iceberg.catalog.uri": f"jdbc:postgresql://{address}",
        "destination.iceberg.catalog.warehouse": warehouse,
        "destination.iceberg.catalog.properties": s3.place,
        "staging.uri": f"{warehouse}-staging",
    }
    prepare(engine, "s3-jdbc-catalog", addresses, {"lake": {"jdbc.user": "postgres", "jdbc.password": "x", **s3.keys}})
    uri = f"postgresql+psycopg2://postgres@{address}"
    properties = {**s3.properties, "uri": uri, "warehouse": warehouse, "init_catalog_tables": "false"}
    run(engine, lambda: rows_of(SqlCatalog("levada_shop", **properties).load_table("shop_public.orders")))


def test_rest_catalog(engine: Engine, db: Database, s3: ObjectStore, tmp_path: Path) -> None:
    """The example of a catalog service, which gives no keys to the files here, so that the Secret has them."""
    with rest_catalog(tmp_path, db, s3, f"s3://{BUCKET}/{db.name}") as uri:
        addresses: dict[str, Any] = {
            "source.tls": {"mode": "Disable"},
            "destination.iceberg.catalog": {"type": "Rest", "uri": uri, "properties": s3.place},
        }
        prepare(engine, "rest-catalog", addresses, {"lake": s3.keys})
        reader = RestCatalog("levada_shop", uri=uri, **s3.properties)
        run(engine, lambda: rows_of(reader.load_table("shop_public.orders")))


def test_postgresql(engine: Engine, db: Database) -> None:
    """The example of PostgreSQL copies and follows a table into another database."""
    name = f"{db.name}_replica"
    db.execute(f"CREATE DATABASE {name}")
    replica = Database(db.server, name)
    try:
        where = {"host": "127.0.0.1", "port": db.server.port, "database": name}
        prepare(engine, "postgresql", {f"destination.postgres.{k}": v for k, v in where.items()})
        run(engine, lambda: replica.query("SELECT id, customer_id, item FROM public.orders ORDER BY id"))
    finally:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_ducklake(engine: Engine, db: Database, tmp_path: Path) -> None:
    """The example of DuckLake is read by DuckDB's extension, with the name that the example has."""
    name = f"{db.name}_lake"
    db.execute(f"CREATE DATABASE {name}")
    lake = DuckLake(Database(db.server, name), tmp_path / "lake", DestinationContext("shop", tmp_path / "unused"))
    lake.options = {"METADATA_SCHEMA": "'ducklake'"}
    try:
        where = {"host": "127.0.0.1", "port": db.server.port, "database": name}
        addresses: dict[str, Any] = {f"destination.ducklake.catalog.{k}": v for k, v in where.items()}
        prepare(engine, "ducklake", {**addresses, "destination.ducklake.dataPath": str(lake.folder)})
        query = "SELECT id, customer_id, item FROM lake.public.orders ORDER BY id"
        run(engine, lambda: [(i, customer, item) for i, customer, item in lake.sql(query)])
    finally:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def test_opensearch(engine: Engine, opensearch: str) -> None:
    """The example of OpenSearch serves a table under its alias."""
    from opensearchpy import OpenSearch

    prepare(engine, "opensearch", {"destination.opensearch.urls": [opensearch]})
    with OpenSearch([opensearch], timeout=60) as client:

        def read() -> list[Row]:
            client.indices.refresh(index="shop-public.orders")
            found = client.search(index="shop-public.orders", body={"size": 1000, "sort": ["id"]})["hits"]["hits"]
            return [(d["_source"]["id"], d["_source"]["customer_id"], d["_source"]["item"]) for d in found]

        try:
            run(engine, read)
        finally:
            client.indices.delete(index="shop-*")


def test_bigquery(engine: Engine, server: Emulator, tmp_path: Path) -> None:
    """The example of BigQuery makes its tables with their layout, and without the cloud's own bucket and login."""
    addresses = {
        "destination.bigquery.project": PROJECT,
        "destination.bigquery.endpoint": server.endpoint,
        "source.tls": {"mode": "Disable"},
        "staging.uri": f"file://{tmp_path / 'staging'}",
    }
    prepare(engine, "bigquery", addresses)
    query = f"SELECT id, customer_id, item FROM `{PROJECT}`.`shop_public`.`orders` ORDER BY id"
    run(engine, lambda: [(int(i), int(customer), item) for i, customer, item in server.sql(query)])
    table = server.call("GET", "/datasets/shop_public/tables/orders")
    assert table["clustering"]["fields"] == ["customer_id"]
    assert table["timePartitioning"]["field"] == "created_at"
