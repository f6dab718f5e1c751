"""The column that marks kept rows, which a destination keeps although the source has deleted them.

It is a column of the table at the destination only. The store, the staging area and the source do not have it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from levada.schema.changes import RESERVED_PREFIX
from levada.schema.partitions import Box, Condition, Region
from levada.schema.table import Column, ReplicatedTableSchema
from levada.schema.types import ColumnType, Kind

DELETED_AT: Final = f"{RESERVED_PREFIX}deleted_at"
"""The commit time of the transaction that deleted the row, NULL for a row that the source has."""

DELETED_AT_ATTNUM: Final = 32_000
"""The attnum that stands for the column. No table in PostgreSQL has more than 1,600 columns, dropped ones included."""

KEPT: Final = "K"
"""The operation of a change that keeps a row under its key: all values are unchanged but for the mark.

It stands where the stream has a delete. It does nothing if there is no such row, because a destination cannot keep a
row that it never had, such as one that was attached with a partition and deleted before it was read.
"""

_COLUMN: Final = Column(
    DELETED_AT_ATTNUM, DELETED_AT, ColumnType(Kind.TIMESTAMPTZ), "timestamp with time zone", type_oid=1184
)

EVERY_ROW: Final = Region(((),))
"""All rows of a table."""
LIVE_ROWS: Final = Region(((Condition((DELETED_AT_ATTNUM,), (Box(values=(None,)),)),),))
"""The rows without a mark, of a table whose deleted rows are marked."""


def has_deleted_at(schema: ReplicatedTableSchema) -> bool:
    """Return True if the version has the column of the mark."""
    return any(column.attnum == DELETED_AT_ATTNUM for column in schema.columns)


def with_deleted_at(schema: ReplicatedTableSchema) -> ReplicatedTableSchema:
    """Return the version with the column of the mark after those of the source."""
    if has_deleted_at(schema):
        return schema
    before = (c for c in schema.columns if c.attnum < DELETED_AT_ATTNUM)
    after = (c for c in schema.columns if c.attnum > DELETED_AT_ATTNUM)
    return replace(schema, columns=(*before, _COLUMN, *after))
