"""The claim of a table's name for a source table, so that no table of another owner is ever written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from levada.destinations.fenced import require_epoch
from levada.destinations.ownership import not_ours
from levada.destinations.postgres.columns import Layout
from levada.destinations.postgres.shadow_copy import drop_all, drop_table
from levada.destinations.postgres.state import State, TableRow, find_relation
from levada.errors import AccessDenied, NeedsOperator, Transient
from levada.postgres.silence import WatchedConnection
from levada.printable import counted
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, TableMode, quote_identifier

_IDENTITY = """
SELECT (SELECT system_identifier FROM pg_control_system())::text || '/' || oid::text
FROM pg_database WHERE datname = current_database()
"""


_MAY_CREATE: Final = """
SELECT current_user::text, current_database()::text, n.oid IS NOT NULL,
    CASE WHEN n.oid IS NULL THEN has_database_privilege(current_database(), 'CREATE')
        ELSE has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE') END
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s
"""


@dataclass(frozen=True, slots=True)
class Claims:
    """The rules by which a source table gets its table at the destination."""

    state: State

    def check(self, connection: WatchedConnection, schema: ReplicatedTableSchema, place: QualifiedTable) -> None:
        """Raise NeedsOperator if a copy of the source table must not have the name ``place``."""
        if not self.state.is_created(connection):
            # Before the first run, of which `levada check` creates nothing.
            if find_relation(connection, place) is not None:
                raise not_ours(place)
            return
        self._check_not_source(connection, schema.name, place)
        self._owned(connection, schema, place)

    def take(
        self,
        connection: WatchedConnection,
        schema: ReplicatedTableSchema,
        place: QualifiedTable,
        mode: TableMode,
        epoch: int,
    ) -> TableRow:
        """Lock and return the state of the table, which is created for a new one. Its name may still be another one."""
        self._check_not_source(connection, schema.name, place)
        there = self._owned(connection, schema, place)
        row = self.state.find(connection, schema.id, lock=True)
        if there is not None and (row is None or there.owner != row.owner):
            # The table of a former source table, whose rows the copy replaces.
            require_epoch(there.epoch, epoch)
            if row is not None:
                require_epoch(row.epoch, epoch)
                drop_all(connection, self.state, row)
                drop_table(connection, row)
                self.state.forget(connection, row)
            drop_all(connection, self.state, there)
            row = replace(there, owner=self.state.owner.of(schema), epoch=epoch, lsn=None)
            self.state.save(connection, there, row)
        if row is None:
            row = TableRow(self.state.owner.of(schema), place, 0, mode, schema.key, Layout.of(schema), epoch, None)
            if not self.state.insert(connection, row, unless_taken=True):
                raise Transient(
                    "destination_busy",
                    f"another pipeline claims {place} at the same moment",
                    hint="if this persists, end the other session",
                )
        require_epoch(row.epoch, epoch)
        return row

    def _owned(
        self, connection: WatchedConnection, schema: ReplicatedTableSchema, place: QualifiedTable
    ) -> TableRow | None:
        """Return the state of the table of this name, or None if the name is free."""
        there = self.state.at(connection, place)
        if there is not None:
            self.state.owner.require_replaceable(place, there.owner, schema)
        relation = find_relation(connection, place)
        if relation is not None and (there is None or there.relation != relation):
            raise not_ours(place)
        return there

    def check_sources(
        self,
        connection: WatchedConnection,
        places: Mapping[QualifiedTable, QualifiedTable],
        selects: Callable[[QualifiedTable], bool],
    ) -> None:
        """Raise NeedsOperator ``destination_is_source`` if one of the source tables would be replicated into itself.

        Each has its name at the destination. The tables at the destination must not be tables that ``selects`` takes.
        """
        if not self.is_source(connection):
            return
        written = self.state.places(connection)
        wrong = sorted(source for source, place in places.items() if source == place or source in written)
        if wrong:
            raise _into_itself(wrong[0], places[wrong[0]], len(wrong) - 1)
        if selected := sorted(place for place in places.values() if selects(place)):
            raise _selected(selected[0], len(selected) - 1)

    def _check_not_source(self, connection: WatchedConnection, source: QualifiedTable, place: QualifiedTable) -> None:
        if self.is_source(connection) and (source == place or self.state.is_table_of_levada(connection, source)):
            raise _into_itself(source, place)

    def is_source(self, connection: WatchedConnection) -> bool:
        """Return True if the database is the source of the pipeline."""
        found = connection.execute(_IDENTITY).fetchone()
        return found is not None and found[0] == self.state.owner.source_id


def require_create(connection: WatchedConnection, schema: str) -> None:
    """Raise AccessDenied ``destination_privilege_missing`` if the role may not create tables in the schema."""
    found = connection.execute(_MAY_CREATE, [schema]).fetchone()
    assert found is not None
    role, database, exists, may = found
    if may:
        return
    what = f"use and create tables in schema {schema}" if exists else f"create schema {schema}"
    to = quote_identifier(role)
    grant = f"GRANT USAGE, CREATE ON SCHEMA {quote_identifier(schema)} TO {to}"
    if not exists:
        grant = f"GRANT CREATE, TEMPORARY ON DATABASE {quote_identifier(database)} TO {to}"
    raise AccessDenied(
        "destination_privilege_missing",
        f"role {role} has no privilege to {what} of database {database}, where its tables are written",
        hint=f"in database {database}: {grant}",
    )


_HINT: Final = (
    "set another database or schema in the destination's settings, and exclude the schema of the"
    " destination's tables from spec.tables"
)


def _selected(place: QualifiedTable, others: int) -> NeedsOperator:
    more = f", and {counted(others, 'more table')} of the destination" if others else ""
    return NeedsOperator(
        "destination_is_source",
        f"spec.tables selects {place}{more}, which the pipeline writes: the destination is the source database",
        hint=_HINT,
    )


def _into_itself(source: QualifiedTable, place: QualifiedTable, others: int = 0) -> NeedsOperator:
    more = f", and so would {counted(others, 'more table')}" if others else ""
    return NeedsOperator(
        "destination_is_source",
        f"{source} would be replicated into itself{more}: the destination is the source database, and"
        f" {'the names are the same' if source == place else 'this table is written by a pipeline'}",
        hint=_HINT,
    )
