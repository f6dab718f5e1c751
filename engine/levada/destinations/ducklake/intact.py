"""Checks that a table in the catalog is as Levada left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from levada.destinations.ducklake.columns import LakeColumns
from levada.destinations.ducklake.state import TableRow, own_table
from levada.destinations.ducklake.tables import (
    LakeTable,
    TableContent,
    foreign_settings,
    has_inlined_rows,
    read_columns,
    read_content,
)
from levada.destinations.fenced import missing
from levada.errors import DestinationChanged
from levada.postgres.silence import WatchedConnection
from levada.values import resync_command


@dataclass(frozen=True, slots=True)
class IntactTable:
    """A table that no other writer has changed. It may have been compacted."""

    table: LakeTable
    columns: LakeColumns
    content: TableContent


def read_intact(connection: WatchedConnection, data_path: str, row: TableRow) -> IntactTable:
    """Return the table of a state. Raise DestinationChanged if another writer changed its rows or Levada's columns.

    A column that another writer added is allowed. Rows of Levada have its default there.
    """
    hint = resync_command(row.owner.source_name)
    table = own_table(connection, data_path, row)
    if table is None:
        raise missing(row.name, row.owner.source_name)
    if not table.name.same(row.name):
        message = f"{row.name} was renamed to {table.name} by another writer"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    columns = LakeColumns.of(read_columns(connection, table.id), row.columns)
    # By their IDs: the catalog lists a column last that a resync made again with another type.
    if sorted((c.described() for c in columns.own), key=_id) != sorted(row.columns["own"], key=_id):
        raise DestinationChanged("foreign_schema_change", f"another writer changed columns of {table.name}", hint=hint)
    if setting := foreign_settings(connection, table.id):
        raise DestinationChanged("foreign_table_change", f"{table.name} {setting} by another writer", hint=hint)
    content = read_content(connection, table.id)
    if not row.holds(content) or has_inlined_rows(connection, table.id):
        raise DestinationChanged("foreign_write", f"{table.name} was written by another writer", hint=hint)
    return IntactTable(table, columns, content)


def read_as_it_is(connection: WatchedConnection, data_path: str, row: TableRow) -> tuple[LakeTable, LakeColumns]:
    """Return the table of a state and its columns, whatever other writers did.

    Raise DestinationChanged if it is missing, or ``foreign_write`` if rows of it are in the catalog itself.
    """
    table = own_table(connection, data_path, row)
    if table is None:
        raise missing(row.name, row.owner.source_name)
    if has_inlined_rows(connection, table.id):
        hint = resync_command(row.owner.source_name)
        raise DestinationChanged("foreign_write", f"{table.name} was written by another writer", hint=hint)
    return table, LakeColumns.of(read_columns(connection, table.id), row.columns)


def _id(described: Sequence[Any]) -> int:
    """Return the ID of a column from the result of `LakeColumn.described`."""
    number: int = described[0]
    return number
