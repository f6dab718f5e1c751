"""Waiting segments: what a backlog costs in each tick, and at a start."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
from benchmarks.apply import SCHEMA, rows_of
from benchmarks.scale.curve import Definition, Points

from levada.apply.backlog import Backlog
from levada.pgoutput.changes import TRANSACTIONS, ChangeBatch, TableChanges
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, XID, change_schema
from levada.segments import SegmentLog, Staging
from levada.segments.ledger import Ledger
from levada.segments.manifest import Manifest
from levada.values import Lsn, QualifiedTable, TableId, Witness

TABLES = 1000
_CHANGED = 20
"""Tables with changes in a segment, in turn."""
_STEP = 1000


def segments(log: SegmentLog, count: int) -> list[Manifest]:
    """Stage so many segments, each with a row of `_CHANGED` of the tables."""
    versions = [replace(SCHEMA, id=TableId(n), name=QualifiedTable("public", f"t{n}")) for n in range(TABLES)]
    arrow = change_schema(SCHEMA, old=False, unchanged=False, unrepresentable=False)
    row = rows_of(np.arange(1), 1).to_batches()[0]
    staged = []
    for number in range(count):
        lsn = number * _STEP + 10
        beside = {
            OP: pa.array(["I"]), COMMIT_LSN: pa.array([lsn]), ORDINAL: pa.array([0]), XID: pa.array([number]),
            COMMIT_TS: pa.array([1_700_000_000_000_000 + number]).cast(pa.timestamp("us", "UTC")),
        }  # fmt: skip
        rows = pa.RecordBatch.from_arrays(
            [row.column(f.name) if f.name in SCHEMA.arrow.names else beside[f.name] for f in arrow], schema=arrow
        )
        changed = [versions[(number * _CHANGED + n) % TABLES] for n in range(_CHANGED)]
        batch = ChangeBatch(
            tuple(TableChanges(v, rows) for v in changed), _CHANGED, 1, Lsn(lsn + 10), False,
            Witness(Lsn(lsn), number, 1_700_000_000_000_000 + number), TRANSACTIONS.empty_table(), None,
        )  # fmt: skip
        writer = log.writer(1, Lsn(number * _STEP))
        writer.add(batch)
        staged.append(writer.commit(Lsn((number + 1) * _STEP)))
    return staged


def waiting(sizes: Sequence[int], folder: Path) -> Points:
    staging = Staging.open(str(folder / "staging"), durable=False)
    log = SegmentLog(staging, "shop")
    every = segments(log, max(sizes) + 1)
    points: Points = {"add a segment": [], "pending rows and position of 1,000 tables": [], "apply the oldest": []}
    for size in sizes:
        kept = Backlog(Ledger())
        for n in range(TABLES):
            kept.track(TableId(n), Lsn(0))
        for manifest in every[:size]:
            kept.add_segment(manifest)
        end = every[size - 1].end_lsn

        def sweep(kept: Backlog = kept, end: Lsn = end) -> None:
            for n in range(TABLES):
                kept.pending(TableId(n))
                kept.position(TableId(n), end)
            kept.pop_unneeded()
            kept.min_applied_lsn(end)

        def apply_oldest(kept: Backlog = kept) -> None:
            for f in every[0].files:
                kept.next_batch(f.table, 10)
                kept.applied(f.table, every[0].end_lsn)

        points["add a segment"].append((size, _ms(lambda kept=kept, size=size: kept.add_segment(every[size]))))
        points["pending rows and position of 1,000 tables"].append((size, _ms(sweep)))
        points["apply the oldest"].append((size, _ms(apply_oldest)))
    return points


def start(sizes: Sequence[int], folder: Path) -> Points:
    points: Points = {"list and keep the segments": [], "find the end of the newest": []}
    for size in sizes:
        staging = Staging.open(str(folder / f"staging_{size}"), durable=False)
        segments(SegmentLog(staging, "shop"), size)
        log, kept = SegmentLog(staging, "shop"), Backlog(Ledger())

        def begin(log: SegmentLog = log, kept: Backlog = kept) -> None:
            for manifest in log.list():
                kept.add_segment(manifest)
            for n in range(TABLES):
                kept.track(TableId(n), Lsn(0))

        points["list and keep the segments"].append((size, _ms(begin) / 1000))
        points["find the end of the newest"].append((size, _ms(log.end) / 1000))
    return points


def _ms(step: Callable[[], object]) -> float:
    cpu = time.process_time()
    step()
    return (time.process_time() - cpu) * 1000


DEFINITIONS = (
    Definition("backlog", "Steps of the supervisor with 1,000 tables, by the segments that wait", "waiting segments",
               "CPU ms", (60, 600, 3600), (60, 600, 3600, 10_800), 0.0, waiting),
    Definition("start", "A start with 1,000 tables, by the segments that wait", "waiting segments", "CPU s",
               (100, 1000, 10_000), (100, 1000, 10_000), 1.0, start),
)  # fmt: skip
