"""The columns of a table at the destination, and their changes to match a version of the source table. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from psycopg import sql

from levada.destinations.interface import OnSchemaChange, TableMode
from levada.destinations.postgres.types import column_type, unquoted_type
from levada.destinations.schema_changes import Added, Dropped, Renamed, Widened, check_changes, schema_diff
from levada.schema import Column, ColumnType, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED
from levada.segments.projection import is_retyped_in_utc, widens

CHANGELOG_COLUMNS: Final = (
    (OP, "text"),
    (COMMIT_LSN, "bigint"),
    (ORDINAL, "bigint"),
    (COMMIT_TS, "timestamp with time zone"),
    (UNCHANGED, "text[]"),
)
"""The additional columns of a changelog. The last one has the names of columns with unknown values."""


@dataclass(frozen=True, slots=True)
class HeldColumn:
    """A column of the destination's table that holds a column of the source."""

    attnum: int
    """The attnum at the source."""
    name: str
    type: str
    """The SQL type."""
    shape: ColumnType


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns that hold columns of the source. Columns that a user added are not included."""

    columns: tuple[HeldColumn, ...]

    @classmethod
    def of(cls, schema: ReplicatedTableSchema) -> Layout:
        """Return the columns of a new table."""
        return cls(tuple(HeldColumn(c.attnum, c.name, column_type(c), c.type) for c in schema.columns))

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Layout:
        """Parse the result of `to_json`."""
        return cls(tuple(HeldColumn(a, n, unquoted_type(t), ColumnType.from_json(s)) for a, n, t, s in data))

    def to_json(self) -> str:
        """Return the columns as JSON."""
        return json.dumps([[c.attnum, c.name, c.type, c.shape.to_json()] for c in self.columns])

    def held(self, schema: ReplicatedTableSchema) -> list[tuple[HeldColumn, Column]]:
        """Return the columns that the source has too, each with the source's column."""
        return [(c, schema.by_attnum[c.attnum]) for c in self.columns if c.attnum in schema.by_attnum]


@dataclass(frozen=True, slots=True)
class Storage:
    """The evidence of a change of values by ALTER TABLE, for which PostgreSQL fires no trigger.

    ``columns`` has the number and the version of the catalog's row for each column of Levada. A column that was dropped
    and added again has another number. ALTER COLUMN … TYPE … USING changes both the version and ``file``. VACUUM FULL
    changes only the file, and GRANT only the version.
    """

    file: int
    columns: Mapping[str, tuple[int, str]]

    @property
    def is_unaccepted(self) -> bool:
        """True from the begin of the repair of a table that another session has changed, until the repair is accepted.

        Until then nothing else may show that the table differs.
        """
        return self.file < 0

    def unaccepted(self) -> Storage:
        """Return the storage of a table whose repair is not accepted yet."""
        return replace(self, file=-1)

    def to_json(self) -> str:
        """Return it as JSON."""
        return json.dumps([self.file, self.columns])

    @classmethod
    def from_json(cls, data: Sequence[Any]) -> Storage:
        """Parse the result of `to_json`."""
        return cls(data[0], {name: (number, version) for name, (number, version) in data[1].items()})


@dataclass(frozen=True, slots=True)
class Reconciled:
    """The columns after an evolution, a description of each change, and the clauses of ALTER TABLE in order."""

    layout: Layout
    changes: tuple[str, ...] = ()
    clauses: tuple[sql.Composable, ...] = ()


def reconcile(current: Layout, wanted: ReplicatedTableSchema, mode: TableMode, policy: OnSchemaChange) -> Reconciled:
    """Return the evolution of ``current`` to the version ``wanted``.

    Raise NeedsOperator ``schema_change_unsupported`` for a change that must not be made in place, and
    ``schema_change_refused`` for any change under the policy ``Fail``.
    """
    held = {c.attnum: c for c in current.columns}
    changes = schema_diff(held, wanted, policy, _fitted)
    check_changes(wanted, changes, policy, fills=mode is TableMode.UPSERT)
    columns, rename = dict(held), sql.SQL("RENAME COLUMN {} TO {}").format
    # Rename by way of names that no column has, because two columns may exchange their names.
    clauses = [rename(sql.Identifier(c.held.name), _between(c.attnum)) for c in changes if isinstance(c, Renamed)]
    for change in changes:
        match change:
            case Dropped(attnum, gone):
                clauses.append(sql.SQL("DROP COLUMN {}").format(sql.Identifier(gone.name)))
                del columns[attnum]
            case Renamed(attnum, before, name):
                clauses.append(rename(_between(attnum), sql.Identifier(name)))
                columns[attnum] = replace(before, name=name)
            case Widened(column, _, after):
                # Without USING: an assignment refuses a text that is too long, which a cast would cut.
                name, kind = columns[column.attnum].name, sql_type(after.type)
                clauses.append(sql.SQL("ALTER COLUMN {} TYPE {}").format(sql.Identifier(name), kind))
                columns[column.attnum] = replace(after, name=name)
            case Added(column):
                clauses += _add(column, fills=mode is TableMode.UPSERT)
                columns[column.attnum] = HeldColumn(column.attnum, column.name, column_type(column), column.type)
    shapes = {c.attnum: c.type for c in wanted.columns}
    layout = Layout(tuple(replace(c, shape=shapes.get(c.attnum, c.shape)) for c in columns.values()))
    return Reconciled(layout, tuple(map(str, changes)), tuple(clauses))


def create_table(
    name: sql.Composable, layout: Layout, mode: TableMode, key: Sequence[str] | None = None
) -> sql.Composed:
    """Return CREATE TABLE, with the columns of its primary key or without one."""
    columns = [(c.name, c.type) for c in layout.columns]
    columns += CHANGELOG_COLUMNS if mode is TableMode.CHANGELOG else ()
    parts: list[sql.Composable] = [column_list(columns)]
    if key:
        parts.append(sql.SQL("PRIMARY KEY ({})").format(sql.SQL(", ").join(map(sql.Identifier, key))))
    return sql.SQL("CREATE TABLE {} ({})").format(name, sql.SQL(", ").join(parts))


def column_list(columns: Sequence[tuple[str, str]]) -> sql.Composed:
    """Return names with their types. The types come from `column_type`, which returns no text of a user."""
    return sql.SQL(", ").join(sql.SQL("{} {}").format(sql.Identifier(n), sql_type(t)) for n, t in columns)


def sql_type(name: str) -> sql.SQL:
    """Return the type's name as SQL."""
    return sql.SQL(name)


def _fitted(before: HeldColumn, column: Column) -> HeldColumn | None:
    # The session converts times in UTC.
    if not (widens(before.shape, column.type) or is_retyped_in_utc(before.shape, column.type)):
        return None
    return replace(before, name=column.name, type=column_type(column))


def _between(attnum: int) -> sql.Identifier:
    return sql.Identifier(f"_levada_{attnum}")


def _add(column: Column, *, fills: bool) -> list[sql.Composed]:
    name, kind = sql.Identifier(column.name), sql_type(column_type(column))
    if column.missing_value is None or not fills:
        return [sql.SQL("ADD COLUMN {} {}").format(name, kind)]
    # A constant default reaches the existing rows without a rewrite, as at the source.
    value = sql.Literal(column.missing_value)
    return [
        sql.SQL("ADD COLUMN {} {} DEFAULT {}").format(name, kind, value),
        sql.SQL("ALTER COLUMN {} DROP DEFAULT").format(name),
    ]
