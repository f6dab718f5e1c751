"""The rows of small tables, read one table after the other in one session under a snapshot, and held in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

import pyarrow as pa

from levada.copy.guard import READERS
from levada.copy.in_process import keep_sessions
from levada.copy.plan import plan_ranges
from levada.copy.progress import CopyMeter
from levada.copy.range_reader import RangeReader, begin_snapshot
from levada.copy.reader_sessions import SESSIONS
from levada.copy.rows import TableRows
from levada.errors import NeedsOperator
from levada.mask_keys import NO_KEY_FILES, MaskKeyFiles
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.silence import WatchedConnection
from levada.postgres.slots import ExportedSnapshot
from levada.schema import ReplicatedTableSchema
from levada.values import OnUnrepresentable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from levada.postgres.catalog import PublishedTable
    from levada.status import CopyProgress

T = TypeVar("T")

_ONE: Final = 1
"""The ranges of a partition of a small table."""


class ReadRows(TableRows):
    """The rows of one table, of which none has to be read any more."""

    def __init__(
        self, schema: ReplicatedTableSchema, partitions: Sequence[Sequence[pa.RecordBatch]], meter: CopyMeter
    ) -> None:
        self.schema = schema
        self._partitions = partitions
        self._meter = meter

    @property
    def bytes(self) -> int:
        """The memory of the rows, in bytes."""
        return sum(batch.nbytes for part in self._partitions for batch in part)

    def progress(self) -> CopyProgress:
        """Return the progress, which is that of a complete copy."""
        return self._meter.progress()

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Call ``fn`` in this process for each partition, and return the results."""
        return [fn(self._reader(part)) for part in self._partitions]

    def to_spark(self) -> DataFrame:
        """Raise NeedsOperator ``spark_not_requested``, because a group is not written by Spark."""
        raise NeedsOperator(
            "spark_not_requested",
            f"the destination reads {self.schema.name} by Spark, but it writes small tables as a group",
            hint="return no group_writer from the destination, or read the rows by map_ranges",
        )

    def batches(self) -> pa.RecordBatchReader:
        """Return all partitions as one reader."""
        return self._reader([batch for part in self._partitions for batch in part])

    def _reader(self, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema.arrow, batches)


@dataclass(slots=True)
class SnapshotReader:
    """Reads small tables in a snapshot. The session begins with the first table, and again after an error.

    ``wait_s`` is the longest wait for a lock of a table, in seconds, and ``most_bytes`` the largest memory of its rows,
    which are compressed at the source. ``policy`` and ``mask_keys`` are those of
    `RangeReader`.
    """

    server: PostgresConnection
    snapshot: ExportedSnapshot
    wait_s: float
    most_bytes: int
    policy: OnUnrepresentable = OnUnrepresentable.ERROR
    mask_keys: MaskKeyFiles = NO_KEY_FILES
    _connection: WatchedConnection | None = None

    def read(self, published: PublishedTable, schema: ReplicatedTableSchema) -> ReadRows | None:
        """Return the rows of a table, None if they take more than ``most_bytes``.

        Raise the errors of `RangeReader.batches`, and Transient ``lock_timeout``.
        """
        connection = self._begun()
        ranges = plan_ranges(published.leaves, _ONE)
        meter = CopyMeter(published.estimated_rows, sum(part.bytes for part in ranges), len(ranges))
        meter.start()
        partitions, most = [], self.most_bytes
        for part in ranges:
            reader = RangeReader(self.server, self.snapshot, schema, published.row_filter, self.policy, self.mask_keys)
            try:
                batches = self._limited(reader.batches_in(connection, part), most)
            except BaseException:
                self._abandon(connection)
                raise
            if batches is None:
                self._abandon(connection)
                return None
            partitions.append(batches)
            most -= sum(batch.nbytes for batch in batches)
            meter.add(reader.rows, part.bytes, reader.unrepresentable)
        return ReadRows(schema, partitions, meter)

    def _limited(self, batches: Iterator[pa.RecordBatch], most: int) -> list[pa.RecordBatch] | None:
        found = []
        for batch in batches:
            most -= batch.nbytes
            if most < 0:
                return None
            found.append(batch)
        return found

    def _abandon(self, connection: WatchedConnection) -> None:
        """Close a session that is in the middle of a COPY, or whose transaction has failed."""
        self._connection = None
        connection.close()

    def _begun(self) -> WatchedConnection:
        if self._connection is None:
            connection = SESSIONS.take(self.server, READERS)
            try:
                begin_snapshot(connection, self.snapshot, self.wait_s)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def close(self) -> None:
        """End the transaction, and with it the locks of the tables."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                with source_errors("ending the copy's snapshot"):
                    connection.commit()
            except BaseException:
                connection.close()
                raise
            SESSIONS.put_back(self.server, READERS, connection)


@contextmanager
def snapshot_reader(reader: SnapshotReader) -> Iterator[SnapshotReader]:
    """Yield the reader, and end its session afterwards."""
    keep_sessions()
    try:
        yield reader
    finally:
        reader.close()
