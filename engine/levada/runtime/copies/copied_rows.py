"""The rows that a copy takes: all of the published ones, none, or those of a condition. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from levada.runtime.tables.requests import CopySettings
from levada.values import CopiedRows

if TYPE_CHECKING:
    from levada.postgres.catalog import PublishedTable


def rows_to_copy(published: PublishedTable, settings: CopySettings) -> PublishedTable:
    """Return the table with the partitions and the row filter of a copy under these settings.

    A copy that takes no row reads no partition. The number of rows of a condition is not known before.
    """
    match settings.copied_rows:
        case CopiedRows.ALL:
            return published
        case CopiedRows.NONE:
            return replace(published, leaves=())
        case CopiedRows.PART:
            # On lines of its own, so that a comment ends before the bracket.
            condition = f"(\n{settings.copy_where}\n)"
            if published.row_filter is not None:
                condition = f"({published.row_filter}) AND {condition}"
            leaves = tuple(replace(leaf, estimated_rows=None) for leaf in published.leaves)
            return replace(published, leaves=leaves, row_filter=condition)
