"""Staging tables: the rows of one copy or one batch, until a transaction moves them into the served table.

Each has a name of its own and an expiration, so that what a killed process left disappears by itself.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from levada.destinations.bigquery.connection import Connection
from levada.destinations.bigquery.layout import CHANGELOG, Layout
from levada.destinations.bigquery.names import TableName
from levada.destinations.bigquery.rest import RestClient
from levada.destinations.bigquery.types import staged_arrow, staged_type, to_staged
from levada.destinations.bigquery.write_api import StreamWriter, WrittenStream, write_client
from levada.destinations.interface import TableMode
from levada.errors import LevadaError
from levada.schema import ReplicatedTableSchema

PIECE: Final = "_levada_piece"
"""The number of the piece of a batch. Pieces are merged in this order."""
ACTION: Final = "_levada_action"
"""``U`` for a row to insert or update, ``D`` for a key to delete."""
UNKNOWN: Final = "_levada_unknown"
"""A 1 for each column whose value is only in the served table, and else a 0. NULL if every value is known."""
MOVED: Final = "_levada_moved"
"""Whether the values of `UNKNOWN` are those of the row with the former key."""

_EXPIRES_S: Final = {"copy": 7 * 86_400, "changes": 86_400}


@dataclass(frozen=True, slots=True)
class StagedColumns:
    """The columns of a staging table. Source columns are named by attnum, so that any name at the source is possible.

    ``copied`` has the constants of a copy's changelog columns by name.
    """

    layout: Layout
    key: tuple[int, ...]
    mode: TableMode
    is_copy: bool

    @property
    def fields(self) -> list[tuple[str, str, str, pa.DataType]]:
        """The columns' names, types and modes in BigQuery, and their Arrow types."""
        found = [
            (value_name(c.attnum), staged_type(c.type), "NULLABLE", staged_arrow(c.type)) for c in self.layout.columns
        ]
        if self.mode is TableMode.CHANGELOG:
            return found + [
                (name, kind, mode, pa.list_(pa.string()) if mode == "REPEATED" else staged_arrow(kind))
                for name, kind, mode in CHANGELOG
            ]
        if self.is_copy:
            return found
        for attnum in self.key:
            column = self.layout.get(attnum)
            assert column is not None
            found.append((former_name(attnum), staged_type(column.type), "NULLABLE", staged_arrow(column.type)))
        return [
            *found,
            (PIECE, "INT64", "NULLABLE", pa.int64()),
            (ACTION, "STRING", "NULLABLE", pa.string()),
            (UNKNOWN, "STRING", "NULLABLE", pa.string()),
            (MOVED, "BOOL", "NULLABLE", pa.bool_()),
        ]

    @property
    def arrow(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        return pa.schema([pa.field(name, kind) for name, _, _, kind in self.fields])

    def rows(
        self, values: pa.Table | pa.RecordBatch, schema: ReplicatedTableSchema, more: Mapping[str, Any]
    ) -> pa.Table:
        """Return staged rows. ``values`` has source columns of ``schema``, and ``more`` the other columns.

        A column in neither is NULL.
        """
        arrays = dict(more)
        for column in self.layout.columns:
            source = schema.by_attnum.get(column.attnum)
            if source is not None and source.name in values.schema.names:
                staged = to_staged(values.column(source.name), source, column.type, schema.name)
                arrays[value_name(column.attnum)] = staged
        return pa.table(
            [arrays[f.name] if f.name in arrays else _absent(f.type, values.num_rows) for f in self.arrow],
            schema=self.arrow,
        )


def _absent(kind: pa.DataType, count: int) -> pa.Array:
    # BigQuery's arrays are never NULL.
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), count + 1), pa.nulls(0, kind.value_type))
    return pa.nulls(count, kind)


def value_name(attnum: int) -> str:
    """Return the name of the staged column with a source column's values."""
    return f"c{attnum}"


def former_name(attnum: int) -> str:
    """Return the name of the staged column with the key from which unknown values come."""
    return f"f{attnum}"


@contextmanager
def staging_table(rest: RestClient, dataset: TableName, columns: StagedColumns) -> Iterator[TableName]:
    """Create a staging table, and drop it at the end. ``dataset`` is any table of the metadata dataset."""
    kind = "copy" if columns.is_copy else "changes"
    name = TableName(dataset.project, dataset.dataset, f"{kind}_{uuid.uuid4().hex}")
    fields = [{"name": n, "type": t, "mode": m} for n, t, m, _ in columns.fields]
    expires = int((time.time() + _EXPIRES_S[kind]) * 1000)
    rest.create_table(name, {"schema": {"fields": fields}, "expirationTime": str(expires)})
    try:
        yield name
    finally:
        # It expires if it cannot be dropped now.
        with suppress(LevadaError):
            rest.drop_table(name)


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes one partition of a copy to a stream. It is pickled into other processes.

    ``constants`` has the values of columns that the rows lack, by column name.
    """

    connection: Connection
    table: TableName
    columns: StagedColumns
    schema: ReplicatedTableSchema
    constants: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, reader: pa.RecordBatchReader) -> WrittenStream:
        """Write the rows, and return the stream."""
        types = self.columns.arrow
        with (
            write_client(self.connection) as client,
            StreamWriter(client, self.table, types) as writer,
        ):
            for batch in reader:
                more = {
                    n: pa.repeat(pa.scalar(v, types.field(n).type), batch.num_rows) for n, v in self.constants.items()
                }
                writer.write(self.columns.rows(batch, self.schema, more))
            return writer.finish()
