"""A large batch of staged changes onto an Iceberg table: written by the engine's process, and by 1, 2 and 4 tasks.

Each turn applies a batch in each of these ways, one after another, to the same table of ten columns. 70 % of the
changes are updates, 10 % deletes, 20 % inserts. Prints rows/s and CPU seconds of the whole process tree, and both in
relation to the engine's process. Rows/s say something only on a machine with as many free cores as tasks. Usage::

    python -m benchmarks.batch_tasks [--rows 2000000] [--changes 1600000] [--note-bytes 0] [--turns 3]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks.apply import OURS, PIPELINE, SCHEMA, TARGET, Base, rows_of
from benchmarks.measure import Meter, Usage, table

from levada.copy.spark_tasks import SparkTasks
from levada.destinations import DestinationContext
from levada.destinations.iceberg import IcebergDestination
from levada.destinations.iceberg.settings import Settings
from levada.pgoutput.changes import TRANSACTIONS, ChangeBatch, TableChanges
from levada.runtime.resources.spark import spark_session
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID, change_schema
from levada.segments import Manifest, SegmentLog, StagedBatch, Staging, TableStart
from levada.values import Lsn, Watermark, Witness

PLACES = (0, 1, 2, 4)
SEGMENT = 400_000
SLICE = 10_000


@dataclass(frozen=True)
class Places(SparkTasks):
    """Tasks in Spark, so many at the same time."""

    count: int = 1

    def free_places(self) -> int:
        return self.count


class Changes:
    """Stages batches of changes, and knows which keys there are."""

    def __init__(self, rows: int, folder: Path, note_bytes: int) -> None:
        self.staging = Staging.open(str(folder), durable=False)
        self.live, self.next, self.lsn, self.note_bytes = np.arange(1, rows + 1), rows + 1, 2000, note_bytes
        self.random = np.random.default_rng(1)

    def batch(self, changes: int) -> StagedBatch:
        log, after = SegmentLog(self.staging, PIPELINE), Lsn(self.lsn)
        manifests = [self._segment(log, min(SEGMENT, changes - first)) for first in range(0, changes, SEGMENT)]
        return StagedBatch(self.staging, manifests, [TableStart(TARGET, after)], Lsn(self.lsn))

    def _segment(self, log: SegmentLog, changes: int) -> Manifest:
        inserts, deletes = changes // 5, changes // 10
        old = self.random.choice(self.live, changes - inserts, replace=False)
        ids = np.concatenate([old, np.arange(self.next, self.next + inserts)])
        op = np.repeat(["U", "D", "I"], [changes - inserts - deletes, deletes, inserts])
        self.live = np.concatenate([np.setdiff1d(self.live, old[len(old) - deletes :]), ids[len(old) :]])
        self.next += inserts
        writer = log.writer(1, Lsn(self.lsn))
        for first in range(0, changes, SLICE):
            self.lsn += 10
            writer.add(self._slice(ids[first : first + SLICE], op[first : first + SLICE]))
        self.lsn += 10
        return writer.commit(Lsn(self.lsn))

    def _slice(self, ids: np.ndarray, op: np.ndarray) -> ChangeBatch:
        n, lsn = len(ids), self.lsn
        rows = rows_of(ids, lsn).combine_chunks()
        if self.note_bytes:
            notes = pa.array([self.random.bytes(self.note_bytes // 2).hex() for _ in range(n)])
            rows = rows.set_column(rows.schema.get_field_index("b"), "b", notes)
        beside = {
            OP: pa.array(op),
            COMMIT_LSN: pa.repeat(lsn, n),
            ORDINAL: pa.array(np.arange(n)),
            XID: pa.repeat(lsn, n),
            COMMIT_TS: pa.repeat(1_700_000_000_000_000, n).cast(pa.timestamp("us", "UTC")),
        }
        arrow = change_schema(SCHEMA, old=False, unchanged=False, unrepresentable=False)
        columns = [
            rows.column(f.name).combine_chunks() if f.name in rows.column_names else beside[f.name] for f in arrow
        ]
        changes = TableChanges(SCHEMA, pa.RecordBatch.from_arrays(columns, schema=arrow))
        last = Witness(Lsn(lsn), lsn, 1_700_000_000_000_000)
        return ChangeBatch((changes,), n, 1, Lsn(lsn + 1), False, last, TRANSACTIONS.empty_table(), None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--changes", type=int, default=1_600_000)
    parser.add_argument("--note-bytes", type=int, default=0, help="incompressible text of this size in each row")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    kind = IcebergDestination
    spark = spark_session("batches", cores=max(PLACES), defaults=kind.spark_conf(None), jars=kind.jars())
    used: dict[int, list[Usage]] = {places: [] for places in PLACES}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        settings = Settings.model_validate({"catalog": {"type": "Hadoop", "warehouse": str(folder / "lake")}})
        destination = kind.from_settings(settings, DestinationContext(PIPELINE, folder / "work", spark))
        destination.write_table_rows(TARGET, Base(options.rows), Watermark(PIPELINE, 1, Lsn(2000)))
        source = Changes(options.rows, folder / "staging", options.note_bytes)
        # The first turn warms all of them, and is not counted.
        for turn in range(options.turns + 1):
            for places in PLACES:
                destination.batch_tasks = Places(spark, count=places) if places else None
                batch = source.batch(options.changes)
                with Meter() as meter:
                    destination.write_events(batch, Watermark(PIPELINE, 1, batch.until))
                assert bool(batch.changes(SCHEMA.id).tasks) == bool(places)
                if turn:
                    used[places].append(meter.usage)
        found = spark.table(OURS).selectExpr("count(*)", "count(distinct id)").collect()[0]
        assert tuple(found) == (len(source.live), len(source.live)), "rows are missing or twice there"
    wall, cpu = (
        {places: statistics.median(getattr(u, what) for u in usages) for places, usages in used.items()}
        for what in ("wall", "cpu")
    )
    lines = [
        [p or "engine", int(options.changes / wall[p]), cpu[p], wall[0] / wall[p], cpu[p] / cpu[0]] for p in PLACES
    ]
    print(table(["tasks at once", "rows/s", "CPU s", "rows/s, ratio", "CPU, ratio"], lines))
    spark.stop()


if __name__ == "__main__":
    main()
