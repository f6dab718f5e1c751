"""The initial copy of tables of different sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.initial_copy import Levada, fill, measured
from benchmarks.scale.curve import Definition, Points

from levada.destinations.iceberg import IcebergDestination
from levada.local.postgres import EmbeddedPostgres
from levada.runtime.resources.spark import spark_session


def rows(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"CPU s": []}
    spark = spark_session(
        "scale",
        conf={"spark.driver.memory": "1g"},
        cores=2,
        defaults=IcebergDestination.spark_conf(None),
        jars=IcebergDestination.jars(),
    )
    for turn, size in enumerate([10_000, *sizes]):
        with EmbeddedPostgres(folder / f"data_{turn}") as server:
            fill(server, size)
            usage = measured(Levada(spark, server, folder / f"lake_{turn}", 2).into_iceberg)
        # The first copy starts the workers.
        if turn:
            points["CPU s"].append((size, usage.cpu))
    spark.stop()
    return points


DEFINITIONS = (
    Definition("copy", "The initial copy into Iceberg, by the rows of the table", "rows of the table", "CPU s",
               (1_000_000, 2_000_000), (1_000_000, 5_000_000, 20_000_000), 1.0, rows),
)  # fmt: skip
