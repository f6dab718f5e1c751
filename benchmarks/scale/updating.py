"""Many small batches into one Iceberg table: what it, its readers and its commits cost as time goes on."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.apply import OURS, PIPELINE, TARGET, Base, Batch, Source
from benchmarks.measure import Meter
from benchmarks.scale.curve import Definition, Points
from pyspark.sql import SparkSession

from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.runtime.resources.spark import spark_session
from levada.values import Lsn, Watermark

_ROWS = 200_000
_CHANGES = 1_000
_BETWEEN_MAINTENANCE = 60
"""Batches between two searches for files to compact: ten minutes of a table that is written every ten seconds."""
_AVERAGED = 5
"""The cost of a commit is the median of so many."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The files of the table and the kB of its metadata after some batches, and the CPU seconds of uses of it."""

    files: int
    deletes: int
    metadata_kb: float
    commit: float
    scan: float
    point: float
    fresh_scan: float


def costs(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {name: [] for name in ("a commit", "a full scan", "a full scan of a new table", "reading one row")}
    for commits, m in _measured(sizes, folder):
        for name, y in zip(points, (m.commit, m.scan, m.fresh_scan, m.point), strict=True):
            points[name].append((commits, max(0.01, y)))
    return points


def contents(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"data files": [], "delete files": [], "kB of table metadata": []}
    for commits, m in _measured(sizes, folder):
        for name, y in zip(points, (m.files, m.deletes, m.metadata_kb), strict=True):
            points[name].append((commits, max(1, y)))
    return points


_known: dict[tuple[int, ...], list[tuple[int, Measured]]] = {}


def _measured(sizes: Sequence[int], folder: Path) -> list[tuple[int, Measured]]:
    """Return the figures after each number of commits. Both curves are of the same run."""
    key = tuple(sizes)
    if key not in _known:
        _known[key] = _run(key, folder)
    return _known[key]


def _run(sizes: Sequence[int], folder: Path) -> list[tuple[int, Measured]]:
    spark = spark_session(
        "scale",
        conf={"spark.driver.memory": "1g"},
        defaults=IcebergDestination.spark_conf(None),
        jars=IcebergDestination.jars(),
    )
    every = {"compactEverySeconds": 1, "expireSnapshotsAfterHours": 1}
    catalog = {"type": "Hadoop", "warehouse": str(folder / "lake")}
    settings = Settings.model_validate({"catalog": catalog, "maintenance": every})
    destination = IcebergDestination.from_settings(settings, DestinationContext(PIPELINE, folder / "work", spark))
    destination.write_table_rows(TARGET, Base(_ROWS), Watermark(PIPELINE, 1, Lsn(1000)))
    source, found, used = Source(_ROWS, folder), [], []
    for commits in range(1, max(sizes) + 1):
        events = source.batch(_CHANGES, commits)
        with Meter() as meter:
            destination.write_events(Batch(events), Watermark(PIPELINE, 1, events.until))
        used.append(meter.usage.cpu)
        events.path.unlink()
        if commits in sizes:
            found.append((commits, _look(spark, folder, used[-_AVERAGED:])))
        if commits % _BETWEEN_MAINTENANCE == 0:
            destination.maintain(TARGET.id)
    assert spark.table(OURS).count() == len(source.live), "rows are missing or twice there"
    destination.shutdown()
    spark.stop()
    return found


def _look(spark: SparkSession, folder: Path, commits: Sequence[float]) -> Measured:
    fresh = f"{OURS}_rewritten"
    spark.sql(f"DROP TABLE IF EXISTS {fresh} PURGE")
    spark.sql(f"CREATE TABLE {fresh} USING iceberg AS SELECT * FROM {OURS}")

    def scan(name: str) -> Any:
        return spark.table(name).selectExpr("count(*)", "bit_xor(xxhash64(*))").collect()

    def point(name: str) -> Any:
        return spark.table(name).where("id = 4711").collect()

    # A first read of each warms the JVM's code for both.
    same = [(read(OURS), read(fresh)) for read in (scan, point)]
    assert all(ours == theirs for ours, theirs in same), "the rewritten table differs"
    metadata = _newest_metadata(folder)
    summary = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])["summary"]
    return Measured(
        int(summary["total-data-files"]),
        int(summary["total-delete-files"]),
        len(json.dumps(metadata)) / 1000,
        statistics.median(commits),
        _cpu(scan, OURS),
        _cpu(point, OURS),
        _cpu(scan, fresh),
    )


def _cpu(read: Callable[[str], Any], name: str) -> float:
    """Return the median CPU seconds of a read."""
    used = []
    for _ in range(3):
        with Meter() as meter:
            read(name)
        used.append(meter.usage.cpu)
    return statistics.median(used)


def _newest_metadata(folder: Path) -> Any:
    metadata = folder / "lake" / "public" / OURS.rpartition(".")[2] / "metadata"
    version = (metadata / "version-hint.text").read_text().strip()
    return json.loads((metadata / f"v{version}.metadata.json").read_text())


DEFINITIONS = (
    Definition("updates-costs", "Batches of 1,000 changes to a table of 200,000 rows, with maintenance", "batches",
               "CPU s", (5, 60, 180), (5, 60, 180, 720), 0.0, costs),
    Definition("updates-contents", "The table after these batches", "batches", "files, or kB", (5, 60, 180),
               (5, 60, 180, 720), 0.0, contents),
)  # fmt: skip
