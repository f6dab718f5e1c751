"""Checks that a table in the catalog is as Levada left it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from levada.destinations.ducklake.columns import LakeColumns
from levada.destinations.ducklake.state import TableRow
from levada.destinations.ducklake.tables import (
    LakeTable,
    LiveDataFile,
    TableContent,
    WholeTable,
    has_rows_in,
    read_files,
    read_whole,
)
from levada.destinations.fenced import missing
from levada.errors import DestinationChanged
from levada.postgres.silence import WatchedConnection
from levada.values import resync_command

_FEW_FILES: Final = 100
"""Data files that are read with the table. With more, a batch that changes no earlier row would wait for them."""


@dataclass(frozen=True, slots=True)
class IntactTable:
    """A table that no other writer has changed. It may have been compacted.

    ``last_column_id`` is the highest that a column of it ever had. ``files`` are its data files, None if they were not
    read with it.
    """

    table: LakeTable
    columns: LakeColumns
    content: TableContent
    last_column_id: int
    files: Sequence[LiveDataFile] | None = None


def read_intact(
    connection: WatchedConnection, data_path: str, row: TableRow, *, with_files: bool = False
) -> IntactTable:
    """Return the table of a state. Raise DestinationChanged if another writer changed its rows or Levada's columns.

    A column that another writer added is allowed. Rows of Levada have its default there. ``with_files`` reads the data
    files of a table that has few.
    """
    hint = resync_command(row.owner.source_name)
    found = _own(connection, data_path, row)
    table = found.table
    if not table.name.same(row.name):
        message = f"{row.name} was renamed to {table.name} by another writer"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    columns = LakeColumns.of(found.columns, row.columns)
    # By their IDs: the catalog lists a column last that a resync made again with another type.
    if sorted((c.described() for c in columns.own), key=_id) != sorted(row.columns["own"], key=_id):
        raise DestinationChanged("foreign_schema_change", f"another writer changed columns of {table.name}", hint=hint)
    if found.setting:
        raise DestinationChanged("foreign_table_change", f"{table.name} {found.setting} by another writer", hint=hint)
    if not row.holds(found.content) or has_rows_in(connection, found.inlined):
        raise DestinationChanged("foreign_write", f"{table.name} was written by another writer", hint=hint)
    files = read_files(connection, table) if with_files and found.content.files <= _FEW_FILES else None
    return IntactTable(table, columns, found.content, found.last_column_id, files)


def read_as_it_is(connection: WatchedConnection, data_path: str, row: TableRow) -> IntactTable:
    """Return the table of a state, whatever other writers did to its rows and columns.

    Raise DestinationChanged if it is missing, or ``foreign_write`` if rows of it are in the catalog itself.
    """
    found = _own(connection, data_path, row)
    if has_rows_in(connection, found.inlined):
        hint = resync_command(row.owner.source_name)
        raise DestinationChanged("foreign_write", f"{found.table.name} was written by another writer", hint=hint)
    columns = LakeColumns.of(found.columns, row.columns)
    return IntactTable(found.table, columns, found.content, found.last_column_id)


def own_whole(connection: WatchedConnection, data_path: str, row: TableRow) -> WholeTable | None:
    """Return the table of a state, or None if it was dropped. Another writer may have renamed it."""
    found = None if row.table is None else read_whole(connection, data_path, row.table)
    return found if found is not None and found.table.uuid == row.uuid else None


def _own(connection: WatchedConnection, data_path: str, row: TableRow) -> WholeTable:
    if (found := own_whole(connection, data_path, row)) is None:
        raise missing(row.name, row.owner.source_name)
    return found


def _id(described: Sequence[Any]) -> int:
    """Return the ID of a column from the result of `LakeColumn.described`."""
    number: int = described[0]
    return number
