"""Spark starts the process that forks its Python workers again after it has ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from pyspark.sql import SparkSession
from tests.rigs.waiting import until


def test_spark_starts_another_one(spark: SparkSession) -> None:
    """After the process has ended without workers, as it does when it is idle, the next task runs in a new one."""

    def parent() -> int:
        return spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()[0]

    first = parent()
    workers = Path(f"/proc/{first}/task/{first}/children")
    # Spark ends a worker that had no task for a minute.
    until(lambda: not workers.read_text())
    os.kill(first, signal.SIGTERM)
    until(lambda: not Path(f"/proc/{first}").exists())
    assert parent() != first
