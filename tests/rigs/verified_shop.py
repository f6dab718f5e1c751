"""A pipeline into Iceberg tables of one test, whose tables are verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.rigs.database import Database
from tests.rigs.pipeline import HELD, reach

from levada.copy.spark_tasks import SparkTasks
from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.runtime.config import PipelineConfig, PublicationConfig, RetryLimits, SlotConfig, StagingConfig
from levada.runtime.pipeline import Pipeline
from levada.status import Progress
from levada.stores import MemoryStorage, MemoryStore
from levada.values import OnUnrepresentable, QualifiedTable
from levada.verify.report import TableReport
from levada.verify.table import VerifyOptions


@dataclass
class Shop:
    """A pipeline over all tables of schema public, in this process."""

    db: Database
    folder: Path
    spark: SparkSession
    settings: dict[str, Any] = field(default_factory=dict)
    policy: OnUnrepresentable = OnUnrepresentable.ERROR
    config: dict[str, Any] = field(default_factory=dict)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    pipeline: Pipeline | None = None
    fewest_cores: int = 3
    """The fewest cores of this machine with which Spark's tasks write batches."""

    @property
    def name(self) -> str:
        return self.db.name.replace("_", "-")

    def start(self) -> None:
        config = PipelineConfig(
            name=self.name,
            source=self.db.connection,
            slot=SlotConfig(f"levada_{self.db.name}"),
            publication=PublicationConfig(f"levada_{self.db.name}"),
            staging=StagingConfig(f"file://{self.folder / 'staging'}", durable=True),
            work_dir=self.folder,
            selects=lambda table: table.schema == "public",
            batch_fill_s=0.1,
            freshness_s=0.5,
            retries=RetryLimits(max_attempts=1),
            on_unrepresentable=self.policy,
            default_table=HELD,
            **self.config,
        )
        catalog = {"type": "Hadoop", "warehouse": str(self.folder / "lake")}
        settings = Settings.model_validate({"catalog": catalog, "namespace": "shop_{schema}", **self.settings})
        context = DestinationContext(self.name, self.folder / "work", self.spark)
        destination = IcebergDestination.from_settings(settings, context)
        destination.batch_tasks = SparkTasks(self.spark, fewest_cores=self.fewest_cores)
        store = MemoryStore(self.name, self.storage)
        self.pipeline = Pipeline(config, store=store, destination=destination, spark=self.spark)
        self.pipeline.start()

    def stop(self) -> None:
        if self.pipeline is not None:
            self.pipeline.stop()
            self.pipeline = None

    def wait(self, what: Callable[[Progress], bool]) -> Progress:
        assert self.pipeline is not None
        return reach(self.pipeline, what)

    def wait_caught_up(self) -> None:
        assert self.pipeline is not None
        self.wait(self.pipeline.caught_up())

    def verify(self, table: str = "t", **options: Any) -> TableReport:
        assert self.pipeline is not None
        return self.pipeline.verify(QualifiedTable("public", table), VerifyOptions(**options))

    def sql(self, text: str, table: str = "t") -> list[Any]:
        """Run SQL as a foreign engine would. {t} is the table, {c} the catalog and {p} ``'namespace.table'``."""
        catalog = "levada_" + self.name.replace("-", "_")
        rows: list[Any] = []
        for part in text.split(";"):
            done = part.format(t=f"{catalog}.shop_public.`{table}`", c=catalog, p=f"'shop_public.{table}'")
            rows = self.spark.sql(done).collect()
        return rows


@pytest.fixture
def shop(db: Database, tmp_path: Path, spark: SparkSession) -> Iterator[Shop]:
    """A pipeline that is not started yet, and is stopped after the test."""
    made = Shop(db, tmp_path, spark)
    try:
        yield made
    finally:
        made.stop()
