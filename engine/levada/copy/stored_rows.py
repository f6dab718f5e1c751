"""The rows of a copy with the columns that the source does not have: the mark of deleted rows, and metadata."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from levada.copy.rows import CopiedRows, RangeKeeper, TableRows
from levada.schema import Column, TableTarget
from levada.schema.kept_rows import DELETED_AT, DELETED_AT_ATTNUM, has_deleted_at
from levada.schema.metadata import COLUMNS, ReadMoment, read_values
from levada.values import MetadataColumn

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class OwnValues:
    """The columns of a table that the source does not have, each with the value of rows that are read there."""

    values: tuple[tuple[Column, Any], ...]

    @classmethod
    def of(cls, target: TableTarget, moment: ReadMoment) -> Self:
        """Return the values of rows that were read at a moment. None of them is marked as deleted."""
        marks = [(target.schema.by_attnum[DELETED_AT_ATTNUM], None)] if has_deleted_at(target.schema) else []
        described = ((COLUMNS[one], value) for one, value in read_values(target.metadata, moment).items())
        return cls((*marks, *described))

    def add(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return rows of the source with these columns."""
        for column, value in self.values:
            values = pa.repeat(pa.scalar(value, column.type.arrow), rows.num_rows)
            rows = rows.append_column(pa.field(column.name, column.type.arrow), values)
        return rows

    def reader(self, rows: pa.RecordBatchReader) -> pa.RecordBatchReader:
        """Return a reader of rows of the source with these columns."""
        form = rows.schema
        for column, _ in self.values:
            form = form.append(pa.field(column.name, column.type.arrow))
        return pa.RecordBatchReader.from_batches(form, map(self.add, rows))


@dataclass(frozen=True, slots=True)
class _WithValues(Generic[T]):
    """Calls ``fn`` with the rows of a partition and their values. It is pickled into tasks."""

    fn: Callable[[pa.RecordBatchReader], T]
    own: OwnValues

    def __call__(self, reader: pa.RecordBatchReader) -> T:
        return self.fn(self.own.reader(reader))


class StoredRows(TableRows):
    """The rows of a copy as a destination gets them."""

    def __init__(self, inner: TableRows, own: OwnValues) -> None:
        self._inner = inner
        self._own = own
        self.schema = replace(inner.schema, columns=(*inner.schema.columns, *(column for column, _ in own.values)))

    @property
    def kept_place(self) -> str | None:  # type: ignore[override]  # as of now, because the copy sets it while it runs
        """The place of the finished ranges that a copy of this table has kept."""
        return self._inner.kept_place

    def map_partitions(self, fn: Callable[[pa.RecordBatchReader], T]) -> list[T]:
        """Run ``fn`` in another process for each partition, and return the results."""
        return self._inner.map_partitions(_WithValues(fn, self._own))

    def map_ranges(self, fn: Callable[[pa.RecordBatchReader], T], keeper: RangeKeeper[T]) -> CopiedRows[T]:
        """Run ``fn`` as `map_partitions` does, and keep the results."""
        return self._inner.map_ranges(_WithValues(fn, self._own), keeper)

    def to_spark(self) -> DataFrame:
        """Return the rows as a DataFrame."""
        from pyspark.sql import functions
        from pyspark.sql.pandas.types import from_arrow_type

        rows = self._inner.to_spark()
        for column, value in self._own.values:
            rows = rows.withColumn(column.name, functions.lit(value).cast(from_arrow_type(column.type.arrow)))
        return rows

    def batches(self) -> pa.RecordBatchReader:
        """Return the rows as a reader in this process."""
        return self._own.reader(self._inner.batches())


def stored_rows(rows: TableRows, target: TableTarget, moment: ReadMoment) -> TableRows:
    """Return the rows of a copy as a destination gets them. ``moment`` is that of the copy's snapshot."""
    own = OwnValues.of(target, moment)
    return StoredRows(rows, own) if own.values else rows


def marked(rows: pa.RecordBatch, moment: ReadMoment) -> pa.RecordBatch:
    """Return rows of the destination that are deleted at the source by a moment, with the mark.

    Those that have a mark stay as they are.
    """
    others = pc.is_null(rows.column(DELETED_AT))
    values: dict[str, Any] = {
        DELETED_AT: moment.at,
        COLUMNS[MetadataColumn.COMMIT_TIME].name: moment.at,
        COLUMNS[MetadataColumn.LSN].name: int(moment.lsn),
        COLUMNS[MetadataColumn.OPERATION].name: "D",
        COLUMNS[MetadataColumn.TRANSACTION_ID].name: None,
    }
    for place, field in enumerate(rows.schema):
        if field.name in values:
            now = pc.if_else(others, pa.scalar(values[field.name], field.type), rows.column(place))
            rows = rows.set_column(place, field, now)
    return rows
