"""Minutes of small batches into one Iceberg table: what it, its readers and its commits cost as time goes on."""

from __future__ import annotations

import json
import statistics
import sys
import time
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
_EVERY_S = 2.0
"""Seconds between the beginnings of two batches, as with ``freshnessSeconds: 2``."""
_BETWEEN_MAINTENANCE = 30
"""Batches between two calls of the destination's maintenance, which has its own interval of ten minutes."""
_AVERAGED = 15
"""The cost of a commit is the median of so many."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The files of the table and the kB of its metadata after some batches, and the CPU seconds of uses of it."""

    files: int
    deletes: int
    manifests: int
    metadata_kb: float
    manifests_kb: float
    commit: float
    scan: float
    fresh_scan: float
    point: float
    fresh_point: float


def costs(sizes: Sequence[int], folder: Path) -> Points:
    names = ("a commit", "full scan", "full scan, rewritten", "one row", "one row, rewritten")
    points: Points = {name: [] for name in names}
    for batches, m in _measured(sizes, folder):
        for name, y in zip(points, (m.commit, m.scan, m.fresh_scan, m.point, m.fresh_point), strict=True):
            points[name].append((batches, max(0.01, y)))
    return points


def contents(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {name: [] for name in ("data files", "delete files", "manifests", "kB metadata", "kB manifests")}
    for batches, m in _measured(sizes, folder):
        for name, y in zip(points, (m.files, m.deletes, m.manifests, m.metadata_kb, m.manifests_kb), strict=True):
            points[name].append((batches, max(1, y)))
    return points


_known: dict[tuple[int, ...], list[tuple[int, Measured]]] = {}


def _measured(sizes: Sequence[int], folder: Path) -> list[tuple[int, Measured]]:
    """Return the figures after each number of batches. Both curves are of the same run."""
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
    settings = Settings.model_validate({"catalog": {"type": "Hadoop", "warehouse": str(folder / "lake")}})
    destination = IcebergDestination.from_settings(settings, DestinationContext(PIPELINE, folder / "work", spark))
    destination.write_table_rows(TARGET, Base(_ROWS), Watermark(PIPELINE, 1, Lsn(1000)))
    source, found, used = Source(_ROWS, folder), [], []
    for number in range(1, max(sizes) + 1):
        due = time.monotonic() + _EVERY_S
        events = source.batch(_CHANGES, number)
        with Meter() as meter:
            destination.write_events(Batch(events), Watermark(PIPELINE, 1, events.until))
        used.append(meter.usage.cpu)
        events.path.unlink()
        if number % _BETWEEN_MAINTENANCE == 0:
            destination.maintain(TARGET.id)
        time.sleep(max(0.0, due - time.monotonic()))
        if number in sizes:
            found.append((number, _look(spark, folder, used[-_AVERAGED:])))
            print(f"after {number} batches: {found[-1][1]}", file=sys.stderr, flush=True)
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
    manifests = [length for [length] in spark.sql(f"SELECT length FROM {OURS}.manifests").collect()]
    summary = next(s for s in metadata["snapshots"] if s["snapshot-id"] == metadata["current-snapshot-id"])["summary"]
    return Measured(
        int(summary["total-data-files"]),
        int(summary["total-delete-files"]),
        len(manifests),
        len(json.dumps(metadata)) / 1000,
        sum(manifests) / 1000,
        statistics.median(commits),
        _cpu(scan, OURS),
        _cpu(scan, fresh),
        _cpu(point, OURS),
        _cpu(point, fresh),
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
    Definition("updates-costs", "1,000 changes every 2 s to 200,000 rows: CPU of a batch and of readers", "batches",
               "CPU s", (30, 90), (30, 90, 270, 360, 570, 900), 0.0, costs),
    Definition("updates-contents", "1,000 changes every 2 s to 200,000 rows: files of the table", "batches",
               "files, or kB", (30, 90), (30, 90, 270, 360, 570, 900), 0.0, contents),
)  # fmt: skip
