"""Catalogs to write to, and independent readers of what was written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from levada.destinations import DestinationContext, OnSchemaChange, TableMode, TableSettings
from levada.destinations.iceberg import IcebergDestination
from tests.conftest import Database


@dataclass
class Lake:
    """A catalog of one test: makes destinations on it, and reads its tables by other means."""

    manifest: dict[str, Any]
    context: DestinationContext

    def destination(
        self, *, work: str = "", maintenance: dict[str, Any] | None = None, **context: Any
    ) -> IcebergDestination:
        """A destination as a process that just started has it; ``work`` names another folder for caches."""
        changed = replace(self.context, **context)
        if work:
            changed = replace(changed, work_dir=self.context.work_dir / work)
        return IcebergDestination.from_config({**self.manifest, "maintenance": maintenance or {}}, changed)

    @property
    def spark(self) -> SparkSession:
        assert self.context.spark is not None
        return self.context.spark

    def spark_name(self, table: str = "orders", namespace: str = "shop_public") -> str:
        return f"levada_{self.context.pipeline}.{namespace}.{table}"

    def by_spark(self, table: str = "orders") -> pa.Table:
        return self.spark.table(self.spark_name(table)).toArrow()

    def iceberg(self, table: str = "orders") -> Any:
        """The table as PyIceberg sees it."""
        catalog = self.manifest["catalog"]
        if catalog["type"] == "Hadoop":
            from pyiceberg.table import StaticTable

            folder = Path(catalog["warehouse"]) / "shop_public" / table / "metadata"
            version = (folder / "version-hint.text").read_text()
            return StaticTable.from_metadata(str(folder / f"v{version}.metadata.json"))
        from pyiceberg.catalog.sql import SqlCatalog

        uri = catalog["uri"].replace("jdbc:postgresql://", "postgresql+psycopg2://postgres@")
        return SqlCatalog(
            f"levada_{self.context.pipeline}", uri=uri, warehouse=catalog["warehouse"], init_catalog_tables="false"
        ).load_table(f"shop_public.{table}")

    def by_pyiceberg(self, table: str = "orders") -> pa.Table:
        return self.iceberg(table).scan().to_arrow()

    def rows(self, table: str = "orders", key: str = "id") -> list[dict[str, Any]]:
        """The table's rows, after both readers agreed on them."""
        seen = [sorted(t.to_pylist(), key=repr) for t in (self.by_pyiceberg(table), self.by_spark(table))]
        assert seen[0] == seen[1]
        return sorted(seen[0], key=lambda r: (r[key] is None, r[key]))


@pytest.fixture
def hadoop(tmp_path: Path, spark: SparkSession) -> Lake:
    """A Hadoop catalog in a folder."""
    manifest = {"catalog": {"type": "Hadoop", "warehouse": str(tmp_path / "lake")}, "namespace": "shop_{schema}"}
    name = "h" + str(abs(hash(tmp_path)))
    return Lake(manifest, DestinationContext(name, tmp_path / "work", spark))


@pytest.fixture
def jdbc(tmp_path: Path, spark: SparkSession, db: Database) -> Lake:
    """A JDBC catalog on PostgreSQL."""
    catalog = {
        "type": "Jdbc",
        "uri": f"jdbc:postgresql://127.0.0.1:{db.server.port}/{db.name}",
        "warehouse": f"file:{tmp_path / 'lake'}",
        "properties": {"jdbc.user": "postgres"},
    }
    return Lake(
        {"catalog": catalog, "namespace": "shop_{schema}"},
        DestinationContext("j" + db.name, tmp_path / "work", spark),
    )


@pytest.fixture(params=["hadoop", "jdbc"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """Each catalog in turn."""
    found: Lake = request.getfixturevalue(request.param)
    return found
