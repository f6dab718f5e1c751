"""The changes of a source table's columns since its table at the destination was written. Pure.

A column is known by its attnum, so that a rename differs from a drop and an addition. Which types a destination can
widen in place is decided in its own package, and so is how it makes a change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from levada.destinations.interface import OnSchemaChange
from levada.errors import NeedsOperator
from levada.locations import java_folded
from levada.schema import Column, ReplicatedTableSchema
from levada.values import UNKNOWN_DEFAULT, resync_command


class Held(Protocol):
    """A dataclass of a column of the destination's table that holds a column of the source."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @property
    def name(self) -> str:
        """The column's name at the destination."""
        ...


H = TypeVar("H", bound=Held)


@dataclass(frozen=True, slots=True)
class Dropped(Generic[H]):
    """A column that the source does not have any more."""

    attnum: int
    held: H

    def __str__(self) -> str:
        return f"column {self.held.name} was dropped"


@dataclass(frozen=True, slots=True)
class Renamed(Generic[H]):
    """A column with another name. ``name`` is the new one at the destination."""

    attnum: int
    held: H
    name: str

    def __str__(self) -> str:
        return f"column {self.held.name} was renamed to {self.name}"


@dataclass(frozen=True, slots=True)
class Widened(Generic[H]):
    """A column with another type, which ``after`` has under the held name."""

    column: Column
    held: H
    after: H

    def __str__(self) -> str:
        return f"column {self.held.name} became {self.column.type_name}"


@dataclass(frozen=True, slots=True)
class Retyped:
    """A column with a type to which the table's column cannot be widened."""

    column: Column

    def __str__(self) -> str:
        kind = self.column.type_name
        return f"column {self.column.name} became {kind}, and the table's column cannot be widened to that"


@dataclass(frozen=True, slots=True)
class Added:
    """A column that the table does not have."""

    column: Column

    def __str__(self) -> str:
        return f"column {self.column.name} was added"


Change = Dropped[H] | Renamed[H] | Widened[H] | Retyped | Added


def schema_diff(
    held: Mapping[int, H],
    wanted: ReplicatedTableSchema,
    policy: OnSchemaChange,
    fitted: Callable[[H, Column], H | None],
) -> list[Change[H]]:
    """Return the changes after which the table has the columns of ``wanted``, in the order of the classes above.

    ``held`` has the table's columns by attnum. ``fitted`` returns a held column with the name and the type for the
    source's one, or None if its type cannot become that. Under the policy ``Ignore`` only types change.
    """
    renamed: list[Change[H]] = []
    typed: list[Change[H]] = []
    for column in wanted.columns:
        if (before := held.get(column.attnum)) is None:
            continue
        if (after := fitted(before, column)) is None:
            typed.append(Retyped(column))
            continue
        if after.name != before.name:
            renamed.append(Renamed(column.attnum, before, after.name))
        if (widened := replace(after, name=before.name)) != before:
            typed.append(Widened(column, before, widened))
    if policy is OnSchemaChange.IGNORE:
        return typed
    dropped = (Dropped(a, held[a]) for a in sorted(held.keys() - wanted.by_attnum.keys()))
    return [*dropped, *renamed, *typed, *(Added(c) for c in wanted.columns if c.attnum not in held)]


def check_changes(
    schema: ReplicatedTableSchema, changes: Sequence[Change[H]], policy: OnSchemaChange, *, fills: bool
) -> None:
    """Raise NeedsOperator for changes that need a copy, or that the policy refuses.

    ``fills`` says whether existing rows get the value of an added column. The code is ``schema_change_unsupported`` for
    a change of the type, or a value that is not known, and else ``schema_change_refused``.
    """
    for change in changes:
        match change:
            case Retyped():
                raise unsupported(schema, str(change))
            case Added(column) if fills and column.rewritten:
                raise unsupported(schema, f"{change} {UNKNOWN_DEFAULT}")
    if changes and policy is OnSchemaChange.FAIL:
        raise NeedsOperator(
            "schema_change_refused",
            f"{schema.name}: {', '.join(map(str, changes))}, but the pipeline's onSchemaChange is Fail",
            hint=f"set onSchemaChange to Propagate or Ignore, or {resync_hint(schema)}",
        )


def resync_hint(schema: ReplicatedTableSchema) -> str:
    """Return the hint with the command that copies the table again."""
    return f"copy the table again: {resync_command(schema.name)}"


def unsupported(schema: ReplicatedTableSchema, what: str) -> NeedsOperator:
    """Return the error for a change that requires a resync."""
    return NeedsOperator("schema_change_unsupported", f"{schema.name}: {what}", hint=resync_hint(schema))


def unconvertible(schema: ReplicatedTableSchema) -> NeedsOperator:
    """Return the error for kept rows that do not fit into the columns of a new copy, or lack its key."""
    return NeedsOperator(
        "kept_rows_unmovable",
        f"{schema.name}: a row that the source has deleted does not fit into the columns of the new copy, or has no"
        " value of its key",
        hint="to keep these rows, rename the table at the destination, or change them so that they fit. Or set deletes"
        f" to Apply, which removes them. Then: {resync_command(schema.name)}",
    )


def check_letter_case(
    schema: ReplicatedTableSchema, names: Iterable[str], system: str, folded: Callable[[str], str] = java_folded
) -> None:
    """Raise NeedsOperator ``ambiguous_columns`` if two names that are equal when ``folded`` are one to ``system``."""
    seen: dict[str, str] = {}
    for name in names:
        if (former := seen.setdefault(folded(name), name)) != name:
            raise NeedsOperator(
                "ambiguous_columns",
                f"{schema.name}: columns {former} and {name} would be one to readers of the {system} table, because"
                " they differ only in case",
                hint="exclude one of them with columns.exclude in the table's TableSync",
            )
