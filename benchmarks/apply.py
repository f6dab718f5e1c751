"""A batch of changes onto an Iceberg table: this destination and Iceberg's MERGE (merge-on-read), in turns.

Two tables of the same rows get the same batches, 70 % updates, 10 % deletes, 20 % inserts, read from the same Parquet
file. Prints wall and CPU seconds of the whole process tree, a full scan before and after, and the ratios. Usage::

    python -m benchmarks.apply [--rows 2000000 [20000000 ...]] [--changes 10 100000] [--turns 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from benchmarks.measure import Meter, table
from pyspark.sql import SparkSession

from levada.copy.rows import TableRows
from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.pgoutput.changes import Truncate
from levada.runtime.resources.spark import spark_session
from levada.schema import Column, ColumnType, IdentityKind, Kind, ReplicatedTableSchema, TableTarget
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID, change_schema
from levada.segments.batch import EventBatch, TableEvents
from levada.segments.files import SegmentFile
from levada.values import Lsn, QualifiedTable, TableId, Watermark

T = TypeVar("T")
SHAPES = {
    "id": ColumnType(Kind.INT8),
    "n": ColumnType(Kind.INT4),
    "a": ColumnType(Kind.TEXT),
    "b": ColumnType(Kind.TEXT),
    "p": ColumnType(Kind.DECIMAL, 12, 2),
    "ts": ColumnType(Kind.TIMESTAMPTZ),
    "f": ColumnType(Kind.BOOL),
    "d": ColumnType(Kind.FLOAT8),
    "u": ColumnType(Kind.UUID),
    "j": ColumnType(Kind.JSON),
}
SCHEMA = ReplicatedTableSchema(
    TableId(1),
    QualifiedTable("public", "orders"),
    tuple(Column(i, name, shape, shape.kind.value, 0) for i, (name, shape) in enumerate(SHAPES.items(), 1)),
    IdentityKind.PRIMARY_KEY,
    (1,),
    (1,),
)
TARGET = TableTarget.of(SCHEMA)
PARTITION = 250_000
PIPELINE = "benchmark"
OURS, MERGED = (f"levada_{PIPELINE}.public.{name}" for name in ("orders", "merged"))


def rows_of(ids: np.ndarray, seed: int) -> pa.Table:
    """Return rows with these keys. Their text has the seed, so that a scan can count the rows that a batch changed."""
    r, n = np.random.default_rng(seed), len(ids)
    text = pc.cast(pa.array(ids), pa.string())
    cents = pa.array(r.integers(0, 10**6, n)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2))
    columns = [
        pa.array(ids, pa.int64()),
        pa.array(r.integers(0, 1 << 30, n), pa.int32()),
        pc.binary_join_element_wise(f"seed {seed}", text, " "),
        pc.binary_join_element_wise("note of some forty characters in all", text, " "),
        cents.cast(pa.decimal128(12, 2)),
        pa.array(1_700_000_000_000_000 + r.integers(0, 10**12, n)).cast(pa.timestamp("us", "UTC")),
        pa.array(r.random(n) < 0.5),
        pa.array(r.random(n)),
        pc.binary_join_element_wise("b2e39f3d-4409-4dca-87bb", pc.utf8_lpad(text, 12, "0"), "-"),
        pc.binary_join_element_wise('{"k": ', text, ', "v": "6d86b16044ee9d5aa65bbd442129a227"}', ""),
    ]
    return pa.Table.from_arrays(
        [c.combine_chunks() if isinstance(c, pa.ChunkedArray) else c for c in columns], schema=SCHEMA.arrow
    )


class Base(TableRows):
    """The table's first rows, made partition by partition."""

    def __init__(self, rows: int) -> None:
        self.schema = SCHEMA
        self._rows = rows

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        parts = (np.arange(i + 1, min(i + PARTITION, self._rows) + 1) for i in range(0, self._rows, PARTITION))
        return [fn(rows_of(ids, 0).to_reader()) for ids in parts]

    def to_spark(self) -> Any:
        raise NotImplementedError

    def batches(self) -> pa.RecordBatchReader:
        raise NotImplementedError


@dataclass
class FileEvents(TableEvents):
    """Changes in one Parquet file, as staging keeps them."""

    path: Path
    after: Lsn
    until: Lsn
    target: TableTarget = TARGET
    versions: tuple[ReplicatedTableSchema, ...] = (SCHEMA,)
    files: tuple[SegmentFile, ...] = ()
    truncates: tuple[Truncate, ...] = ()

    def scan(
        self, columns: Sequence[str] | None = None, *, files: Sequence[SegmentFile] | None = None
    ) -> Iterator[pa.RecordBatch]:
        layout = change_schema(SCHEMA, old=True, unchanged=True, unrepresentable=True)
        with pq.ParquetFile(self.path) as file:
            for batch in file.iter_batches(batch_size=1 << 20):
                have = dict(zip(batch.schema.names, batch.columns, strict=True))
                yield pa.RecordBatch.from_arrays(
                    [have.get(f.name, pa.nulls(batch.num_rows, f.type)) for f in layout], schema=layout
                )


class Batch(EventBatch):
    def __init__(self, events: FileEvents) -> None:
        self.tables, self.until, self._events = (SCHEMA.id,), events.until, events

    def changes(self, table: TableId) -> TableEvents:
        return self._events

    def __iter__(self) -> Iterator[Any]:
        raise NotImplementedError


class Source:
    """Makes batches, and knows which keys there are."""

    def __init__(self, rows: int, folder: Path) -> None:
        self.live = np.arange(1, rows + 1)
        self.next, self.lsn, self.folder = rows + 1, 1000, folder

    def batch(self, changes: int, seed: int) -> FileEvents:
        r = np.random.default_rng(seed)
        deletes, inserts = changes // 10, changes // 5
        at = r.choice(len(self.live), changes - inserts, replace=False)
        old = self.live[at]
        ids = np.concatenate([old, np.arange(self.next, self.next + inserts)])
        op = np.repeat(["U", "D", "I"], [changes - inserts - deletes, deletes, inserts])
        self.live = np.concatenate([np.delete(self.live, at[len(at) - deletes :]), ids[len(old) :]])
        self.next += inserts
        rows = rows_of(ids, seed)
        beside = {
            OP: pa.array(op),
            COMMIT_LSN: pa.array(np.full(changes, self.lsn)),
            ORDINAL: pa.array(np.arange(changes)),
            COMMIT_TS: pa.array(np.full(changes, 1_700_000_000_000_000)).cast(pa.timestamp("us", "UTC")),
            XID: pa.array(np.full(changes, seed)),
        }
        path = self.folder / f"{seed}.parquet"
        pq.write_table(pa.table({**dict(zip(rows.column_names, rows.columns, strict=True)), **beside}), path)
        events = FileEvents(path, Lsn(self.lsn), Lsn(self.lsn + 10))
        self.lsn += 10
        return events


def merge(spark: SparkSession, events: FileEvents) -> None:
    spark.read.parquet(str(events.path)).createOrReplaceTempView("changes")
    updates = ", ".join(f"t.{c} = s.{c}" for c in SHAPES)
    spark.sql(
        f"MERGE INTO {MERGED} t USING changes s ON t.id = s.id WHEN MATCHED AND s.{OP} = 'D' THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {updates} WHEN NOT MATCHED AND s.{OP} <> 'D' THEN "
        f"INSERT ({', '.join(SHAPES)}) VALUES ({', '.join('s.' + c for c in SHAPES)})"
    )


def scan(spark: SparkSession, name: str) -> tuple[float, tuple[int, ...]]:
    """Return the best time of three full scans, and figures that differ between tables of different contents."""
    walls = []
    for _ in range(3):
        with Meter() as meter:
            found = (
                spark.table(name)
                .selectExpr("count(*)", "count(distinct id)", "bit_xor(xxhash64(*))", "count_if(d > 0.5)")
                .collect()[0]
            )
        walls.append(meter.usage.wall)
    return min(walls), tuple(found)


def compare(spark: SparkSession, rows: int, changes: Sequence[int], turns: int, folder: Path) -> dict[int, float]:
    context = DestinationContext(PIPELINE, folder / "work", spark)
    warehouse = {"catalog": {"type": "Hadoop", "warehouse": str(folder / "lake")}}
    destination = IcebergDestination.from_settings(Settings.model_validate(warehouse), context)
    destination.drop_table_for_copy(TARGET)
    with Meter() as meter:
        destination.write_table_rows(TARGET, Base(rows), Watermark(PIPELINE, 1, Lsn(1000)))
    print(f"\n## {rows:,} rows (written and indexed in {meter.usage})\n")
    spark.sql(f"DROP TABLE IF EXISTS {MERGED} PURGE")
    merge_on_read = ", ".join(f"'write.{op}.mode'='merge-on-read'" for op in ("delete", "update", "merge"))
    spark.sql(
        f"CREATE TABLE {MERGED} USING iceberg TBLPROPERTIES ('format-version'='2', {merge_on_read}) "
        f"AS SELECT * FROM {OURS}"
    )
    before = {name: scan(spark, name)[0] for name in (OURS, MERGED)}
    source, seed, walls, lines = Source(rows, folder), 1, {}, []
    for n in changes:
        # The first turn warms both, and is not counted.
        runs: dict[str, list[Any]] = {"Levada": [], "MERGE": []}
        for turn in range(turns + 1):
            events = source.batch(n, seed)
            seed += 1
            with Meter() as ours:
                destination.write_events(Batch(events), Watermark(PIPELINE, 1, events.until))
            with Meter() as theirs:
                merge(spark, events)
            if turn:
                runs["Levada"].append(ours.usage)
                runs["MERGE"].append(theirs.usage)
        wall, cpu = (
            {name: statistics.median(getattr(u, what) for u in used) for name, used in runs.items()}
            for what in ("wall", "cpu")
        )
        walls[n] = wall["Levada"]
        lines.append([n, wall["Levada"], wall["MERGE"], wall["Levada"] / wall["MERGE"], cpu["Levada"], cpu["MERGE"]])
    print(table(["changes", "Levada wall s", "MERGE wall s", "ratio", "Levada CPU s", "MERGE CPU s"], lines))
    after = {name: scan(spark, name) for name in (OURS, MERGED)}
    print()
    print(
        table(
            ["table", "scan before s", "scan after s", "ratio", "rows"],
            [[name, before[name], after[name][0], after[name][0] / before[name], after[name][1][0]] for name in after],
        )
    )
    assert after[OURS][1] == after[MERGED][1], "the two tables differ"
    assert after[OURS][1][0] == after[OURS][1][1] == len(source.live), "rows are missing or twice there"
    return walls


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, nargs="+", default=[2_000_000])
    parser.add_argument("--changes", type=int, nargs="+", default=[10, 100_000])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    spark = spark_session(
        "apply",
        conf={"spark.driver.memory": "3g"},
        defaults=IcebergDestination.spark_conf(None),
        jars=IcebergDestination.jars(),
    )
    with tempfile.TemporaryDirectory() as folder:
        walls = {n: compare(spark, n, options.changes, options.turns, Path(folder)) for n in options.rows}
    first = options.rows[0]
    for rows in options.rows[1:]:
        ratios = ", ".join(f"{n:,} changes {walls[rows][n] / walls[first][n]:.2f}" for n in options.changes)
        print(f"\nLevada, {rows:,} rows against {first:,}: {ratios}")
    spark.stop()


if __name__ == "__main__":
    main()
