"""The finished ranges of a copy that may be interrupted, and the end of one with ranges of several snapshots.

The rows of a range are in the shadow copy from its transaction on. So what is kept is which transaction that was, in
the row of the part. The copy has no key until all its rows are there, because a row that moved between two snapshots
may be in both of their ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, LiteralString

from psycopg import sql

from levada.copy.rows import CopiedRows, FinishedRange, TableRows
from levada.destinations.fenced import copied_constants
from levada.destinations.postgres import shadow_copy
from levada.destinations.postgres.connections import begin_transaction, open_connection
from levada.destinations.postgres.failures import destination_errors
from levada.destinations.postgres.shadow_copy import PartitionWriter, ShadowCopy, superseded
from levada.destinations.postgres.state import PARTS, State
from levada.destinations.postgres.upsert import delete_keys
from levada.errors import Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection
from levada.values import QualifiedTable


@dataclass(frozen=True, slots=True)
class KeptParts:
    """The `levada.copy.rows.RangeKeeper` of a shadow copy. The result of a range is the ID of its part."""

    server: PostgresConnection
    state_schema: str
    copy_id: str
    table: QualifiedTable
    """The place of the shadow copy."""

    @property
    def place(self) -> str:
        """The ID of the copy."""
        return self.copy_id

    def save(self, name: str, finished: FinishedRange[str]) -> None:
        """Name the part in the state."""
        found = self._run(
            "UPDATE {} SET range_name = CASE WHEN part_id::text = %(part)s THEN %(name)s END,"
            " row_count = %(rows)s, unrepresentable = %(unrepresentable)s"
            " WHERE copy_id::text = %(copy)s AND (part_id::text = %(part)s OR range_name = %(name)s)"
            " RETURNING part_id::text",
            f"keeping a range of {self.table}",
            part=finished.value,
            name=name,
            rows=finished.rows,
            unrepresentable=finished.unrepresentable,
        )
        if (finished.value,) not in found:
            raise superseded(self.table)

    def load(self, name: str) -> FinishedRange[str]:
        """Read a part from the state. Raise Transient ``copy_outdated`` if it has none of this name."""
        found = self._run(
            "SELECT part_id::text, row_count, unrepresentable FROM {}"
            " WHERE copy_id::text = %(copy)s AND range_name = %(name)s",
            f"reading the kept ranges of {self.table}",
            name=name,
        )
        if len(found) != 1:
            raise Transient(
                "copy_outdated", f"the state of the destination does not have a finished range of {self.table}"
            )
        [(part, rows, unrepresentable)] = found
        return FinishedRange(part, rows, unrepresentable)

    def remove(self, names: Sequence[str]) -> None:
        """Do nothing: the end of the copy removes its parts."""

    def _run(self, statement: LiteralString, doing: str, **values: object) -> list[tuple[Any, ...]]:
        query = sql.SQL(statement).format(sql.Identifier(self.state_schema, PARTS))
        with destination_errors(f"{doing} at {self.server.where}"):
            connection = open_connection(self.server, "copy")
            try:
                with connection.transaction():
                    begin_transaction(connection)
                    return connection.execute(query, {"copy": self.copy_id, **values}).fetchall()
            finally:
                connection.close()


def write_ranges(server: PostgresConnection, state_schema: str, copy: ShadowCopy, rows: TableRows) -> CopiedRows[str]:
    """Write the rows to the shadow copy, each range in a transaction of its own. Return their parts."""
    constants = tuple(copied_constants(copy.mode, copy.lsn).items())
    writer = PartitionWriter(server, state_schema, copy.id, copy.place, constants)
    return rows.map_ranges(writer, KeptParts(server, state_schema, copy.id, copy.place))


def complete(connection: WatchedConnection, state: State, copy: ShadowCopy, copied: CopiedRows[str]) -> None:
    """End the writing of a copy, see `shadow_copy.close`, and make it the table as of its last snapshot.

    `levada.copy.kept` says why it is that.
    """
    of_snapshots = [part for parts in copied.snapshots for part in parts]
    transactions = shadow_copy.close(connection, state, copy, [*of_snapshots, *copied.changed])
    if copied.changed_keys is not None:
        read_again = [transactions[part] for part in copied.changed]
        delete_keys(connection, copy.place, copy.layout, copy.schema, copied.changed_keys, spared=read_again)
    shadow_copy.add_key(connection, copy)
