"""The READMEs of the examples, with addresses and logins of this machine. Each client reads what they write.

The parts of a manifest on the pages of destinations take the place of an example's, and are run too.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable, Table
from tests.docs.pages import blocks_of, parts_of, run_page
from tests.rigs.database import Database
from tests.rigs.engine import Engine, engine
from tests.rigs.waiting import LIMIT_S
from tests.servers.bigquery import PROJECT, Emulator
from tests.servers.ducklake import DuckLake, extension
from tests.servers.rest_catalog import rest_catalog
from tests.servers.s3 import BUCKET, ObjectStore

from levada.destinations import DestinationContext

__all__ = ["engine"]

pytestmark = pytest.mark.timeout(1800)

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
DOCS = ROOT / "docs"
Row = tuple[int, int, str]
ORDERS = "SELECT id, customer_id, item FROM orders ORDER BY id"


@dataclass
class Example:
    """An example in a folder of its own, as a reader has it who has set the addresses."""

    engine: Engine
    name: str
    adapted: dict[str, str] = field(default_factory=dict)
    """Words in commands of the README, and what takes their place on this machine."""

    @property
    def manifest(self) -> Path:
        return self.engine.folder / "examples" / self.name / "pipeline.yaml"

    def set(self, addresses: Mapping[str, Any], page: str = "", part: int = 0) -> None:
        """Write the manifest with other addresses. A key is the path of a field below ``spec``.

        With a page of the documentation, its part of a manifest replaces those fields of the example.
        """
        manifest, *tables = yaml.safe_load_all((EXAMPLES / self.name / "pipeline.yaml").read_text())
        if page:
            manifest["spec"] |= parts_of(DOCS / page)[part]
        db = self.engine.db
        source = {"source.host": "127.0.0.1", "source.port": db.server.port, "source.database": db.name}
        for path, value in {**source, "source.tls": {"mode": "Disable"}, **addresses}.items():
            *folders, last = path.split(".")
            section = manifest["spec"]
            for folder in folders:
                section = section[folder]
            section[last] = value
        self.manifest.parent.mkdir(parents=True, exist_ok=True)
        self.manifest.write_text(yaml.safe_dump_all([manifest, *tables]))

    def follow(self, **logins: str) -> None:
        """Run each command of the README. The variables have ``logins``, and that of a superuser."""
        users = {f"{of}_USER": "postgres" for of in ("SOURCE", "TARGET", "LAKE", "CATALOG", "SEARCH")}
        passwords = {f"{of}_PASSWORD": "any" for of in ("SOURCE", "TARGET", "LAKE", "CATALOG", "SEARCH")}
        path = f"{Path(sys.executable).parent}:{self.engine.db.server.bin}:{os.environ['PATH']}"
        environment = {"PATH": path, "PGUSER": "postgres", **users, **passwords, **logins}
        run_page(EXAMPLES / self.name / "README.md", self.engine.folder, environment, adapted=self.adapted)

    def levada(self, command: str, *options: str) -> None:
        """Run a command on the manifest, with the Secrets that the README has made."""
        secrets = str(self.engine.folder / "secrets")
        self.engine.levada(command, str(self.manifest), "--secrets", secrets, *options, timeout=1500)

    def run(self, read: Callable[[], list[Row]], *, then: Callable[[], None] = lambda: None, **logins: str) -> None:
        """Follow the README. Compare the rows after it, and after changes in another run, then clean up.

        ``then`` is called between the two, and may write another manifest of the same pipeline.
        """
        db = self.engine.db
        self.open_shop()
        self.follow(**logins)
        assert read() == db.query(ORDERS)
        then()
        db.execute(
            "UPDATE orders SET item = 'changed' WHERE id < 10",
            "DELETE FROM orders WHERE id = 10",
            "UPDATE orders SET id = 1000 WHERE id = 11",
        )
        self.levada("run", "--until", "caught-up")
        assert read() == db.query(ORDERS)
        self.levada("cleanup", "--yes")
        assert db.query("SELECT FROM pg_replication_slots WHERE database = current_database()") == []

    def open_shop(self) -> None:
        """Create a table of orders."""
        self.engine.db.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, customer_id int, item text, created_at timestamptz NOT NULL)",
            "INSERT INTO orders SELECT i, i % 7, 'item ' || i, now() FROM generate_series(1, 100) i",
        )

    def copy(self, read: Callable[[], list[Row]], *secrets: str) -> None:
        """Check and run the manifest with these Secrets. Compare the rows."""
        self.open_shop()
        for name in secrets:
            self.engine.write_secret(name, {"username": "postgres", "password": "any"})
        self.levada("check")
        self.levada("run", "--until", "caught-up")
        assert read() == self.engine.db.query(ORDERS)


def keys_of(store: ObjectStore) -> dict[str, str]:
    """Return the keys of an object store as a README takes them."""
    return {key.upper().replace(".", "_").replace("-", "_"): value for key, value in store.keys.items()}


def rows_of(table: Table) -> list[Row]:
    """Return the rows of a table in a lake, in the order of their keys."""
    found = table.scan().to_arrow().select(["id", "customer_id", "item"]).sort_by("id")
    return [tuple(row.values()) for row in found.to_pylist()]


def test_laptop(engine: Engine, tmp_path: Path) -> None:
    """The example of a lake in a folder."""
    example = Example(engine, "laptop")
    example.set({"destination.iceberg.catalog.warehouse": f"file://{tmp_path / 'lake'}"})
    example.run(lambda: rows_of(StaticTable.from_metadata(f"file://{tmp_path}/lake/shop_public/orders")))


def test_changelog(engine: Engine, db: Database, tmp_path: Path) -> None:
    """The example adds a row for each change, except to the table whose TableSync asks for the last states."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, item text)",
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "INSERT INTO orders VALUES (1, 'first')",
        "INSERT INTO customers VALUES (1, 'a')",
    )
    example = Example(engine, "changelog")
    example.set({"destination.iceberg.catalog.warehouse": f"file://{tmp_path / 'lake'}"})
    example.follow()
    db.execute("UPDATE customers SET name = 'b'", "UPDATE orders SET item = 'second'")
    example.levada("run", "--until", "caught-up")

    def column(table: str, name: str) -> list[str]:
        rows = StaticTable.from_metadata(f"file://{tmp_path}/lake/history_public/{table}").scan().to_arrow()
        return sorted(rows[name].to_pylist())

    assert column("orders", "item") == ["first", "second"]
    assert column("customers", "name") == ["b"]


def test_s3_jdbc_catalog(engine: Engine, db: Database, s3: ObjectStore) -> None:
    """The example of an object store with a catalog in PostgreSQL, with the keys in the Secret that it names.

    The part of a manifest in docs/helm.md is another one of the same lake.
    """
    address, warehouse = f"127.0.0.1:{db.server.port}/{db.name}", f"s3://{BUCKET}/{db.name}"
    example = Example(engine, "s3-jdbc-catalog")
    here = {
        "destination.iceberg.catalog.uri": f"jdbc:postgresql://{address}",
        "destination.iceberg.catalog.warehouse": warehouse,
        "destination.iceberg.catalog.properties": s3.place,
        "staging.uri": f"{warehouse}-staging",
    }
    example.set(here)
    (part,) = (n for n, part in enumerate(parts_of(DOCS / "helm.md")) if "staging" in part)
    of_page = {**here, "destination.iceberg.namespace": "shop_{schema}"}
    uri = f"postgresql+psycopg2://postgres@{address}"
    properties = {**s3.properties, "uri": uri, "warehouse": warehouse, "init_catalog_tables": "false"}
    read = lambda: rows_of(SqlCatalog("levada_shop", **properties).load_table("shop_public.orders"))  # noqa: E731
    example.run(read, then=lambda: example.set(of_page, "helm.md", part), **keys_of(s3))


def test_rest_catalog(engine: Engine, db: Database, s3: ObjectStore, tmp_path: Path) -> None:
    """The example of a catalog service, which gives no keys to the files here, so that the Secret has them."""
    with rest_catalog(tmp_path, db, s3, f"s3://{BUCKET}/{db.name}") as uri:
        example = Example(engine, "rest-catalog")
        example.set({"destination.iceberg.catalog": {"type": "Rest", "uri": uri, "properties": s3.place}})
        reader = RestCatalog("levada_shop", uri=uri, **s3.properties)
        example.run(
            lambda: rows_of(reader.load_table("shop_public.orders")), CATALOG_CREDENTIAL="any:any", **keys_of(s3)
        )


def test_postgresql(engine: Engine, db: Database) -> None:
    """The example of PostgreSQL copies and follows a table into another database, with the rights of its page alone."""
    name = f"{db.name}_replica"
    db.execute(f"CREATE DATABASE {name}", "CREATE ROLE reader LOGIN")
    replica = Database(db.server, name)
    address = {"PGHOST": "127.0.0.1", "PGPORT": str(db.server.port), "PGUSER": "postgres", "PGDATABASE": name}
    page, here = DOCS / "destinations" / "postgresql.md", {"DATABASE replica": f"DATABASE {name}"}
    path = f"{db.server.bin}:{os.environ['PATH']}"
    run_page(page, engine.folder, {**address, "PATH": path}, adapted=here, languages=["sql"])
    try:
        where = {"host": "127.0.0.1", "port": db.server.port, "database": name}
        example = Example(engine, "postgresql", {"-p 5433": f"-p {db.server.port}", "-d replica": f"-d {name}"})
        example.set({f"destination.postgres.{k}": v for k, v in where.items()})
        query = "SELECT id, customer_id, item FROM public.orders ORDER BY id"

        def read() -> list[Row]:
            with replica.connect(user="reader") as connection:
                return connection.execute(query).fetchall()

        example.run(read, TARGET_USER="levada")
    finally:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)", "DROP ROLE levada, reader")


def test_ducklake(engine: Engine, db: Database, tmp_path: Path) -> None:
    """The example of DuckLake is read by DuckDB's extension, with the name that the example has."""
    name = f"{db.name}_lake"
    db.execute(f"CREATE DATABASE {name}")
    lake = DuckLake(Database(db.server, name), tmp_path / "lake", DestinationContext("shop", tmp_path / "unused"))
    lake.options = {"METADATA_SCHEMA": "'ducklake'"}
    loaded = "; ".join(f"LOAD '{extension(e)}'" for e in ("postgres_scanner", "ducklake"))
    here = {
        "INSTALL postgres; INSTALL ducklake": loaded,
        "port=5433 dbname=lake": f"port={db.server.port} dbname={name}",
    }
    try:
        where = {"host": "127.0.0.1", "port": db.server.port, "database": name}
        example = Example(engine, "ducklake", here)
        addresses: dict[str, Any] = {f"destination.ducklake.catalog.{k}": v for k, v in where.items()}
        example.set({**addresses, "destination.ducklake.dataPath": str(lake.folder)})
        query = "SELECT id, customer_id, item FROM lake.public.orders ORDER BY id"
        example.run(lambda: [(i, customer, item) for i, customer, item in lake.sql(query)])
        page = DOCS / "destinations" / "ducklake.md"
        [maintenance] = [block.code for block in blocks_of(page) if block.language == "sql"]
        for statement in maintenance.split(";"):
            if statement.strip():
                lake.sql(statement)
        assert len(lake.sql(query)) == 99
    finally:
        db.execute(f"DROP DATABASE {name} WITH (FORCE)")


def documents(client: Any) -> list[Row]:
    """Return the rows under the alias of the table."""
    client.indices.refresh(index="shop-public.orders")
    found = client.search(index="shop-public.orders", body={"size": 1000, "sort": ["id"]})["hits"]["hits"]
    return [(d["_source"]["id"], d["_source"]["customer_id"], d["_source"]["item"]) for d in found]


def test_opensearch(engine: Engine, opensearch: str) -> None:
    """The example of OpenSearch serves a table under its alias."""
    from opensearchpy import OpenSearch

    example = Example(engine, "opensearch", {"https://127.0.0.1:9200": opensearch})
    example.set({"destination.opensearch.urls": [opensearch]})
    with OpenSearch([opensearch], timeout=LIMIT_S) as client:
        try:
            example.run(lambda: documents(client))
        finally:
            client.indices.delete(index="shop-*")


def test_page_of_opensearch(engine: Engine, opensearch: str) -> None:
    """The part of a manifest on the page makes an index with the shards and replicas that it has."""
    from opensearchpy import OpenSearch

    example = Example(engine, "opensearch")
    example.set({"destination.opensearch.urls": [opensearch]}, "destinations/opensearch.md")
    with OpenSearch([opensearch], timeout=LIMIT_S) as client:
        try:
            example.copy(lambda: documents(client), "source", "search")
            ((_, index),) = client.indices.get_settings(index="shop-public.orders").items()
            settings = index["settings"]["index"]
            assert (settings["number_of_shards"], settings["number_of_replicas"]) == ("1", "1")
        finally:
            client.indices.delete(index="shop-*")


def of_emulator(bigquery: Emulator, folder: Path) -> dict[str, Any]:
    """Return the addresses of the emulator, without the cloud's own bucket."""
    return {
        "destination.bigquery.project": PROJECT,
        "destination.bigquery.endpoint": bigquery.endpoint,
        "staging.uri": f"file://{folder / 'staging'}",
    }


def orders(bigquery: Emulator) -> list[Row]:
    """Return the rows of the table of orders."""
    query = f"SELECT id, customer_id, item FROM `{PROJECT}`.`shop_public`.`orders` ORDER BY id"
    return [(int(i), int(customer), item) for i, customer, item in bigquery.sql(query)]


def test_bigquery(engine: Engine, bigquery: Emulator, tmp_path: Path) -> None:
    """The example of BigQuery makes its tables with their layout, and without the cloud's own bucket and login."""
    example = Example(engine, "bigquery")
    example.set(of_emulator(bigquery, tmp_path))
    engine.write_secret("bigquery", {"credentials.json": "{}"})
    try:
        example.run(lambda: orders(bigquery))
        assert layout(bigquery) == LAYOUT
    finally:
        forget(bigquery)


def test_page_of_bigquery(engine: Engine, bigquery: Emulator, tmp_path: Path) -> None:
    """The part of a manifest on the page makes a table with its layout, and keeps the watermarks where it says."""
    example = Example(engine, "bigquery")
    example.set(of_emulator(bigquery, tmp_path), "destinations/bigquery.md")
    engine.write_secret("bigquery", {"credentials.json": "{}"})
    try:
        example.copy(lambda: orders(bigquery), "shop-db")
        assert layout(bigquery) == LAYOUT
        assert any(name.startswith("state_") for name in bigquery.tables("levada"))
    finally:
        forget(bigquery)


LAYOUT = (["customer_id"], "created_at", "MONTH")


def layout(bigquery: Emulator) -> tuple[list[str], str, str]:
    """Return how the table of orders is clustered and partitioned."""
    table = bigquery.call("GET", "/datasets/shop_public/tables/orders")
    partitions = table["timePartitioning"]
    return table["clustering"]["fields"], partitions["field"], partitions["type"]


def forget(bigquery: Emulator) -> None:
    """Delete the datasets with their tables."""
    for dataset in ("shop_public", "levada"):
        bigquery.call("DELETE", f"/datasets/{dataset}?deleteContents=true")
