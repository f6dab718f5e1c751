"""Catalogs to write to, and independent readers of what was written."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.rigs.database import Database
from tests.servers.s3 import ObjectStore

from levada.destinations import DestinationContext
from levada.destinations.credentials import read_credentials
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.maintenance import FILES, FileLimits
from levada.destinations.iceberg.retention import RETENTION, RetentionLimits
from levada.destinations.iceberg.settings import Settings
from levada.values import Lsn, Watermark

_LATER_MS: Final = 32_472_144_000_000
"""The year 2999."""


@dataclass
class Lake:
    """A catalog of one test: makes destinations on it, and reads its tables by other means."""

    manifest: dict[str, Any]
    context: DestinationContext

    def destination(
        self,
        *,
        work: str = "",
        maintenance: dict[str, Any] | None = None,
        files: FileLimits = FILES,
        retention: RetentionLimits = RETENTION,
        **context: Any,
    ) -> IcebergDestination:
        """Return a destination as a process that just started has it. ``work`` names another folder for caches."""
        changed = replace(self.context, **context)
        if work:
            changed = replace(changed, work_dir=self.context.work_dir / work)
        settings = Settings.model_validate({**self.manifest, "maintenance": maintenance or {}})
        made = IcebergDestination.from_settings(settings, changed)
        made.maintenance = replace(made.maintenance, files=files, retention=retention)
        return made

    def mark(self, lsn: int, epoch: int = 1) -> Watermark:
        return Watermark(self.context.pipeline, epoch, Lsn(lsn))

    @property
    def spark(self) -> SparkSession:
        assert self.context.spark is not None
        return self.context.spark

    def spark_name(self, table: str = "orders") -> str:
        quoted = table if table.isascii() and table.isidentifier() else f"`{table}`"
        return f"levada_{self.context.pipeline}.shop_public.{quoted}"

    def sql(self, text: str, table: str = "orders") -> list[Any]:
        """Run SQL as a foreign engine does. {t} is the table, {p} the catalog and ``'namespace.table'``."""
        catalog, _, rest = self.spark_name(table).partition(".")
        return self.spark.sql(text.format(t=self.spark_name(table), c=catalog, p=f"'{rest}'")).collect()

    def expire(self, table: str = "orders") -> None:
        """Expire all snapshots but the current one, as another tool does by Iceberg's library, without Spark's jobs."""
        jvm: Any = self.spark._jvm
        loaded = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, self.spark_name(table)
        )
        loaded.expireSnapshots().expireOlderThan(_LATER_MS).retainLast(1).commit()

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
        assert self.context.credentials is not None
        secrets = read_credentials(self.context.credentials)
        properties = {**catalog["properties"], **secrets, "uri": uri, "warehouse": catalog["warehouse"]}
        return SqlCatalog(f"levada_{self.context.pipeline}", **properties, init_catalog_tables="false").load_table(
            f"shop_public.{table}"
        )

    def by_pyiceberg(self, table: str = "orders") -> pa.Table:
        return self.iceberg(table).scan().to_arrow()

    def rows_at(self, tag: str, table: str = "orders") -> list[dict[str, Any]]:
        """The rows of the table at a tag, after both readers agreed on their number."""
        scanned = self.iceberg(table)
        snapshot = scanned.snapshot_by_name(tag)
        assert snapshot is not None, f"{table} has no tag {tag}"
        by_spark = self.sql(f"SELECT * FROM {{t}} VERSION AS OF '{tag}'", table)
        rows: list[dict[str, Any]] = scanned.scan(snapshot_id=snapshot.snapshot_id).to_arrow().to_pylist()
        assert len(rows) == len(by_spark)
        return rows

    def rows(self, table: str = "orders") -> list[dict[str, Any]]:
        """The table's rows, after both readers agreed on them."""
        read = (self.by_pyiceberg(table), self.by_spark(table))
        seen = [sorted(map(_uuids_as_text, t.to_pylist()), key=repr) for t in read]
        lists = [f.name for f in read[1].schema if pa.types.is_list(f.type) and pa.types.is_struct(f.type.value_type)]
        for row, other in zip(*seen, strict=True):
            # PyIceberg reads NULL as an empty list of structs (apache/iceberg-python#3833).
            row.update({name: None for name in lists if row[name] == [] and other[name] is None})
        assert repr(_plain(seen[0])) == repr(_plain(seen[1]))
        return sorted(seen[0], key=lambda r: tuple(map(repr, r.values())))


def _uuids_as_text(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in which a UUID has the form that Spark reads."""
    return {n: str(v) if isinstance(v, UUID) else v for n, v in row.items()}


def _plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows in which the time zone UTC has one form. Unlike the rows, their text is equal also with NaN."""
    return [
        {n: v.astimezone(dt.UTC) if isinstance(v, dt.datetime) and v.tzinfo else v for n, v in row.items()}
        for row in rows
    ]


@pytest.fixture
def hadoop(tmp_path: Path, spark: SparkSession) -> Lake:
    """A Hadoop catalog in a folder."""
    manifest = {"catalog": {"type": "Hadoop", "warehouse": str(tmp_path / "lake")}, "namespace": "shop_{schema}"}
    return Lake(manifest, DestinationContext(f"h{abs(hash(tmp_path))}", tmp_path / "work", spark))


def jdbc_lake(
    folder: Path, spark: SparkSession, db: Database, warehouse: str, store: ObjectStore | None = None
) -> Lake:
    """Return a lake with a JDBC catalog on PostgreSQL. The keys to the object store are in the mounted Secret."""
    catalog = {
        "type": "Jdbc",
        "uri": f"jdbc:postgresql://127.0.0.1:{db.server.port}/{db.name}",
        "warehouse": warehouse,
        "properties": {"jdbc.user": "postgres", **(store.place if store else {})},
    }
    manifest = {"catalog": catalog, "namespace": "shop_{schema}"}
    credentials = folder / "credentials"
    credentials.mkdir()
    for key, value in (store.keys if store else {}).items():
        (credentials / key).write_text(value)
    return Lake(manifest, DestinationContext(f"j{abs(hash(folder))}", folder / "work", spark, credentials))


@pytest.fixture
def jdbc(tmp_path: Path, spark: SparkSession, db: Database) -> Lake:
    """A JDBC catalog over a folder."""
    return jdbc_lake(tmp_path, spark, db, f"file:{tmp_path / 'lake'}")
