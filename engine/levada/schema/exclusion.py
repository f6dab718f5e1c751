"""The columns that ``columns.exclude`` leaves out, over renames. Pure.

The manifest excludes columns by name, and a rename moves a name to another column. PostgreSQL has an attnum for each
column, which no rename changes. So a column that was excluded is recognised under its new name, and its values are not
published.
"""

from __future__ import annotations

from collections.abc import Mapping

from levada.errors import NeedsOperator
from levada.schema.table import ReplicatedTableSchema
from levada.values import QualifiedTable, resync_command


def require_excluded(before: ReplicatedTableSchema, excluded: frozenset[str], names: Mapping[int, str]) -> None:
    """Raise NeedsOperator ``excluded_column_renamed`` if a column that ``before`` excludes would be replicated.

    ``excluded`` has the names that are excluded from now on, and ``names`` the columns that the table has now, by
    attnum. A column may be replicated if its former name was removed from ``columns.exclude`` since ``before``.
    """
    for column in before.excluded:
        name = names.get(column.attnum)
        removed = excluded != before.excluded_columns and column.name not in excluded
        if name is not None and name not in excluded and not removed:
            raise _no_longer_excluded(before.name, column.name, name)


def require_same_exclusion(before: ReplicatedTableSchema, excluded: frozenset[str], names: Mapping[int, str]) -> None:
    """Raise NeedsOperator ``excluded_column_renamed`` if a rename changed the columns that are excluded.

    The parameters are those of `require_excluded`. If the excluded names have changed, the table is copied again, and
    any column may be excluded.
    """
    require_excluded(before, excluded, names)
    if excluded == before.excluded_columns:
        for column in before.columns:
            if names.get(column.attnum) in excluded:
                raise _no_longer_replicated(before.name, column.name, names[column.attnum])


def excluded_attnums(
    names: Mapping[int, str], excluded: frozenset[str], before: ReplicatedTableSchema | None, now: Mapping[int, str]
) -> frozenset[int]:
    """Return the columns of a RELATION to exclude, which has ``names`` by attnum.

    ``now`` has the names in the catalog, which is read later. A column that is excluded there is excluded here as well,
    whatever its name was in between, unless ``before`` replicates it under the same excluded names.
    """
    same = before is not None and excluded == before.excluded_columns
    replicated = before.by_attnum if before is not None and same else {}
    return frozenset(
        attnum
        for attnum, name in names.items()
        if name in excluded or (now.get(attnum) in excluded and attnum not in replicated)
    )


def _no_longer_excluded(table: QualifiedTable, old: str, new: str) -> NeedsOperator:
    return NeedsOperator(
        "excluded_column_renamed",
        f"{table}: the excluded column {old} was renamed to {new}, which columns.exclude does not have",
        hint=f"add {new} to columns.exclude of the table's TableSync, or remove {old} to replicate the column. Then"
        f" copy the table again: {resync_command(table)}",
    )


def _no_longer_replicated(table: QualifiedTable, old: str, new: str) -> NeedsOperator:
    return NeedsOperator(
        "excluded_column_renamed",
        f"{table}: the column {old} was renamed to {new}, which columns.exclude has",
        hint=f"to replicate the column, remove {new} from columns.exclude of the table's TableSync. Keep it to exclude"
        f" the column. Then copy the table again: {resync_command(table)}",
    )
