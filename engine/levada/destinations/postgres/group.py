"""The first copies of several small tables: claimed in one transaction, and created with their rows in the next one.

So an old driver that is stopped in the middle has locked states that others see, as with the copy of one table.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Protocol

import psycopg
from psycopg import sql

from levada.destinations.fenced import copied_constants, require_epoch
from levada.destinations.groups import NewTable
from levada.destinations.interface import TableMode
from levada.destinations.postgres.claims import Claims, require_create
from levada.destinations.postgres.columns import Layout, create_table
from levada.destinations.postgres.intact import read_storages
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.shadow_copy import analyze, create_schema, fill
from levada.destinations.postgres.state import TableRow, find_relations, guarding
from levada.errors import LevadaError, NeedsOperator
from levada.postgres.silence import WatchedConnection
from levada.schema import TableTarget
from levada.values import QualifiedTable, TableId, Watermark

_log = logging.getLogger(__name__)


class GroupTables(Protocol):
    """The rules of the destination for its tables, and its transactions."""

    def place_of(self, target: TableTarget) -> QualifiedTable:
        """Return the table's place. Raise NeedsOperator for a name that cannot be used."""
        ...

    def effective_mode(self, target: TableTarget) -> TableMode:
        """Return the mode of the table."""
        ...

    def transaction(self, doing: str) -> AbstractContextManager[WatchedConnection]:
        """Run the block in a transaction, after the tables of the state exist."""
        ...

    def group_committed(self, tables: Collection[TableId], mark: Watermark) -> None:
        """Remember the watermark of tables, of which a copy is committed."""
        ...


@dataclass(frozen=True, slots=True)
class _Claimed:
    """A table that does not exist yet, and its state."""

    new: NewTable
    row: TableRow


@dataclass(frozen=True, slots=True)
class PostgresGroup:
    """The `levada.destinations.groups.GroupWriter` of a database."""

    claims: Claims
    tables: GroupTables

    def free(self, targets: Sequence[TableTarget]) -> Collection[TableId]:
        """Return the tables that have no state, whose names are free, and that the role may create."""
        with self.tables.transaction("checking the places of tables") as connection:
            return self._free(connection, targets).keys()

    def write(self, tables: Sequence[NewTable], mark: Watermark) -> Collection[TableId]:
        """Claim the tables, and create them with their rows. Those that cannot be created together are tried singly."""
        claimed = self._claim(tables, mark)
        done = self._create(claimed, mark)
        self.tables.group_committed(done, mark)
        return done

    def _free(self, connection: WatchedConnection, targets: Sequence[TableTarget]) -> Mapping[TableId, QualifiedTable]:
        if self.claims.is_source(connection):
            return {}
        places: dict[TableId, QualifiedTable] = {}
        for target in targets:
            try:
                place = self.tables.place_of(target)
            except LevadaError:
                continue
            if place not in places.values():
                places[target.id] = place
        state = self.claims.state
        known, taken = state.known(connection, list(places)), state.taken(connection, list(places.values()))
        there = find_relations(connection, list(places.values())).keys()
        allowed = [s for s in {place.schema for place in places.values()} if _may_create(connection, s)]
        return {
            table: place
            for table, place in places.items()
            if table not in known and place not in taken and place not in there and place.schema in allowed
        }

    def _claim(self, tables: Sequence[NewTable], mark: Watermark) -> list[_Claimed]:
        claimed = []
        with self.tables.transaction("claiming tables") as connection:
            places = self._free(connection, [new.target for new in tables])
            for new in (new for new in tables if new.id in places):
                schema, mode = new.target.schema, self.tables.effective_mode(new.target)
                owner, layout = self.claims.state.owner.of(schema), Layout.of(schema)
                row = TableRow(owner, places[new.id], 0, mode, schema.key, layout, mark.epoch, None)
                claimed.append(_Claimed(new, row))
            if not claimed:
                raise psycopg.Rollback
            inserted = self.claims.state.insert_all(connection, [its.row for its in claimed])
            for name in sorted({its.row.place.schema for its in claimed}):
                create_schema(connection, name)
        return [its for its in claimed if its.new.id in inserted]

    def _create(self, claimed: Sequence[_Claimed], mark: Watermark) -> list[TableId]:
        if not claimed:
            return []
        try:
            return self._create_together(claimed, mark)
        except NeedsOperator as error:
            # PostgreSQL does not say which table it is about.
            _log.info("%s", error.message)
            if len(claimed) == 1:
                return []
            return [table for its in claimed for table in self._create([its], mark)]

    def _create_together(self, claimed: Sequence[_Claimed], mark: Watermark) -> list[TableId]:
        state = self.claims.state
        with self.tables.transaction("writing the copies of tables") as connection:
            locked = state.lock_all(connection, [its.new.id for its in claimed])
            for row in locked.values():
                require_epoch(row.epoch, mark.epoch)
            ready = [its for its in claimed if locked.get(its.new.id) == its.row]
            if not ready:
                raise psycopg.Rollback
            _execute_all(connection, [statement for its in ready for statement in _creating(its)])
            for its in ready:
                fill(connection, its.row.place, its.new.rows.batches(), _constants(its, mark))
            _execute_all(connection, [statement for its in ready for statement in guarding(state, its.row.place)])
            analyze(connection, [its.row.place for its in ready])
            relations = find_relations(connection, [its.row.place for its in ready])
            made = [replace(its.row, relation=relations[its.row.place]) for its in ready]
            storages = read_storages(connection, made)
            after = [replace(row, storage=storages[row.relation], lsn=mark.lsn) for row in made]
            state.save_all(connection, [(its.row, row) for its, row in zip(ready, after, strict=True)])
        return [its.new.id for its in ready]


def _creating(its: _Claimed) -> list[sql.Composed]:
    table, row, key = identifier(its.row.place), its.row, None
    if row.mode is TableMode.UPSERT:
        key = [c.name for c in its.new.target.schema.key_columns]
    create = create_table(table, row.layout, row.mode, key)
    # As a shadow copy has it, for a publication FOR ALL TABLES at the destination.
    full = sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(table)
    return [create] if key else [create, full]


def _constants(its: _Claimed, mark: Watermark) -> Sequence[tuple[str, str | int]]:
    return tuple(copied_constants(its.row.mode, mark.lsn).items())


def _execute_all(connection: WatchedConnection, statements: Sequence[sql.Composed]) -> None:
    """Run statements without parameters in one round trip."""
    connection.execute(sql.SQL("; ").join(statements), prepare=False)


def _may_create(connection: WatchedConnection, schema: str) -> bool:
    try:
        require_create(connection, schema)
    except NeedsOperator:
        return False
    return True
