"""Levada's table in the catalog's schema: the owner, the columns, the epoch and the watermark of each table.

DuckLake's own tables are replaced and cleaned by its maintenance. This one is not known to it. A transaction that
writes a table locks its row here first, so that an old driver sees the newer epoch before it writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from psycopg import sql

from levada.destinations.ducklake.tables import FullName, LakeTable, TableContent, find_table
from levada.destinations.interface import TableMode
from levada.destinations.ownership import Owner, TableOwner
from levada.destinations.stored_rows import StoredRows, read_lsn
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, Watermark

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS levada_tables (
    pipeline text NOT NULL, source_id text NOT NULL, source_table bigint NOT NULL,
    source_schema text NOT NULL, source_name text NOT NULL,
    schema_name text NOT NULL, table_name text NOT NULL, table_id bigint, table_uuid text NOT NULL,
    mode text NOT NULL, key_attnums text NOT NULL, columns text NOT NULL,
    epoch bigint NOT NULL, lsn pg_lsn, snapshot_id bigint NOT NULL, next_row_id bigint NOT NULL,
    row_count bigint NOT NULL, copy_folder text, PRIMARY KEY (pipeline, source_id, source_table));
CREATE UNIQUE INDEX IF NOT EXISTS levada_tables_name ON levada_tables (lower(schema_name), lower(table_name))
"""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The state of one table.

    ``table`` is DuckLake's ID of the table, or None if there is none. A catalog that was created again gives the ID to
    another table, so ``uuid`` has to be the same too. ``lsn`` is None before the first copy is
    complete. ``snapshot``, ``next_row_id`` and ``rows`` are those after Levada's last commit, see `TableContent`.
    ``copy_folder`` is that of a copy that is not committed, relative to the table's.
    """

    owner: TableOwner
    name: FullName
    table: int | None
    uuid: str
    mode: TableMode
    key: str
    columns: Mapping[str, Any]
    epoch: int
    lsn: Lsn | None
    snapshot: int = 0
    next_row_id: int = 0
    rows: int = 0
    copy_folder: str | None = None

    def holds(self, content: TableContent) -> bool:
        """Return True if no row was inserted or deleted since Levada's last commit."""
        return (self.next_row_id, self.rows) == (content.next_row_id, content.rows)

    def committed(self, snapshot: int, content: TableContent, mark: Watermark) -> TableRow:
        """Return the state after a commit."""
        return replace(
            self,
            epoch=mark.epoch,
            lsn=mark.lsn,
            snapshot=snapshot,
            next_row_id=content.next_row_id,
            rows=content.rows,
        )


def own_table(connection: WatchedConnection, data_path: str, row: TableRow) -> LakeTable | None:
    """Return the table of a state, or None if it was dropped. Another writer may have renamed it."""
    found = None if row.table is None else find_table(connection, data_path, row.table)
    return found if found is not None and found.uuid == row.uuid else None


def key_text(schema: ReplicatedTableSchema) -> str:
    """Return the key's attnums in ascending order, as text."""
    return json.dumps(sorted(schema.key))


class State(StoredRows[TableRow]):
    """The statements on the state, each in a transaction of the caller."""

    source_table = "source_table"
    columns = (
        "schema_name", "table_name", "table_id", "table_uuid", "mode", "key_attnums", "columns", "epoch", "lsn",
        "snapshot_id", "next_row_id", "row_count", "copy_folder",
    )  # fmt: skip

    def __init__(self, owner: Owner) -> None:
        super().__init__(owner, sql.Identifier("levada_tables"))

    def create(self, connection: WatchedConnection) -> None:
        """Create the table of the state if it is missing."""
        connection.execute(_CREATE)

    def at(self, connection: WatchedConnection, name: FullName) -> TableRow | None:
        """Lock and return the state of the table of this name, of whatever owner, or None."""
        where = sql.SQL("lower(schema_name) = lower(%s) AND lower(table_name) = lower(%s)")
        return self._select(connection, where, [name.schema, name.name], lock=True)

    def taken(self, connection: WatchedConnection, names: Sequence[FullName]) -> frozenset[FullName]:
        """Return those of the names that a table of whatever owner has."""
        found = connection.execute(
            "SELECT w.schema, w.name FROM unnest(%s::text[], %s::text[]) AS w (schema, name)"
            " WHERE EXISTS (SELECT FROM levada_tables t"
            " WHERE lower(t.schema_name) = lower(w.schema) AND lower(t.table_name) = lower(w.name))",
            [[n.schema for n in names], [n.name for n in names]],
        )
        return frozenset(FullName(schema, name) for schema, name in found)

    def _read(self, owner: TableOwner, values: Sequence[Any]) -> TableRow:
        schema, name, table, uuid, mode, key, columns, epoch, lsn, *numbers = values
        name, mode, columns = FullName(schema, name), TableMode(mode), json.loads(columns)
        return TableRow(owner, name, table, uuid, mode, key, columns, epoch, read_lsn(lsn), *numbers)

    def _written(self, row: TableRow) -> Sequence[Any]:
        lsn = None if row.lsn is None else str(row.lsn)
        place = row.name.schema, row.name.name, row.table, row.uuid
        made = row.mode.value, row.key, json.dumps(row.columns), row.epoch, lsn
        return *place, *made, row.snapshot, row.next_row_id, row.rows, row.copy_folder
