"""Catalogs to write to, and independent readers of what was written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.rigs.database import Database
from tests.rigs.lake import Lake, hadoop, jdbc, jdbc_lake
from tests.servers.ducklake import DuckLake
from tests.servers.s3 import BUCKET, ObjectStore

from levada.destinations import DestinationContext

__all__ = ["hadoop", "jdbc"]


@pytest.fixture
def object_lake(tmp_path: Path, spark: SparkSession, db: Database, s3: ObjectStore) -> Lake:
    """A JDBC catalog over an object store."""
    return jdbc_lake(tmp_path, spark, db, f"s3://{BUCKET}/{db.name}", s3)


@pytest.fixture
def newer_object_lake(object_lake: Lake) -> Lake:
    """A JDBC catalog over an object store, with tables of format version 3."""
    object_lake.manifest["formatVersion"] = 3
    return object_lake


@pytest.fixture(
    params=[
        "hadoop",
        pytest.param("jdbc", marks=pytest.mark.nightly),
        pytest.param("object_lake", marks=pytest.mark.nightly),
        pytest.param("newer_object_lake", marks=pytest.mark.nightly),
    ]
)
def lake(request: pytest.FixtureRequest) -> Lake:
    """Each catalog in turn. With each change, those of `test_catalogs` run on all of them, the rest on a folder."""
    found: Lake = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def ducklake(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DuckLake:
    """A database without a DuckLake catalog."""
    monkeypatch.setenv("PGUSER", "postgres")
    return DuckLake(db, tmp_path / "data", DestinationContext("shop", tmp_path / "work"))
