"""The columns of a table's data files, and the conversion of rows to them. Pure.

Columns are identified by field IDs, as a name may change. In a data file each column has its field ID in the metadata
that Parquet has for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from levada.destinations.data_files.source_types import as_stored
from levada.errors import NeedsOperator
from levada.schema import Column, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED

FIELD_ID: Final = b"PARQUET:field_id"

CHANGELOG_COLUMNS: Final[Mapping[str, pa.DataType]] = {
    OP: pa.string(),
    COMMIT_LSN: pa.int64(),
    ORDINAL: pa.int64(),
    COMMIT_TS: pa.timestamp("us", "UTC"),
    UNCHANGED: pa.list_(pa.string()),
}
"""The additional columns of a changelog. The last one has the names of columns with unknown values."""


Order = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Part:
    """The rows ``begin <= row < end`` of arranged rows, which belong to one partition.

    ``partition`` is in the form of the table's format, and None in a table without partitions.
    """

    partition: Hashable
    begin: int
    end: int


class Arrangement(Protocol):
    """Divides rows among partitions, and sorts them. It is pickled into the tasks of a copy."""

    def arrange(self, rows: pa.Table) -> tuple[Order, Sequence[Part]]:
        """Return the new order of rows in the columns of the data files, and the parts of the arranged rows."""
        ...


@dataclass(frozen=True, slots=True)
class FileLayout:
    """The columns of a table's data files, in order.

    Each field of ``arrow`` has its field ID in its metadata, as the value of `FIELD_ID`. The metadata of ``arrow`` is
    written to each file. ``attnums`` maps attnums of the source to field IDs. ``missing`` has the values of rows in
    files that lack a column, by field ID, as arrays of one value in the source's type. Without an entry they are NULL.
    A layout is pickled into tasks. Arrow would pickle a scalar as a Python object, which not every date has.
    """

    arrow: pa.Schema
    attnums: Mapping[int, int]
    missing: Mapping[int, pa.Array] = field(default_factory=dict)
    arrangement: Arrangement | None = None
    """The partitions and the order of rows in new files, or None if rows are written as they come."""

    def column(self, attnum: int) -> pa.Field | None:
        """Return the field for a column of the source, or None if the table does not have it."""
        wanted = self.attnums.get(attnum)
        return next((f for f in self.arrow if wanted is not None and field_id(f) == wanted), None)

    def columns_of(self, schema: ReplicatedTableSchema) -> Iterator[tuple[pa.Field, Column | None]]:
        """Yield each field with its source column, or with None if the source has no such column."""
        by_id = {self.attnums[c.attnum]: c for c in schema.columns if c.attnum in self.attnums}
        for f in self.arrow:
            number = field_id(f)
            yield f, None if number is None else by_id.get(number)


def field_id(field: pa.Field) -> int | None:
    """Return the field ID of a column, or None if it has none."""
    if field.metadata is None or FIELD_ID not in field.metadata:
        return None
    return int(field.metadata[FIELD_ID])


def names_by_id(file: pq.ParquetFile) -> Mapping[int, str]:
    """Return a file's column names by field ID. After a rename they differ from the table's names."""
    return {number: f.name for f in file.schema_arrow if (number := field_id(f)) is not None}


def project(rows: pa.Table | pa.RecordBatch, layout: FileLayout, schema: ReplicatedTableSchema) -> pa.Table:
    """Return rows of the source table in the columns of the data files. Other columns are NULL.

    The columns of a changelog are taken from the rows, if these have them.
    """
    arrays = []
    for column, source in layout.columns_of(schema):
        if source is not None:
            arrays.append(rows.column(source.name))
        elif column.name in CHANGELOG_COLUMNS and column.name in rows.schema.names:
            arrays.append(rows.column(column.name))
        else:
            arrays.append(pa.nulls(rows.num_rows, column.type))
    return cast_columns(arrays, layout.arrow, str(schema.name))


def cast_columns(arrays: Sequence[pa.Array | pa.ChunkedArray], target: pa.Schema, table: str) -> pa.Table:
    """Return the columns as a table of this schema. Raise NeedsOperator if a value is out of range."""
    typed = []
    for array, wanted in zip(arrays, target, strict=True):
        try:
            typed.append(as_stored(array, wanted.type))
        except pa.ArrowInvalid:
            # Arrow's message contains the value, so do not chain it.
            raise NeedsOperator(
                "value_out_of_range",
                f"{table}: a value of column {wanted.name} does not fit {wanted.type}",
                hint="copy the table again: levada resync MANIFEST TABLE",
            ) from None
    return pa.Table.from_arrays(typed, schema=target)
