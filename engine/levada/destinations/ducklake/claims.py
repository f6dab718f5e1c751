"""The claim of a table's name for a source table, so that no table of another owner is ever written."""

from __future__ import annotations

import logging
from dataclasses import replace

from levada.destinations.ducklake.columns import LakeColumns, initial_columns
from levada.destinations.ducklake.snapshot import NextSnapshot
from levada.destinations.ducklake.state import TableRow, key_text, own_table
from levada.destinations.ducklake.tables import (
    FullName,
    LakeTable,
    TableContent,
    find_named,
    find_schema,
    find_table,
    last_column_id,
    read_columns,
    read_content,
)
from levada.destinations.ducklake.writes import Catalog
from levada.destinations.fenced import require_epoch
from levada.destinations.interface import TableMode
from levada.destinations.ownership import not_ours
from levada.errors import Transient
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import Watermark

_log = logging.getLogger(__name__)


def check_free(
    catalog: Catalog, connection: WatchedConnection, schema: ReplicatedTableSchema, name: FullName
) -> TableRow | None:
    """Raise NeedsOperator if a copy of the source table must not have the name.

    Return the state of the table of that name, or None if the name is free.
    """
    there = catalog.state.at(connection, name)
    if there is not None:
        catalog.state.owner.require_replaceable(name, there.owner, schema)
    found, served = find_named(connection, name), None if there is None else _served(catalog, connection, there)
    if found is not None and (served is None or served.id != found):
        raise not_ours(name)
    return there


def drop(
    catalog: Catalog, connection: WatchedConnection, schema: ReplicatedTableSchema, name: FullName, epoch: int | None
) -> None:
    """Drop the table of the source table, under the name that it has. A missing table is no error.

    With ``epoch`` None the state is removed too. Otherwise it keeps the epoch. Raise NeedsOperator, without dropping,
    if ``name`` belongs to another table.
    """
    row = catalog.state.find(connection, schema.id, lock=True)
    if row is not None:
        require_epoch(row.epoch, epoch)
    there = check_free(catalog, connection, schema, name)
    if there is not None and there.owner.table == schema.id and there.owner.source_id == catalog.state.owner.source_id:
        require_epoch(there.epoch, epoch)
    if found := {t.id for owned in (row, there) if owned is not None and (t := _served(catalog, connection, owned))}:
        snapshot = NextSnapshot.begin(connection, catalog.author)
        for table in sorted(found):
            snapshot.drop_table(table)
        snapshot.finish()
    if there is not None and (row is None or there.owner != row.owner):
        catalog.state.forget(connection, there)
    if row is not None:
        if epoch is None:
            catalog.state.forget(connection, row)
        else:
            catalog.state.save(connection, row, replace(row, name=name, table=None, lsn=None, epoch=epoch))


def claim(
    catalog: Catalog,
    connection: WatchedConnection,
    schema: ReplicatedTableSchema,
    name: FullName,
    mode: TableMode,
    mark: Watermark,
) -> tuple[TableRow, LakeTable, LakeColumns, TableContent, int]:
    """Lock or create the state of the table, and create the table if it is missing.

    Return the state, the table, its columns, its numbers, and the highest column ID that it ever had.
    """
    row = catalog.state.find(connection, schema.id, lock=True)
    if row is not None:
        require_epoch(row.epoch, mark.epoch)
    there = check_free(catalog, connection, schema, name)
    if there is not None and (row is None or there.owner != row.owner):
        drop(catalog, connection, schema, name, mark.epoch)
        row = catalog.state.find(connection, schema.id, lock=True)
    table = None if row is None else _served(catalog, connection, row)
    if row is None or table is None or row.name != name:
        columns = initial_columns(schema, mode)
        table = find_table(connection, catalog.lake.uri, _create(catalog, connection, name, columns))
        assert table is not None
        owner, key = catalog.state.owner.of(schema), key_text(schema)
        before, row = row, TableRow(owner, name, table.id, table.uuid, mode, key, columns.state(), mark.epoch, None)
        if before is None:
            catalog.state.insert(connection, row)
        else:
            catalog.state.save(connection, before, row)
    elif row.epoch != mark.epoch:
        before, row = row, replace(row, epoch=mark.epoch)
        catalog.state.save(connection, before, row)
    columns = LakeColumns.of(read_columns(connection, table.id), row.columns)
    return row, table, columns, read_content(connection, table.id), last_column_id(connection, table.id)


def _served(catalog: Catalog, connection: WatchedConnection, row: TableRow) -> LakeTable | None:
    """Return the table of a state. One that was renamed is left to those who renamed it."""
    table = own_table(connection, catalog.lake.uri, row)
    return table if table is not None and table.name.same(row.name) else None


def _create(catalog: Catalog, connection: WatchedConnection, name: FullName, columns: LakeColumns) -> int:
    snapshot = NextSnapshot.begin(connection, catalog.author)
    if find_named(connection, name) is not None:
        raise Transient("commit_conflict", f"another writer has created {name}")
    schema = find_schema(connection, name.schema) or snapshot.add_schema(name.schema)
    table = snapshot.add_table(schema, name.name, columns)
    snapshot.finish()
    return table
