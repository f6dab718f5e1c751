"""The columns of a DuckLake table, and their changes to match a version of the source table. Pure.

A column keeps its ID for its lifetime, and IDs are never used again. The state of the table maps each attnum of the
source to a column ID, so that a rename differs from a drop and an addition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa

from levada.destinations.data_files.layout import CHANGELOG_COLUMNS, FIELD_ID, FileLayout
from levada.destinations.ducklake import types
from levada.destinations.ducklake.types import LIST, arrow_type, default_text, type_name, widened
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.destinations.schema_changes import (
    Added,
    Dropped,
    Renamed,
    Widened,
    check_changes,
    check_letter_case,
    schema_diff,
    unsupported,
)
from levada.errors import NeedsOperator
from levada.locations import ascii_folded
from levada.pgoutput.text import parse_text
from levada.schema import Column, ColumnType, ReplicatedTableSchema
from levada.schema.changes import COMMIT_LSN, COMMIT_TS, OP, ORDINAL, UNCHANGED

_CHANGELOG: Final[Mapping[str, str]] = {
    OP: "varchar",
    COMMIT_LSN: "int64",
    ORDINAL: "int64",
    COMMIT_TS: "timestamptz",
    UNCHANGED: LIST,
}
assert _CHANGELOG.keys() == CHANGELOG_COLUMNS.keys()

_RESERVED: Final = "_ducklake_internal_"
"""The beginning of names that DuckLake uses in data files."""


@dataclass(frozen=True, slots=True)
class LakeColumn:
    """A column of a table. ``parts`` has the column of a list's elements, or those of a struct's fields or a map.

    ``default`` is the value of rows in files that lack the column, as the catalog's text. None is NULL.
    """

    id: int
    name: str
    type: str
    parts: tuple[LakeColumn, ...] = ()
    default: str | None = None

    @property
    def arrow(self) -> pa.Field | None:
        """The field in data files, with its field ID, or None if Levada does not write the type."""
        kind = arrow_type(self.type)
        inner = [arrow for part in self.parts if (arrow := part.arrow) is not None]
        if inner and len(inner) == len(self.parts):
            kind = _nested(self.type, inner)
        return None if kind is None else pa.field(self.name, kind, metadata={FIELD_ID: str(self.id)})

    def leaves(self) -> Iterator[LakeColumn]:
        """Yield the column itself, or the innermost parts of a list, a struct or a map. They have statistics."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def described(self) -> list[Any]:
        """Return what must not be changed by another writer, as plain values."""
        # A list has one part, and a column without parts has None.
        parts: list[Any] = [part.described() for part in self.parts]
        return [self.id, self.name, self.type, *(parts or [None])]


def _nested(name: str, inner: Sequence[pa.Field]) -> pa.DataType | None:
    match name:
        case types.LIST:
            return pa.list_(inner[0])
        case types.STRUCT:
            return pa.struct(inner)
        case types.MAP:
            return pa.map_(inner[0].with_nullable(False), inner[1])
    return None


@dataclass(frozen=True, slots=True)
class LakeColumns:
    """The columns of a table in order, including those of another writer.

    ``attnums`` maps the source's attnums to column IDs. ``extra`` has the IDs of a changelog's own columns. ``missing``
    has the PostgreSQL text of the value of rows before ``ADD COLUMN ... DEFAULT``, by attnum.
    """

    columns: tuple[LakeColumn, ...]
    attnums: Mapping[int, int]
    extra: tuple[int, ...] = ()
    missing: Mapping[int, str] = field(default_factory=dict)

    @property
    def by_id(self) -> Mapping[int, LakeColumn]:
        """The columns by ID."""
        return {c.id: c for c in self.columns}

    @property
    def own(self) -> tuple[LakeColumn, ...]:
        """The columns that Levada writes."""
        ids = {*self.attnums.values(), *self.extra}
        return tuple(c for c in self.columns if c.id in ids)

    def files(self, schema: ReplicatedTableSchema | None = None) -> FileLayout:
        """Return the columns of data files. With ``schema``, the layout has the values of rows in older files."""
        fields = [f for c in self.own if (f := c.arrow) is not None]
        by_attnum = {} if schema is None else schema.by_attnum
        missing = {
            self.attnums[a]: pa.repeat(parse_text(by_attnum[a].type, text), 1)
            for a, text in self.missing.items()
            if a in by_attnum and a in self.attnums
        }
        return FileLayout(pa.schema(fields), self.attnums, missing)

    def state(self) -> dict[str, Any]:
        """Return what the catalog does not have, and the definitions of the own columns, as plain values for JSON."""
        return {
            "attnums": {str(a): i for a, i in sorted(self.attnums.items())},
            "extra": list(self.extra),
            "missing": {str(a): text for a, text in sorted(self.missing.items())},
            "own": [c.described() for c in self.own],
        }

    @classmethod
    def of(cls, columns: Sequence[LakeColumn], state: Mapping[str, Any]) -> LakeColumns:
        """Return the columns of the catalog with the result of `state`."""
        attnums = {int(a): int(i) for a, i in state["attnums"].items()}
        return cls(tuple(columns), attnums, tuple(state["extra"]), {int(a): t for a, t in state["missing"].items()})


@dataclass(slots=True)
class Ids:
    """The IDs of new columns, above every ID that the table ever had."""

    last: int

    def __call__(self) -> int:
        """Return the next ID."""
        self.last += 1
        return self.last


def initial_columns(schema: ReplicatedTableSchema, mode: TableMode, ids: Ids | None = None) -> LakeColumns:
    """Return the columns of a new table."""
    ids = ids or Ids(0)
    columns = [_column(ids, c.name, c.type) for c in schema.columns]
    attnums = {c.attnum: f.id for c, f in zip(schema.columns, columns, strict=True)}
    extra = list(_extra(ids)) if mode is TableMode.CHANGELOG else []
    check_names(schema, [c.name for c in (*columns, *extra)])
    return LakeColumns((*columns, *extra), attnums, tuple(c.id for c in extra))


def replacement_columns(
    current: LakeColumns, last_id: int, wanted: ReplicatedTableSchema, mode: TableMode
) -> LakeColumns:
    """Return the columns of a shadow copy: those of the source, regardless of the table's current ones.

    A column keeps its ID if older files can be read under its new type, so that time travel continues to work.
    """
    ids, columns, by_id = Ids(last_id), [], current.by_id
    for column in wanted.columns:
        made = _column(Ids(last_id), column.name, column.type)
        before = by_id.get(current.attnums.get(column.attnum, -1))
        kept = None if before is None else _widened(before, made)
        columns.append(replace(kept, name=column.name) if kept is not None else _column(ids, column.name, column.type))
    attnums = {c.attnum: f.id for c, f in zip(wanted.columns, columns, strict=True)}
    extra: list[LakeColumn] = []
    if mode is TableMode.CHANGELOG:
        extra = [by_id[i] for i in current.extra if i in by_id] or list(_extra(ids))
    check_names(wanted, [c.name for c in (*columns, *extra)])
    return LakeColumns((*columns, *extra), attnums, tuple(c.id for c in extra))


def reconcile(
    current: LakeColumns, last_id: int, wanted: ReplicatedTableSchema, mode: TableMode, policy: OnSchemaChange
) -> tuple[LakeColumns, tuple[str, ...]]:
    """Return the columns after an evolution to the version ``wanted``, and a description of each change.

    ``last_id`` is the highest ID that the table ever had. Raise NeedsOperator ``schema_change_unsupported`` for a
    change that DuckLake cannot make in place, and ``schema_change_refused`` for any change under the policy ``Fail``.
    """
    held, ids = {a: current.by_id[i] for a, i in current.attnums.items()}, Ids(last_id)
    changes = schema_diff(held, wanted, policy, _fitted)
    check_changes(wanted, changes, policy, fills=mode is TableMode.UPSERT)
    columns, attnums, missing = dict(current.by_id), dict(current.attnums), dict(current.missing)
    for change in changes:
        match change:
            case Dropped(attnum, gone):
                del columns[gone.id], attnums[attnum]
                missing.pop(attnum, None)
            case Renamed(_, before, name):
                columns[before.id] = replace(before, name=name)
            case Widened(_, before, after):
                columns[before.id] = replace(after, name=columns[before.id].name)
            case Added(column):
                added = _column(ids, column.name, column.type)
                if column.missing_value is not None and mode is TableMode.UPSERT:
                    added = replace(added, default=_default(column, wanted))
                    missing[column.attnum] = column.missing_value
                columns[added.id], attnums[column.attnum] = added, added.id
    check_names(wanted, [c.name for c in columns.values()])
    return LakeColumns(tuple(columns.values()), attnums, current.extra, missing), tuple(map(str, changes))


def check_names(schema: ReplicatedTableSchema, names: Sequence[str]) -> None:
    """Raise NeedsOperator if two names differ only in case, which DuckDB ignores, or if a name is DuckLake's own."""
    check_letter_case(schema, names, "DuckLake", ascii_folded)
    for name in names:
        if name.lower().startswith(_RESERVED):
            raise NeedsOperator(
                "ambiguous_columns",
                f"{schema.name}: DuckLake uses names like {name} for columns of its own",
                hint="exclude the column with columns.exclude in the table's TableSync",
            )


def _fitted(before: LakeColumn, column: Column) -> LakeColumn | None:
    wanted = _column(Ids(0), column.name, column.type)
    kept = _widened(before, wanted)
    if kept is None and _widened(wanted, before) is not None:
        # The column already has a wider type, which represents all values.
        kept = before
    return None if kept is None else replace(kept, name=column.name)


def _default(column: Column, wanted: ReplicatedTableSchema) -> str:
    assert column.missing_value is not None
    default = default_text(column.type, column.missing_value)
    if default is None:
        raise unsupported(wanted, f"DuckLake cannot represent the default of the added column {column.name}")
    return default


def _column(ids: Ids, name: str, kind: ColumnType) -> LakeColumn:
    number = ids()
    inner = types.parts_of(kind)
    return LakeColumn(number, name, type_name(kind), tuple(_column(ids, n, part) for n, part in inner))


def _extra(ids: Ids) -> Iterator[LakeColumn]:
    for name, kind in _CHANGELOG.items():
        number = ids()
        yield LakeColumn(number, name, kind, (LakeColumn(ids(), "element", "varchar"),) if kind == LIST else ())


def _widened(before: LakeColumn, after: LakeColumn) -> LakeColumn | None:
    """Return ``before`` with the type ``after`` if older files can be read as it, else None."""
    if before.parts or after.parts:
        if [before.type, *(p.name for p in before.parts)] != [after.type, *(p.name for p in after.parts)]:
            return None
        parts = [_widened(b, a) for b, a in zip(before.parts, after.parts, strict=True)]
        kept = tuple(part for part in parts if part is not None)
        return replace(before, parts=kept) if len(kept) == len(parts) else None
    kind = widened(before.type, after.type)
    return None if kind is None else replace(before, type=kind)
