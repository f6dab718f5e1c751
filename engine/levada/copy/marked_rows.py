"""The rows of a copy with the column that marks deleted rows, which the source does not have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from levada.copy.rows import CopiedRows, RangeKeeper, TableRows
from levada.schema import ReplicatedTableSchema
from levada.schema.kept_rows import DELETED_AT, with_deleted_at

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_MARK: Final = pa.timestamp("us", "UTC")


@dataclass(frozen=True, slots=True)
class _Marked(Generic[T]):
    """Calls ``fn`` with the rows of a partition, none of which is marked. It is pickled into tasks."""

    fn: Callable[[pa.RecordBatchReader], T]
    schema: ReplicatedTableSchema

    def __call__(self, reader: pa.RecordBatchReader) -> T:
        return self.fn(_unmarked(reader, self.schema))


class MarkedRows(TableRows):
    """The rows of a table whose deleted rows are marked. None of them is."""

    def __init__(self, inner: TableRows) -> None:
        self._inner = inner
        self.schema = with_deleted_at(inner.schema)

    @property
    def kept_place(self) -> str | None:  # type: ignore[override]  # as of now, because the copy sets it while it runs
        """The place of the finished ranges that a copy of this table has kept."""
        return self._inner.kept_place

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run ``fn`` in another process for each partition, and return the results."""
        return self._inner.map_partitions(_Marked(fn, self.schema))

    def map_ranges(self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T]) -> CopiedRows[T]:
        """Run ``fn`` as `map_partitions` does, and keep the results."""
        return self._inner.map_ranges(_Marked(fn, self.schema), keeper)

    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame."""
        from pyspark.sql import functions

        return self._inner.to_spark().withColumn(DELETED_AT, functions.lit(None).cast("timestamp"))

    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process."""
        return _unmarked(self._inner.batches(), self.schema)


def _unmarked(reader: pa.RecordBatchReader, schema: ReplicatedTableSchema) -> pa.RecordBatchReader:
    form = reader.schema.append(schema.arrow.field(DELETED_AT))
    return pa.RecordBatchReader.from_batches(form, map(unmarked, reader))


def unmarked(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows of the source with the column of the mark, which none of them has."""
    return rows.append_column(DELETED_AT, pa.nulls(rows.num_rows, _MARK))


def marked(rows: pa.RecordBatch, at: datetime) -> pa.RecordBatch:
    """Return rows of the destination with the mark ``at``, but for those that have one."""
    place = rows.schema.get_field_index(DELETED_AT)
    return rows.set_column(place, rows.schema.field(place), pc.fill_null(rows.column(place), pa.scalar(at, _MARK)))
