"""The stored records of interrupted copies, see `levada.copy.kept`.

A record exists only while a table is at Init, DataSync or Errored before its copy is complete, or while a shadow copy
of it is requested and not complete. The segments from its ``since`` on must be kept for the same time. Delete the
record before they are released.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from levada.apply.backlog import Backlog
from levada.copy.kept import KeptCopy
from levada.status import CopyProgress
from levada.stores.interface import PipelineStore
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)


def kept_copy(store: PipelineStore, table: TableId) -> KeptCopy | None:
    """Return the record of a table's interrupted copy, None if there is none that this version of Levada can use."""
    return parse_kept_copy(table, kept_text(store, table))


def kept_text(store: PipelineStore, table: TableId) -> str:
    """Return the text of the stored record, empty without one."""
    return store.get_fingerprint(_subject(table)) or ""


def parse_kept_copy(table: TableId, text: str | None) -> KeptCopy | None:
    """Return the record in a text, None if there is none that this version of Levada can use."""
    try:
        return KeptCopy.from_text(text) if text else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        _log.warning("the record of the interrupted copy of table %d is not used: %s", table, type(error).__name__)
        return None


def interrupted_progress(kept: KeptCopy) -> CopyProgress:
    """Return the progress of an interrupted copy that waits for its next attempt."""
    ranges = kept.plan.ranges()
    total, done = sum(r.bytes for r in ranges), sum(ranges[i].bytes for i in kept.ranges)
    return CopyProgress(
        bytes=done,
        total_bytes=total,
        percent=100 * done / total if total else 0.0,
        ranges=len(ranges),
        ranges_finished=len(kept.ranges),
        resumable=True,
    )


def store_kept_copy(store: PipelineStore, table: TableId, kept: KeptCopy | None) -> None:
    """Store the record, or delete it if it is None."""
    if kept is not None:
        store.store_fingerprint(_subject(table), kept.to_text())
    elif store.get_fingerprint(_subject(table)) is not None:
        store.delete_fingerprint(_subject(table))


def store_kept_text(store: PipelineStore, table: TableId, text: str) -> None:
    """Store the record that another process has written, or delete it if it is empty."""
    if not text:
        store_kept_copy(store, table, None)
    elif store.get_fingerprint(_subject(table)) != text:
        store.store_fingerprint(_subject(table), text)


def keep_segments(
    store: PipelineStore, backlog: Backlog, table: TableId, staged: Lsn, *, resumes: bool, shadow: bool = False
) -> Lsn | None:
    """Keep the table's segments during its copy. Return from where on, None if the copy cannot be resumed.

    ``staged`` is the LSN below which all changes are staged. ``resumes`` is True if the destination keeps finished
    ranges. The segments that an interrupted copy needs are kept since the start of the process.
    """
    kept = kept_copy(store, table) if resumes and backlog.holds(table, shadow=shadow) else None
    if kept is not None:
        return kept.since
    store_kept_copy(store, table, None)
    # The snapshot will be later, and apply skips changes below it.
    backlog.track(table, staged, shadow=shadow)
    return staged if resumes else None


class KeptCopies(Protocol):
    """The records of interrupted copies, for what makes a copy."""

    def get(self, table: TableId) -> KeptCopy | None:
        """Return the record of a table's interrupted copy, None if there is none that can be used."""
        ...

    def put(self, table: TableId, kept: KeptCopy | None) -> None:
        """Store the record, or delete it if it is None."""
        ...


@dataclass(frozen=True, slots=True)
class StoredKeptCopies:
    """The records in the store. They are those of the driver."""

    store: PipelineStore

    def get(self, table: TableId) -> KeptCopy | None:
        """Return the stored record."""
        return kept_copy(self.store, table)

    def put(self, table: TableId, kept: KeptCopy | None) -> None:
        """Store or delete the record."""
        store_kept_copy(self.store, table, kept)


def _subject(table: TableId) -> str:
    return f"ranges_{int(table)}"
