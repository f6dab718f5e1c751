"""The states of tables in a PostgreSQL database: one row for each table, with its owner, epoch and watermark.

A transaction that changes a table locks its row first. So only one driver writes a table at a time, and an old driver
sees the newer epoch before it writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, Final, Generic, Protocol, TypeVar

from psycopg import sql

from levada.destinations.fenced import missing, require_epoch
from levada.destinations.ownership import Owner, TableOwner
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, QualifiedTable, TableId

_LSN: Final = "lsn"


class StoredRow(Protocol):
    """The state of one table."""

    @property
    def owner(self) -> TableOwner:
        """The owner of the table."""

    @property
    def epoch(self) -> int:
        """The epoch of the driver that wrote the table last."""

    @property
    def lsn(self) -> Lsn | None:
        """The table's watermark, None while no copy of it is complete."""


R = TypeVar("R", bound=StoredRow)


class StoredRows(Generic[R]):
    """The statements on the rows of one table, each in a transaction of the caller."""

    source_table: ClassVar[str]
    """The column with the OID of the source table."""
    columns: ClassVar[tuple[str, ...]]
    """The columns after those of the owner."""
    also_set: ClassVar[sql.SQL] = sql.SQL("")
    """More that each change sets."""

    def __init__(self, owner: Owner, relation: sql.Identifier) -> None:
        self.owner = owner
        self._relation = relation
        self._names = ("pipeline", "source_id", self.source_table, "source_schema", "source_name", *self.columns)

    def _read(self, owner: TableOwner, values: Sequence[Any]) -> R:
        """Return a row with the values of `columns`. An LSN is a number."""
        raise NotImplementedError

    def _written(self, row: R) -> Sequence[Any]:
        """Return the values of `columns`. An LSN is text."""
        raise NotImplementedError

    def find(self, connection: WatchedConnection, table: TableId, *, lock: bool = False) -> R | None:
        """Return the state of this pipeline's table, or None.

        With ``lock`` no other driver commits to the table before the end of the transaction. So what is read of the
        table afterwards belongs to the state.
        """
        row = self._of(connection, table, self.owner.context.full_name, lock=lock)
        if row is not None:
            return row
        query = sql.SQL("SELECT pipeline FROM {} WHERE source_id = %s AND {} = %s")
        of_table = query.format(self._relation, sql.Identifier(self.source_table))
        others = connection.execute(of_table, [self.owner.source_id, int(table)]).fetchall()
        former = self.owner.name_among(name for (name,) in others)
        return None if former is None else self._of(connection, table, former, lock=lock)

    def find_copied(self, connection: WatchedConnection, table: TableId, *, lock: bool = False) -> tuple[R, Lsn] | None:
        """Return the state of this pipeline's table and its watermark, or None before the end of its copy."""
        row = self.find(connection, table, lock=lock)
        return None if row is None or row.lsn is None else (row, row.lsn)

    def require_copied(
        self, connection: WatchedConnection, name: object, schema: ReplicatedTableSchema, epoch: int | None = None
    ) -> tuple[R, Lsn]:
        """Return the state and the watermark as `find_copied` does. ``name`` is the table's name at the destination.

        With the ``epoch`` of a writer, the state is locked. Raise DestinationChanged ``destination_table_missing`` if
        there is none, and StaleEpoch if a newer driver has written the table.
        """
        found = self.find_copied(connection, schema.id, lock=epoch is not None)
        if found is None:
            raise missing(name, schema.name)
        require_epoch(found[0].epoch, epoch)
        return found

    def insert(self, connection: WatchedConnection, row: R, *, unless_taken: bool = False) -> bool:
        """Store the state of another table. With ``unless_taken``, return False if its name or its key is taken."""
        names = sql.SQL(", ").join(map(sql.Identifier, self._names))
        values = sql.SQL(", ").join(map(_placeholder, self._names))
        statement = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(self._relation, names, values)
        if unless_taken:
            statement += sql.SQL(" ON CONFLICT DO NOTHING")
        return bool(connection.execute(statement, self._values(row)).rowcount)

    def known(self, connection: WatchedConnection, tables: Collection[TableId]) -> frozenset[TableId]:
        """Return those of the tables of which there is a state of this pipeline or a former owner."""
        query = sql.SQL("SELECT {} FROM {} WHERE source_id = %s AND {} = ANY (%s) AND pipeline = ANY (%s)")
        column = sql.Identifier(self.source_table)
        parameters = [self.owner.source_id, [int(t) for t in tables], self.owner.names()]
        found = connection.execute(query.format(column, self._relation, column), parameters)
        return frozenset(TableId(oid) for (oid,) in found)

    def lock_all(self, connection: WatchedConnection, tables: Collection[TableId]) -> Mapping[TableId, R]:
        """Lock and return the states of this pipeline's tables, in one order, so that no two callers block each other.

        Tables of a former owner are left out.
        """
        where = sql.SQL("pipeline = %s AND source_id = %s AND {0} = ANY (%s) ORDER BY {0}")
        parameters = [self.owner.context.full_name, self.owner.source_id, [int(t) for t in tables]]
        found = self._select_all(connection, where.format(sql.Identifier(self.source_table)), parameters, lock=True)
        return {row.owner.table: row for row in found}

    def insert_all(self, connection: WatchedConnection, rows: Sequence[R]) -> frozenset[TableId]:
        """Store the states of further tables. Leave out those whose names or keys are taken. Return the others."""
        names = sql.SQL(", ").join(map(sql.Identifier, self._names))
        values = sql.SQL("({})").format(sql.SQL(", ").join(map(_placeholder, self._names)))
        statement = sql.SQL("INSERT INTO {} ({}) VALUES {} ON CONFLICT DO NOTHING RETURNING {}").format(
            self._relation, names, sql.SQL(", ").join([values] * len(rows)), sql.Identifier(self.source_table)
        )
        found = connection.execute(statement, [value for row in rows for value in self._values(row)])
        return frozenset(TableId(oid) for (oid,) in found)

    def save_all(self, connection: WatchedConnection, rows: Sequence[tuple[R, R]]) -> None:
        """Replace the states of tables as `save` does. Each is given with the one before."""
        with connection.cursor() as cursor:
            cursor.executemany(self._save, [self._saved(before, after) for before, after in rows])

    def save(self, connection: WatchedConnection, before: R, after: R) -> None:
        """Replace the state of a table, which the caller has locked. An old driver that waits reads the new epoch."""
        connection.execute(self._save, self._saved(before, after))

    @cached_property
    def _save(self) -> bytes:
        assigned = sql.SQL(", ").join(
            sql.SQL("{} = {}").format(sql.Identifier(name), _placeholder(name)) for name in self._names
        )
        statement = sql.SQL("UPDATE {} SET {}{} WHERE {}")
        return statement.format(self._relation, assigned, self.also_set, self._is_row).as_string(None).encode()

    def _saved(self, before: R, after: R) -> list[Any]:
        # A renamed pipeline's tables get its new name with their next change.
        return [self.owner.context.full_name, *self._values(after)[1:], *_key(before.owner)]

    def forget(self, connection: WatchedConnection, row: R) -> None:
        """Remove the state of a table, which the caller has locked."""
        statement = sql.SQL("DELETE FROM {} WHERE {}").format(self._relation, self._is_row)
        connection.execute(statement, _key(row.owner))

    def _of(self, connection: WatchedConnection, table: TableId, pipeline: str, *, lock: bool) -> R | None:
        query = self._find_locked if lock else self._find
        found = self._rows(connection.execute(query, [pipeline, self.owner.source_id, int(table)]).fetchall())
        return next(iter(found), None)

    # Each batch needs these, and their text takes as long as an answer.
    @cached_property
    def _find(self) -> bytes:
        return self._query(self._is_row, lock=False).as_string(None).encode()

    @cached_property
    def _find_locked(self) -> bytes:
        return self._query(self._is_row, lock=True).as_string(None).encode()

    @property
    def _is_row(self) -> sql.Composed:
        text = sql.SQL("pipeline = %s AND source_id = %s AND {} = %s")
        return text.format(sql.Identifier(self.source_table))

    def _select(
        self, connection: WatchedConnection, where: sql.Composable, parameters: Sequence[Any], *, lock: bool
    ) -> R | None:
        return next(iter(self._select_all(connection, where, parameters, lock=lock)), None)

    def _select_all(
        self, connection: WatchedConnection, where: sql.Composable, parameters: Sequence[Any], *, lock: bool
    ) -> list[R]:
        return self._rows(connection.execute(self._query(where, lock=lock), parameters).fetchall())

    def _query(self, where: sql.Composable, *, lock: bool) -> sql.Composed:
        listed = sql.SQL(", ").join(_read_as(name) for name in self._names)
        query = sql.SQL("SELECT {} FROM {} WHERE {}").format(listed, self._relation, where)
        return query + sql.SQL(" FOR UPDATE") if lock else query

    def _rows(self, found: Sequence[Sequence[Any]]) -> list[R]:
        return [
            self._read(TableOwner(pipeline, source_id, TableId(table), QualifiedTable(schema, name)), values)
            for pipeline, source_id, table, schema, name, *values in found
        ]

    def _values(self, row: R) -> list[Any]:
        owner = row.owner
        return [*_key(owner), owner.source_name.schema, owner.source_name.name, *self._written(row)]


def read_lsn(value: Any) -> Lsn | None:
    """Return a stored LSN."""
    return None if value is None else Lsn(int(value))


def _key(owner: TableOwner) -> list[Any]:
    return [owner.pipeline, owner.source_id, int(owner.table)]


def _placeholder(name: str) -> sql.SQL:
    return sql.SQL("%s::text::pg_lsn") if name == _LSN else sql.SQL("%s")


def _read_as(name: str) -> sql.Composable:
    return sql.SQL("lsn - '0/0'::pg_lsn") if name == _LSN else sql.Identifier(name)
