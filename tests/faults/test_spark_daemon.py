"""Spark starts the process that forks its Python workers again after it has ended."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from pyspark.sql import SparkSession


def test_spark_starts_another_one(spark: SparkSession) -> None:
    """After the process has ended without workers, as it does when it is idle, the next task runs in a new one."""

    def parent() -> int:
        return spark.sparkContext.parallelize([0], 1).map(lambda _: os.getppid()).collect()[0]

    first = parent()
    workers = Path(f"/proc/{first}/task/{first}/children")
    while workers.read_text():
        # Spark ends a worker that had no task for a minute.
        time.sleep(0.5)
    os.kill(first, signal.SIGTERM)
    while Path(f"/proc/{first}").exists():
        time.sleep(0.05)
    assert parent() != first
