"""Destinations with servers of their own, each reached by a driver's pod: DuckLake, OpenSearch, BigQuery's emulator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cluster.bringup.layout import HOST
from tests.cluster.kubectl import PATIENCE, eventually
from tests.cluster.node.comparison import differences
from tests.cluster.node.place import SHOP, TABLES, Place
from tests.rigs.database import Database
from tests.servers.bigquery import PROJECT, Emulator
from tests.servers.ducklake import DuckLake
from tests.servers.stalling_proxy import stalling_proxy
from traffic import Traffic  # type: ignore[import-not-found]

from levada.destinations import DestinationContext

pytestmark = pytest.mark.nightly

assert SHOP  # the example's folder is on the path by its import


def replicate(place: Place, tables: dict[str, Any] | None = None, **destination: Any) -> None:
    """Replicate the shop under writers, and delete the driver's pod meanwhile. Traffic has stopped afterwards."""
    changes = {"destination": {"iceberg": None, **destination}, "staging": None, "driver": {"resources": None}}
    place.apply(**changes, **({} if tables is None else {"tables": tables}))
    place.ready()
    traffic = Traffic(place.server.uri("shop")).start()
    uid = place.driver_uid()
    place.kubectl("delete", "pod", "shop-driver-0", "--force", "--grace-period=0")
    eventually(lambda: place.driver_uid() not in ("", uid))
    place.kubectl("wait", "--for=condition=Ready", "pod/shop-driver-0", PATIENCE)
    traffic.stop()


def delete(place: Place) -> None:
    """Delete the Pipeline with its tables. The clean-up's pod reaches the destination too."""
    place.patch(deletionPolicy={"destinationTables": "Delete"})
    place.kubectl("delete", "pipeline", "shop", PATIENCE)
    assert place.told("CleanupFinished")


def test_ducklake(place: Place, tmp_path: Path) -> None:
    """DuckDB reads the files on the volume and the catalog in PostgreSQL: every table is equal."""
    place.execute("CREATE DATABASE lake")
    (place.lake / "data").mkdir(mode=0o777)
    (place.lake / "data").chmod(0o777)
    catalog = {"host": "shop-db", "database": "lake", "schema": "ducklake", "tls": {"mode": "Disable"}}
    section = {"catalog": catalog, "dataPath": "/var/lib/lake/data", "credentialsSecretRef": {"name": "shop-cdc"}}
    replicate(place, ducklake=section)
    lake = DuckLake(Database(place.server, "lake"), place.lake / "data", DestinationContext("shop", tmp_path))
    lake.options = {
        "METADATA_SCHEMA": "'ducklake'",
        "DATA_PATH": f"'{place.lake / 'data'}/'",
        "OVERRIDE_DATA_PATH": "true",
    }

    def different() -> list[str]:
        with lake.duckdb() as duckdb, place.connect() as source:
            return [
                f"{table}: {d}"
                for table in TABLES
                for d in differences(source, table, duckdb.execute(f"FROM public.{table}").to_arrow_table())
            ]

    try:
        eventually(lambda: not different())
    except AssertionError:
        place.print_state()
        raise AssertionError(different()) from None
    delete(place)
    assert lake.sql("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'") == []


def test_opensearch(place: Place, opensearch: str) -> None:
    """Every row is a document of its index, with the values that PostgreSQL has."""
    from opensearchpy import OpenSearch
    from opensearchpy.helpers import scan

    port = int(opensearch.rpartition(":")[2])
    with stalling_proxy(port, HOST) as proxy, OpenSearch([opensearch], timeout=60) as client:
        replicate(place, opensearch={"urls": [f"http://{HOST}:{proxy.port}"], "prefix": "shop-", "replicas": 0})
        columns = {"customers": "id, email, name, country", "orders": "id, customer_id, status::text, note"}

        def different() -> list[str]:
            found = []
            for table, listed in columns.items():
                index = f"shop-public.{table}"
                client.indices.refresh(index=index)
                names = [c.removesuffix("::text") for c in listed.split(", ")]
                documents = [d["_source"] for d in scan(client, index=index)]
                with place.connect() as source:
                    rows = source.execute(f"SELECT {listed} FROM {table} ORDER BY id".encode()).fetchall()
                if sorted(tuple(d.get(n) for n in names) for d in documents) != rows:
                    found.append(f"{table}: {len(documents)} documents, {len(rows)} rows")
            return found

        try:
            eventually(lambda: not different())
        except AssertionError:
            place.print_state()
            raise AssertionError(different()) from None
        delete(place)
        assert not client.indices.exists(index="shop-public.orders")


def test_bigquery(place: Place, bigquery: Emulator) -> None:
    """Every row of a table is in the emulator, as its SQL shows it."""
    with stalling_proxy(bigquery.rest_port, HOST) as rest, stalling_proxy(bigquery.grpc_port, HOST) as storage:
        section = {
            "project": PROJECT,
            "endpoint": {"rest": f"http://{HOST}:{rest.port}", "storage": f"{HOST}:{storage.port}"},
        }
        replicate(place, tables={"include": [{"schema": "public", "name": "orders"}]}, bigquery=section)
        query = "SELECT id, customer_id, status, note FROM {} ORDER BY id"

        def different() -> str:
            with place.connect() as source:
                rows = source.execute(query.format("orders").replace("status", "status::text").encode()).fetchall()
            found = bigquery.sql(query.format(f"`{PROJECT}`.`public`.`orders`"))
            equal = [(int(i), int(c), s, n) for i, c, s, n in found] == rows
            return "" if equal else f"{len(found)} rows in BigQuery, {len(rows)} in PostgreSQL"

        try:
            eventually(lambda: not different())
        except AssertionError:
            place.print_state()
            raise AssertionError(different()) from None
        delete(place)
        assert "orders" not in bigquery.tables("public")
