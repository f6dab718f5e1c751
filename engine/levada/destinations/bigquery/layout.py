"""The columns of a served table, and their changes to match a version of the source table. Pure.

Columns are identified by attnum. The state of a table has the name and type of each attnum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from levada.destinations.bigquery.names import check_columns, quoted
from levada.destinations.bigquery.settings import JsonbType
from levada.destinations.bigquery.types import bigquery_type, widens
from levada.destinations.interface import OnSchemaChange
from levada.destinations.schema_changes import (
    Added,
    Change,
    Dropped,
    Renamed,
    Widened,
    check_changes,
    schema_diff,
    unsupported,
)
from levada.errors import NeedsOperator
from levada.schema import Column, Kind, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED

CHANGELOG: Final[tuple[tuple[str, str, str], ...]] = (
    (OP, "STRING", "NULLABLE"),
    (COMMIT_LSN, "INT64", "NULLABLE"),
    (ORDINAL, "INT64", "NULLABLE"),
    (COMMIT_TS, "TIMESTAMP", "NULLABLE"),
    (UNCHANGED, "STRING", "REPEATED"),
)
"""The additional columns of a changelog: name, type and mode. The last one has the names of unknown values."""


def check_key(schema: ReplicatedTableSchema, columns: Layout) -> None:
    """Raise NeedsOperator ``key_unsupported`` for a key of jsonb that BigQuery has as JSON.

    JSON does not distinguish 1.10 from 1.1. PostgreSQL does, so a change from one to the other is a change of the key.
    """
    for column in schema.key_columns:
        kind, held = column.type.scalar, columns.get(column.attnum)
        if kind.kind is Kind.JSON and held is not None and held.type == "JSON":
            another = "give the table another key"
            raise NeedsOperator(
                "key_unsupported",
                f"{schema.name}: the key has the column {column.name} of type {column.type_name}, and BigQuery's JSON"
                " does not distinguish all of its values",
                hint=another if column.type.element else f"set spec.destination.bigquery.jsonb to String, or {another}",
            )


_PLACEHOLDER: Final = "_levada_column_"


@dataclass(frozen=True, slots=True)
class ServedColumn:
    """A column of a served table."""

    attnum: int
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of a served table, without those of `CHANGELOG`."""

    columns: tuple[ServedColumn, ...]

    @classmethod
    def of(cls, schema: ReplicatedTableSchema, jsonb: JsonbType) -> Layout:
        """Return the columns of a new table. Raise NeedsOperator for a name that BigQuery does not allow."""
        check_columns(schema)
        return cls(tuple(ServedColumn(c.attnum, c.name, bigquery_type(c, jsonb)) for c in schema.columns))

    @classmethod
    def from_json(cls, data: Sequence[Sequence[Any]]) -> Layout:
        """Parse the result of `to_json`."""
        return cls(tuple(ServedColumn(int(a), str(n), str(t)) for a, n, t in data))

    def to_json(self) -> list[list[Any]]:
        """Return the columns as plain values for JSON."""
        return [[c.attnum, c.name, c.type] for c in self.columns]

    def get(self, attnum: int) -> ServedColumn | None:
        """Return the column of a source column, or None."""
        return next((c for c in self.columns if c.attnum == attnum), None)

    @property
    def names(self) -> frozenset[str]:
        """The columns' names in lower case, as BigQuery compares them."""
        return frozenset(c.name.lower() for c in self.columns)

    def with_column(self, column: ServedColumn) -> Layout:
        """Return the layout with this column, in place of the one with its attnum if there is one."""
        if self.get(column.attnum) is None:
            return Layout((*self.columns, column))
        return Layout(tuple(column if c.attnum == column.attnum else c for c in self.columns))

    def without(self, attnum: int) -> Layout:
        """Return the layout without this column."""
        return Layout(tuple(c for c in self.columns if c.attnum != attnum))


@dataclass(frozen=True, slots=True)
class Step:
    """One ALTER TABLE.

    ``sql`` is what follows the table's name. ``after`` are the columns after it. ``filled`` is the attnum of an added
    column whose constant must be written to existing rows, or None.
    """

    sql: str
    after: Layout
    change: str
    filled: int | None = None


def plan(
    current: Layout,
    wanted: ReplicatedTableSchema,
    jsonb: JsonbType,
    policy: OnSchemaChange,
    fixed: frozenset[str] = frozenset(),
) -> list[Step]:
    """Return the statements that change the columns to those of the version ``wanted``.

    ``fixed`` has the names, in lower case, of the columns by which the table is partitioned or clustered. BigQuery
    cannot drop or rename them. Raise NeedsOperator ``schema_change_unsupported`` for a change that BigQuery does not
    support in place, and ``schema_change_refused`` for any change under the policy ``Fail``.
    """
    types = {c.attnum: c.type for c in Layout.of(wanted, jsonb).columns}

    def fitted(before: ServedColumn, column: Column) -> ServedColumn | None:
        kind = types[column.attnum]
        fits = kind == before.type or widens(before.type, kind)
        return replace(before, name=column.name, type=kind) if fits else None

    changes = schema_diff({c.attnum: c for c in current.columns}, wanted, policy, fitted)
    for change in changes:
        if isinstance(change, Dropped | Renamed) and change.held.name.lower() in fixed:
            raise unsupported(wanted, f"{change}, but it partitions or clusters the table")
    check_changes(wanted, changes, policy, fills=True)
    return list(_steps(current, changes, types))


def _steps(current: Layout, changes: Sequence[Change[ServedColumn]], types: Mapping[int, str]) -> Iterator[Step]:
    for change in changes:
        if isinstance(change, Dropped):
            current = current.without(change.attnum)
            yield Step(f"DROP COLUMN {quoted(change.held.name)}", current, str(change))
    for step in _renames(current, [c for c in changes if isinstance(c, Renamed)]):
        current = step.after
        yield step
    for change in changes:
        match change:
            case Widened(column, _, after):
                held = current.get(column.attnum)
                assert held is not None
                current = current.with_column(replace(held, type=after.type))
                yield Step(f"ALTER COLUMN {quoted(held.name)} SET DATA TYPE {after.type}", current, str(change))
            case Added(column):
                added = ServedColumn(column.attnum, column.name, types[column.attnum])
                current = current.with_column(added)
                filled = None if column.missing_value is None else column.attnum
                yield Step(f"ADD COLUMN {quoted(added.name)} {added.type}", current, str(change), filled)


def _renames(current: Layout, waiting: list[Renamed[ServedColumn]]) -> Iterator[Step]:
    """Yield the renames, each to a name that is free then.

    If there is none, names change places, or a name changes its case. Then one column gets another name first.
    """
    while waiting:
        free = [c for c in waiting if c.name.lower() not in current.names]
        change = (free or waiting)[0]
        held = current.get(change.attnum)
        assert held is not None
        name = change.name if free else f"{_PLACEHOLDER}{change.attnum}"
        current = current.with_column(replace(held, name=name))
        sql = f"RENAME COLUMN {quoted(held.name)} TO {quoted(name)}"
        yield Step(sql, current, str(change) if free else "")
        if free:
            waiting.remove(change)
