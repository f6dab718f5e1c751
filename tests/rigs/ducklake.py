"""``levada run`` into DuckLake: the catalog's server, the manifest, and the comparison with what DuckDB reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.equality import table_differences
from tests.servers.ducklake import DuckLake

from levada.destinations import DestinationContext
from levada.local.postgres import temporary_postgres


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[DuckLake]:
    """A server of its own for the catalog."""
    with temporary_postgres() as server:
        yield DuckLake(Database(server, "postgres"), tmp_path / "lake", DestinationContext("shop", tmp_path / "unused"))


def write_manifest(engine: Engine, lake: DuckLake, **options: Any) -> None:
    """Write a manifest with the lake as its destination."""
    engine.write_secret("lake", {"username": "postgres", "password": "unused"})
    engine.spec["destination"] = {"ducklake": lake.settings(credentialsSecretRef={"name": "lake"}, **options)}
    engine.write_manifest()


def differences(source: Database, lake: DuckLake, *tables: str) -> list[str]:
    """Return what differs between the source and what DuckDB reads."""
    found = []
    with lake.duckdb() as reader, source.connect() as connection:
        for name in tables:
            rows: pa.Table = reader.execute(f"SELECT * FROM shop_public.{name}").to_arrow_table()
            assert rows.num_rows > 1, f"{name} is empty, which shows nothing"
            # The comparison reads times as text.
            texts = [f.with_type(pa.string()) if pa.types.is_time(f.type) else f for f in rows.schema]
            rows = rows.cast(pa.schema(texts))
            if text := table_differences(connection, rows, "public", name):
                found.append(f"{name}: {text}")
    return found
