"""The rows that a copy takes, and whether an interrupted one keeps those that it has read. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from levada import codes
from levada.copy.keyed_rows import has_literals
from levada.copy.resumable import ResumableRows
from levada.errors import LevadaError
from levada.runtime.tables.requests import CopySettings
from levada.values import CopiedRows, TableMode

if TYPE_CHECKING:
    from levada.copy.snapshot import SnapshotRows
    from levada.destinations.interface import Destination
    from levada.postgres.catalog import PublishedTable
    from levada.runtime.copies.source_table import SourceTable
    from levada.schema import TableTarget
    from levada.values import Lsn

_FILES_LOST: Final = frozenset({codes.FILE_VANISHED, codes.COMMIT_CONFLICT, codes.REPLACEMENT_LOST})
"""Codes of commits that fail again with the same files."""


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


def why_not_kept(destination: Destination, target: TableTarget, since: Lsn | None, read: SourceTable) -> str:
    """Return why finished ranges of the copy cannot be kept, empty if they can.

    A row that moved between two snapshots is found by its key. So the table needs one, and holds one row per key.
    """
    if not destination.capabilities.keeps_ranges:
        return "the destination keeps no finished ranges"
    if not read.schema.key:
        return "the table has no key"
    if destination.effective_mode(target) is not TableMode.UPSERT:
        return "the table is a changelog"
    if not has_literals(read.schema):
        return "a column of its key has a type without exact literals"
    if any(c.mask is not None for c in read.schema.key_columns):
        return "a column of its key is masked"
    if not read.rows_stay:
        return "the table is no heap"
    return "" if since is not None else "its changes are not staged"


def forget_if_useless(rows: SnapshotRows, error: BaseException) -> None:
    """Give up the finished ranges if the commit of the same files would fail again."""
    if not (isinstance(rows, ResumableRows) and rows.complete and isinstance(error, LevadaError)):
        return
    if not error.retried or error.code in _FILES_LOST:
        rows.forget()
