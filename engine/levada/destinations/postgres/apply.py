"""Applies one table's part of a batch, in a transaction of the caller."""

from __future__ import annotations

import logging
from dataclasses import replace

from psycopg import sql

from levada.destinations.fenced import check_same_table
from levada.destinations.interface import OnSchemaChange
from levada.destinations.postgres.changelog import append_changes
from levada.destinations.postgres.columns import Layout, reconcile
from levada.destinations.postgres.connections import lock_exclusively
from levada.destinations.postgres.intact import check_intact, read_storage
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.primary_key import take_key
from levada.destinations.postgres.state import TableRow
from levada.destinations.postgres.upsert import apply_upserts
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn, QualifiedTable, TableMode

_log = logging.getLogger(__name__)


def apply_table(
    connection: WatchedConnection, row: TableRow, events: TableEvents, mode: TableMode, policy: OnSchemaChange
) -> TableRow:
    """Apply the changes that the table does not have yet. Return its state, without the new watermark."""
    schema = events.schema
    check_same_table(row.place, schema, mode, made_as=row.mode, same_key=True)
    storage = check_intact(connection, row)
    new_key = mode is TableMode.UPSERT and sorted(row.key) != sorted(schema.key)
    if new_key:
        take_key(connection, row, schema)
        row = replace(row, key=schema.key)
    layout = evolve(connection, row, schema, policy)
    after = events.after if row.lsn is None else max(events.after, row.lsn)
    write_changes(connection, row.place, layout, events, after, mode)
    applied = replace(row, layout=layout, storage=storage)
    # A change of columns, another key and TRUNCATE give the table another storage.
    changed = layout != row.layout or events.truncates or new_key
    return replace(applied, storage=read_storage(connection, applied)) if changed else applied


def write_changes(
    connection: WatchedConnection,
    place: QualifiedTable,
    layout: Layout,
    events: TableEvents,
    after: Lsn,
    mode: TableMode,
) -> None:
    """Write the changes from ``after`` on, inclusive, to a table with these columns."""
    write = apply_upserts if mode is TableMode.UPSERT else append_changes
    write(connection, place, layout, events, after)


def evolve(
    connection: WatchedConnection, row: TableRow, schema: ReplicatedTableSchema, policy: OnSchemaChange
) -> Layout:
    """Change the table's columns to those of ``schema``. Return the new columns."""
    step = reconcile(row.layout, schema, row.mode, policy)
    if step.changes:
        _log.info("%s: %s", row.place, "; ".join(step.changes))
    if step.clauses:
        lock_exclusively(connection, row.place)
    for clause in step.clauses:
        connection.execute(sql.SQL("ALTER TABLE {} {}").format(identifier(row.place), clause))
    return step.layout
