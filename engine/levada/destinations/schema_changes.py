"""The errors of schema changes that a destination does not follow. Pure.

Which changes a destination can make in place is decided in its own package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from levada.destinations.interface import OnSchemaChange
from levada.errors import NeedsOperator
from levada.locations import java_folded
from levada.schema import Column, ReplicatedTableSchema
from levada.values import resync_command


def resync_hint(schema: ReplicatedTableSchema) -> str:
    """Return the hint with the command that copies the table again."""
    return f"copy the table again: {resync_command(schema.name)}"


def unsupported(schema: ReplicatedTableSchema, what: str) -> NeedsOperator:
    """Return the error for a change that requires a resync."""
    return NeedsOperator("schema_change_unsupported", f"{schema.name}: {what}", hint=resync_hint(schema))


def computed_default(schema: ReplicatedTableSchema, column: Column) -> NeedsOperator:
    """Return the error for an added column whose values in existing rows are not streamed."""
    return unsupported(
        schema,
        f"column {column.name} was added with a default that PostgreSQL computed for each row, "
        "and it does not stream these values",
    )


def check_policy(schema: ReplicatedTableSchema, changes: Sequence[str], policy: OnSchemaChange) -> None:
    """Raise NeedsOperator ``schema_change_refused`` if there are changes and the policy is ``Fail``."""
    if changes and policy is OnSchemaChange.FAIL:
        raise NeedsOperator(
            "schema_change_refused",
            f"{schema.name}: {', '.join(changes)}, but the pipeline's onSchemaChange is Fail",
            hint=f"set onSchemaChange to Propagate or Ignore, or {resync_hint(schema)}",
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
