"""The rows of a copy, held in memory."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import cloudpickle
import pyarrow as pa

from levada.copy.rows import TableRows
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


class ArrowRows(TableRows):
    """The rows of a copy in memory, in one or more partitions.

    Functions are pickled, as they are on their way to a task. `to_spark` needs an active Spark session.
    """

    def __init__(self, schema: ReplicatedTableSchema, *partitions: pa.Table | pa.RecordBatch) -> None:
        self.schema = schema
        self._partitions = [p.to_batches() if isinstance(p, pa.Table) else [p] for p in partitions]

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, *partitions: Iterable[Mapping[str, Any]]) -> ArrowRows:
        """Return the rows, which are given as Python values by column name, in partitions."""
        return cls(schema, *(pa.RecordBatch.from_pylist([dict(r) for r in p], schema.arrow) for p in partitions))

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run a pickled copy of ``fn`` for each partition in this process."""
        task = cloudpickle.dumps(fn)
        return [pickle.loads(task)(self._reader(p)) for p in self._partitions]

    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame of the active session."""
        from pyspark.sql import SparkSession

        return SparkSession.active().createDataFrame(self.batches().read_all())

    def batches(self) -> pa.RecordBatchReader:
        """Return all partitions as one reader."""
        return self._reader([b for p in self._partitions for b in p])

    def _reader(self, batches: list[pa.RecordBatch]) -> pa.RecordBatchReader:
        return pa.RecordBatchReader.from_batches(self.schema.arrow, self._read(batches))

    def _read(self, batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        return batches


class FailingRows(ArrowRows):
    """Rows whose reader calls ``fail`` before the batch of the number ``at``, from 0, or after the last one."""

    def __init__(self, rows: ArrowRows, at: int, fail: Callable[[], None]) -> None:
        self.schema = rows.schema
        self._partitions = rows._partitions
        self._at, self._fail = at, fail
        self._seen = 0

    def _read(self, batches: list[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        for batch in batches:
            self._count()
            self._seen += 1
            yield batch
        self._count()

    def _count(self) -> None:
        if self._seen == self._at:
            self._fail()
