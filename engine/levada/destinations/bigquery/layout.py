"""The columns of a served table, and their changes to match a version of the source table. Pure.

Columns are identified by attnum. The state of a table has the name and type of each attnum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from levada.destinations.bigquery.names import check_columns, quoted
from levada.destinations.bigquery.settings import JsonbType
from levada.destinations.bigquery.types import bigquery_type, widens
from levada.destinations.interface import OnSchemaChange
from levada.destinations.schema_changes import (
    check_policy,
    computed_default,
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
        kind, held = column.type.element or column.type, columns.get(column.attnum)
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
    target = Layout.of(wanted, jsonb)
    if policy is OnSchemaChange.IGNORE:
        kept = [c for c in target.columns if current.get(c.attnum) is not None]
        names = {c.attnum: c.name for c in current.columns}
        target = Layout(tuple(replace(c, name=names[c.attnum]) for c in kept))
    steps = list(_steps(current, target, wanted, fixed, drops=policy is not OnSchemaChange.IGNORE))
    check_policy(wanted, [s.change for s in steps if s.change], policy)
    return steps


def _steps(
    current: Layout, target: Layout, wanted: ReplicatedTableSchema, fixed: frozenset[str], *, drops: bool
) -> Iterator[Step]:
    sources = wanted.by_attnum
    if drops:
        for column in current.columns:
            if target.get(column.attnum) is None:
                _check_free(column, fixed, wanted, "dropped")
                current = current.without(column.attnum)
                yield Step(f"DROP COLUMN {quoted(column.name)}", current, f"column {column.name} was dropped")
    for step in _renames(current, target, wanted, fixed):
        current = step.after
        yield step
    for column in target.columns:
        held = current.get(column.attnum)
        if held is None:
            current = current.with_column(column)
            yield _added(column, sources[column.attnum], current, wanted)
        elif held.type != column.type:
            if not widens(held.type, column.type):
                raise unsupported(wanted, f"column {column.name} changed from {held.type} to {column.type}")
            current = current.with_column(column)
            sql = f"ALTER COLUMN {quoted(column.name)} SET DATA TYPE {column.type}"
            yield Step(sql, current, f"column {column.name} became {column.type}")


def _renames(current: Layout, target: Layout, wanted: ReplicatedTableSchema, fixed: frozenset[str]) -> Iterator[Step]:
    """Yield the renames, each to a name that is free then.

    If there is none, names change places, or a name changes its case. Then one column gets another name first.
    """
    waiting = [c for c in target.columns if (b := current.get(c.attnum)) is not None and b.name != c.name]
    while waiting:
        free = [c for c in waiting if c.name.lower() not in current.names]
        column = (free or waiting)[0]
        held = current.get(column.attnum)
        assert held is not None
        _check_free(held, fixed, wanted, "renamed")
        name = column.name if free else f"{_PLACEHOLDER}{column.attnum}"
        current = current.with_column(replace(held, name=name))
        change = f"column {held.name} was renamed to {name}" if free else ""
        yield Step(f"RENAME COLUMN {quoted(held.name)} TO {quoted(name)}", current, change)
        if free:
            waiting.remove(column)


def _added(column: ServedColumn, source: Column, after: Layout, wanted: ReplicatedTableSchema) -> Step:
    if source.rewritten:
        raise computed_default(wanted, source)
    filled = None if source.missing_value is None else column.attnum
    return Step(f"ADD COLUMN {quoted(column.name)} {column.type}", after, f"column {column.name} was added", filled)


def _check_free(column: ServedColumn, fixed: frozenset[str], wanted: ReplicatedTableSchema, what: str) -> None:
    if column.name.lower() in fixed:
        raise unsupported(wanted, f"column {column.name} was {what}, but it partitions or clusters the table")
