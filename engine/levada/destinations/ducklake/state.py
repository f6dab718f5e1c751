"""Levada's table in the catalog's schema: the owner, the columns, the epoch and the watermark of each table.

DuckLake's own tables are replaced and cleaned by its maintenance. This one is not known to it. A transaction that
writes a table locks its row here first, so that an old driver sees the newer epoch before it writes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from levada.destinations.ducklake.tables import FullName, LakeTable, TableContent, find_table
from levada.destinations.interface import TableMode
from levada.destinations.ownership import Owner, TableOwner
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, QualifiedTable, TableId, Watermark

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS levada_tables (
    pipeline text NOT NULL, source_id text NOT NULL, source_table bigint NOT NULL,
    source_schema text NOT NULL, source_name text NOT NULL,
    schema_name text NOT NULL, table_name text NOT NULL, table_id bigint, table_uuid text NOT NULL,
    mode text NOT NULL, key_attnums text NOT NULL, columns text NOT NULL,
    epoch bigint NOT NULL, lsn pg_lsn, snapshot_id bigint NOT NULL, next_row_id bigint NOT NULL,
    row_count bigint NOT NULL, PRIMARY KEY (pipeline, source_id, source_table));
CREATE UNIQUE INDEX IF NOT EXISTS levada_tables_name ON levada_tables (lower(schema_name), lower(table_name))
"""

_WRITTEN: Final = (
    "pipeline, source_id, source_table, source_schema, source_name, schema_name, table_name, table_id, table_uuid,"
    " mode, key_attnums, columns, epoch, lsn, snapshot_id, next_row_id, row_count"
)
_VALUES: Final = "%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s::text::pg_lsn, %s, %s, %s"
_COLUMNS: Final = _WRITTEN.replace(" lsn,", " (lsn - '0/0'::pg_lsn)::numeric,")


@dataclass(frozen=True, slots=True)
class TableRow:
    """The state of one table.

    ``table`` is DuckLake's ID of the table, or None if there is none. A catalog that was created again gives the ID to
    another table, so ``uuid`` has to be the same too. ``lsn`` is None before the first copy is
    complete. ``snapshot``, ``next_row_id`` and ``rows`` are those after Levada's last commit, see `TableContent`.
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


@dataclass(frozen=True, slots=True)
class State:
    """The statements on the state, each in a transaction of the caller."""

    owner: Owner

    def create(self, connection: WatchedConnection) -> None:
        """Create the table of the state if it is missing."""
        connection.execute(_CREATE)

    def find(self, connection: WatchedConnection, table: TableId, *, lock: bool = False) -> TableRow | None:
        """Return the state of this pipeline's table, or None.

        With ``lock`` no other driver commits to the table before the end of the transaction. So what is read of the
        catalog afterwards belongs to the state.
        """
        row = self._of(connection, table, self.owner.context.full_name, lock=lock)
        if row is not None:
            return row
        of_table = "SELECT pipeline FROM levada_tables WHERE source_id = %s AND source_table = %s"
        others = connection.execute(of_table, [self.owner.source_id, int(table)]).fetchall()
        former = self.owner.name_among(name for (name,) in others)
        return None if former is None else self._of(connection, table, former, lock=lock)

    def _of(self, connection: WatchedConnection, table: TableId, pipeline: str, *, lock: bool) -> TableRow | None:
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM levada_tables WHERE source_id = %s AND source_table = %s AND pipeline = %s"
            + (" FOR UPDATE" if lock else ""),
            [self.owner.source_id, int(table), pipeline],
        ).fetchone()
        return None if found is None else _row(found)

    def at(self, connection: WatchedConnection, name: FullName) -> TableRow | None:
        """Lock and return the state of the table of this name, of whatever owner, or None."""
        found = connection.execute(
            f"SELECT {_COLUMNS} FROM levada_tables"
            " WHERE lower(schema_name) = lower(%s) AND lower(table_name) = lower(%s) FOR UPDATE",
            [name.schema, name.name],
        ).fetchone()
        return None if found is None else _row(found)

    def save(self, connection: WatchedConnection, before: TableRow | None, after: TableRow) -> None:
        """Store the state of a table, in place of ``before``, which the caller has locked.

        The row is updated, so that a driver that waits for its lock reads the new epoch.
        """
        owner = after.owner
        values = [
            self.owner.context.full_name,
            owner.source_id,
            int(owner.table),
            owner.source_name.schema,
            owner.source_name.name,
            after.name.schema,
            after.name.name,
            after.table,
            after.uuid,
            after.mode.value,
            after.key,
            json.dumps(after.columns),
            after.epoch,
            None if after.lsn is None else str(after.lsn),
            after.snapshot,
            after.next_row_id,
            after.rows,
        ]
        if before is None:
            connection.execute(f"INSERT INTO levada_tables ({_WRITTEN}) VALUES ({_VALUES})", values)
            return
        connection.execute(
            f"UPDATE levada_tables SET ({_WRITTEN}) = ROW ({_VALUES})"
            " WHERE pipeline = %s AND source_id = %s AND source_table = %s",
            [*values, before.owner.pipeline, before.owner.source_id, int(before.owner.table)],
        )

    def advance(self, connection: WatchedConnection, row: TableRow, mark: Watermark) -> None:
        """Store only the watermark."""
        connection.execute(
            "UPDATE levada_tables SET epoch = %s, lsn = %s::text::pg_lsn"
            " WHERE pipeline = %s AND source_id = %s AND source_table = %s",
            [mark.epoch, str(mark.lsn), row.owner.pipeline, row.owner.source_id, int(row.owner.table)],
        )

    def forget(self, connection: WatchedConnection, row: TableRow) -> None:
        """Remove the state of a table, which the caller has locked."""
        connection.execute(
            "DELETE FROM levada_tables WHERE pipeline = %s AND source_id = %s AND source_table = %s",
            [row.owner.pipeline, row.owner.source_id, int(row.owner.table)],
        )


def _row(values: Any) -> TableRow:
    pipeline, source_id, table, source_schema, source_name, schema_name, table_name, *rest = values
    table_id, table_uuid, mode, key, columns, epoch, lsn, snapshot, next_row_id, rows = rest
    return TableRow(
        TableOwner(pipeline, source_id, TableId(table), QualifiedTable(source_schema, source_name)),
        FullName(schema_name, table_name),
        table_id,
        table_uuid,
        TableMode(mode),
        key,
        json.loads(columns),
        epoch,
        None if lsn is None else Lsn(int(lsn)),
        snapshot,
        next_row_id,
        rows,
    )
