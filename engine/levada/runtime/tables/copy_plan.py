"""The decision how a table is copied. Pure.

`plan_copy` is the only place that makes it. `levada.runtime.copies.table_copy` carries the plan out, in this process or
in that of a dedicated copy.
"""

from __future__ import annotations

from dataclasses import dataclass

from levada.runtime.tables.requests import CopySettings, settings_changed


@dataclass(frozen=True, slots=True)
class Recreate:
    """Drop the table at the destination, then copy it. It cannot be read until the copy is complete.

    ``former`` has the settings of the last copy, by which the table is dropped. It is None before the first copy.
    """

    settings: CopySettings
    former: CopySettings | None = None


@dataclass(frozen=True, slots=True)
class ReplaceInPlace:
    """Make a shadow copy, and replace the table by it. The table stays readable, but no changes are applied to it.

    If the destination has no such table, it is copied as by `Recreate`.
    """

    settings: CopySettings
    former: CopySettings


@dataclass(frozen=True, slots=True)
class Shadow:
    """Make a shadow copy with the settings of the last copy, apply the changes since, and replace the table by it.

    The table stays readable and up to date.
    """

    settings: CopySettings


CopyPlan = Recreate | ReplaceInPlace | Shadow


def plan_copy(
    former: CopySettings | None, wanted: CopySettings, *, replaces: bool, streams: bool, dedicated: bool
) -> CopyPlan:
    """Return the plan that keeps the table readable for as long as possible.

    ``former`` are the settings of the last copy, None before the first. ``wanted`` are those of the next one.
    ``replaces`` is True if the destination can replace a table by a shadow copy, see `can_replace`. ``streams`` is True
    while changes are applied to the table. ``dedicated`` is True if another process makes the copy. Such a copy
    replaces the table as soon as it is complete, because its process applies no changes.
    """
    if former is None or not replaces:
        return Recreate(wanted, former)
    if (former.place, former.depends_on) != (wanted.place, wanted.depends_on):
        # The next copy is another table, or in another catalog.
        return Recreate(wanted, former)
    same_rows = former == former.with_rows_of(wanted)
    if streams and not dedicated and same_rows and not settings_changed(former, wanted):
        return Shadow(former)
    return ReplaceInPlace(wanted, former)
