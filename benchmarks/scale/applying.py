"""Apply: a batch of changes onto Iceberg tables of different sizes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.apply import PIPELINE, TARGET, Base, Batch, Source
from benchmarks.measure import Meter
from benchmarks.scale.curve import Definition, Points

from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.runtime.resources.spark import spark_session
from levada.values import Lsn, Watermark

_TURNS = 4


def rows(sizes: Sequence[int], folder: Path) -> Points:
    spark = spark_session(
        "scale",
        conf={"spark.driver.memory": "1g"},
        defaults=IcebergDestination.spark_conf(None),
        jars=IcebergDestination.jars(),
    )
    points: Points = {"a batch of 10 changes": [], "a batch of 100,000 changes": []}
    for size in sizes:
        place = folder / str(size)
        place.mkdir()
        settings = Settings.model_validate({"catalog": {"type": "Hadoop", "warehouse": str(place / "lake")}})
        destination = IcebergDestination.from_settings(settings, DestinationContext(PIPELINE, place / "work", spark))
        destination.write_table_rows(TARGET, Base(size), Watermark(PIPELINE, 1, Lsn(1000)))
        source, seed = Source(size, place), 1
        for changes, name in ((10, "a batch of 10 changes"), (100_000, "a batch of 100,000 changes")):
            used = []
            for _ in range(_TURNS):
                events = replace(source.batch(changes, seed))
                seed += 1
                with Meter() as meter:
                    destination.write_events(Batch(events), Watermark(PIPELINE, 1, events.until))
                used.append(meter.usage.cpu)
            points[name].append((size, max(0.01, statistics.median(used[1:]))))
        destination.drop_table_for_copy(TARGET)
        destination.shutdown()
    spark.stop()
    return points


DEFINITIONS = (
    Definition("apply", "Apply into Iceberg, by the rows of the table", "rows of the table", "CPU s of a batch",
               (200_000, 2_000_000), (200_000, 2_000_000, 20_000_000), 0.0, rows),
)  # fmt: skip
