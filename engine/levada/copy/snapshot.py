"""The rows of a table in an exported snapshot, read by tasks in other processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa

from levada import codes
from levada.copy.guard import TableGuard
from levada.copy.in_process import IN_PROCESS
from levada.copy.plan import RANGES, BlockRange, RangeLimits, plan_ranges
from levada.copy.progress import CopyMeter
from levada.copy.range_reader import RangeReader
from levada.copy.rows import FinishedRange, TableRows
from levada.copy.tasks import TaskRunner, run_tasks
from levada.errors import LevadaError, NeedsOperator, Transient
from levada.mask_keys import NO_KEY_FILES, MaskKeyFiles
from levada.postgres.connection import PostgresConnection
from levada.postgres.slots import ExportedSnapshot
from levada.schema import ReplicatedTableSchema
from levada.schema.metadata import ReadMoment
from levada.status import CopyProgress
from levada.values import OnUnrepresentable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from levada.postgres.catalog import PublishedTable

T = TypeVar("T")


class SnapshotRows(TableRows):
    """All rows of one published table in ``snapshot``. The caller keeps the snapshot open.

    ``runner`` runs the tasks, and ``connections`` is the maximum number of connections. If ``cancelled`` is set,
    `map_partitions` raises Transient ``copy_cancelled``. ``guard`` holds the table's locks. Reading succeeds only if it
    held them to the end. ``note`` is that of `CopyProgress`. ``mask_keys`` are those of masked columns.
    """

    moment: ReadMoment
    """The moment of the snapshot."""

    def __init__(
        self,
        runner: TaskRunner,
        connection: PostgresConnection,
        snapshot: ExportedSnapshot,
        published: PublishedTable,
        schema: ReplicatedTableSchema,
        *,
        connections: int,
        policy: OnUnrepresentable = OnUnrepresentable.ERROR,
        cancelled: threading.Event | None = None,
        guard: TableGuard | None = None,
        note: str = "",
        limits: RangeLimits = RANGES,
        mask_keys: MaskKeyFiles = NO_KEY_FILES,
    ) -> None:
        self.schema = schema
        self.moment = ReadMoment(snapshot.lsn, snapshot.began or datetime.now(UTC))
        self._runner = runner
        self._in_process_bytes = limits.in_process_bytes
        self._connections = connections
        self._cancelled = cancelled or threading.Event()
        self._guard = guard
        self._reader = RangeReader(connection, snapshot, schema, published.row_filter, policy, mask_keys)
        self.ranges = plan_ranges(published.leaves, connections, limits)
        self._meter = CopyMeter(published.estimated_rows, sum(r.bytes for r in self.ranges), len(self.ranges))
        self._meter.describe(resumable=False, note=note)

    def progress(self) -> CopyProgress:
        """Return the current progress. May be called from any thread."""
        return self._meter.progress()

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run ``fn`` in one task for each range of blocks, in this process for a small table.

        See `TableRows.map_partitions`.

        Raise a task's error with its original type. A task that raises Transient is retried.
        """
        self._meter.start()
        results = self._run([partial(run_range, self._reader, part, fn) for part in self.ranges], self._count)
        self.check()
        return [r.value for r in results]

    def _run(self, tasks: Sequence[Callable[[], T]], done: Callable[[int, T], None]) -> list[T]:
        most = self._in_process_bytes
        small = bool(most) and sum(part.bytes for part in self.ranges) <= most
        return run_tasks(
            IN_PROCESS if small else self._runner,
            tasks,
            f"copy of {self.schema.name}",
            parallel=1 if small else self._connections,
            cancelled=self._cancelled,
            done=done,
            final=frozenset({codes.SNAPSHOT_GONE, codes.TABLE_CHANGED}),
            ended=self._ended,
        )

    def _ended(self) -> LevadaError | None:
        return None if self._guard is None else self._guard.ended()

    def check(self) -> None:
        """Release the table's locks. Raise Transient if the table may have changed during the copy."""
        if self._guard is not None:
            self._guard.release()

    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame. Call `check` after Spark has read it.

        The progress does not include Spark's work with it, and ``cancelled`` does not stop that work. Raise
        NeedsOperator ``spark_not_requested`` for a destination without the capability ``spark``.
        """
        if self._runner.spark is None:
            raise NeedsOperator(
                "spark_not_requested",
                f"the destination reads {self.schema.name} by Spark, but did not ask for a Spark session",
                hint="set spark=True in the capabilities of the destination's class",
            )
        from levada.copy.source import read_ranges

        return read_ranges(self._runner.spark, self._reader, self.ranges, self._connections)

    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process, one range after another."""
        self._meter.start()
        return pa.RecordBatchReader.from_batches(self.schema.arrow, self._read_here())

    def _read_here(self) -> Iterator[pa.RecordBatch]:
        for part in self.ranges:
            rows, unrepresentable = self._reader.rows, self._reader.unrepresentable
            try:
                for batch in self._reader.batches(part):
                    if (ended := self._ended()) is not None:
                        raise ended
                    yield batch
            except Transient as error:
                # The guard ends the reader's session, which raises an error of its own.
                if (ended := self._ended()) is not None and ended is not error:
                    raise ended from error
                raise
            self._meter.add(self._reader.rows - rows, part.bytes, self._reader.unrepresentable - unrepresentable)
        self.check()

    def _count(self, index: int, result: FinishedRange[Any], *, earlier: bool = False) -> None:
        self._meter.add(result.rows, self.ranges[index].bytes, result.unrepresentable, earlier=earlier)


def run_range(
    reader: RangeReader, part: BlockRange, fn: Callable[[pa.RecordBatchReader], T]
) -> FinishedRange[T]:  # runs in a Python worker
    """Run ``fn`` on the rows of a range."""
    value = fn(pa.RecordBatchReader.from_batches(reader.schema.arrow, reader.batches(part)))
    return FinishedRange(value, reader.rows, reader.unrepresentable)
