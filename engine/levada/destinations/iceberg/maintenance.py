"""Upkeep of a table between batches: when it is due (pure), and how it is done.

Whoever calls holds the table's lock: a rewrite of data files conflicts with position deletes for the same files.
"""

from __future__ import annotations

import logging
import posixpath
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from levada.destinations.iceberg.claim import Claim
from levada.destinations.iceberg.files import TARGET_BYTES
from levada.destinations.iceberg.java import Jvm, each, java_errors
from levada.destinations.iceberg.metadata import Snapshot, TableFacts
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged

_log = logging.getLogger(__name__)

MAX_SNAPSHOTS: Final = 500
"""Beyond it the oldest go whatever their age: every commit writes the whole list anew."""
SMALL_FILES: Final = 10
"""So many data files of less than half the target size on average are worth merging."""
DELETE_FILES: Final = 10
DELETED_SHARE: Final = 0.2
"""A larger share of deleted rows than this is worth rewriting the files they are in."""
REWRITE_BYTES: Final = 1 << 30
"""What one look rewrites at most, so that the table's changes do not wait long."""

FILES_EVERY_S: Final = 24 * 3600
"""How often a table's folder is listed: for files that are missing, and for those that nothing names."""
ORPHAN_AGE_S: Final = 3 * 24 * 3600
"""A younger file may belong to a commit that is about to be made. Iceberg's own procedure waits as long."""


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """How often a table is looked at, and how long its past states are kept; 0 is never, and for ever."""

    compact_every_s: float = 600
    expire_after_s: float = 120 * 3600

    @classmethod
    def from_manifest(cls, config: Mapping[str, Any]) -> MaintenanceSettings:
        """Read the manifest's section."""
        every = config.get("compactEverySeconds", cls().compact_every_s)
        hours = config.get("expireSnapshotsAfterHours")
        return cls(float(every), cls().expire_after_s if hours is None else float(hours) * 3600)


@dataclass(frozen=True, slots=True)
class Work:
    """What there is to do. ``max_files`` bounds a rewrite of data files."""

    rewrite_data: bool = False
    rewrite_deletes: bool = False
    max_files: int = 0


def work_due(facts: TableFacts, *, target_bytes: int = TARGET_BYTES) -> Work:
    """Decide what of a table is worth rewriting. Pure."""
    if not facts.data_files:
        return Work()
    average = max(1, facts.bytes // facts.data_files)
    small = facts.data_files >= SMALL_FILES and average < target_bytes // 2
    riddled = facts.deleted_rows > facts.rows * DELETED_SHARE
    return Work(
        rewrite_data=small or riddled,
        rewrite_deletes=facts.delete_files >= DELETE_FILES,
        max_files=max(SMALL_FILES, REWRITE_BYTES // average),
    )


def oldest_kept(history: Sequence[Snapshot], settings: MaintenanceSettings, now_ms: int) -> Snapshot | None:
    """Return the oldest snapshot that stays, of a history from the newest on; None if all of it does. Pure."""
    keep = len(history)
    if settings.expire_after_s:
        limit = now_ms - int(settings.expire_after_s * 1000)
        keep = max(1, sum(1 for s in history if s.timestamp_ms >= limit))
    keep = min(keep, MAX_SNAPSHOTS)
    return None if keep >= len(history) else history[keep - 1]


def compact(table: IcebergTable, jvm: Jvm, *, target_bytes: int = TARGET_BYTES) -> bool:
    """Merge small files and deletes where it is worth it; tell whether anything was rewritten."""
    work = work_due(table.metadata.facts, target_bytes=target_bytes)
    if not (work.rewrite_data or work.rewrite_deletes):
        return False
    before, started = table.metadata.snapshot_id, time.monotonic()
    with java_errors(f"compact {table.name}"):
        actions = jvm.actions()
        if work.rewrite_data:
            rewrite = actions.rewriteDataFiles(table.java).binPack()
            for key, value in {
                "target-file-size-bytes": target_bytes,
                "max-files-to-rewrite": work.max_files,
                "max-file-group-size-bytes": REWRITE_BYTES // 4,
                "delete-ratio-threshold": DELETED_SHARE,
                "remove-dangling-deletes": "true",
            }.items():
                rewrite = rewrite.option(key, str(value))
            rewrite.execute()
        table.refresh()
        if work.rewrite_deletes and table.metadata.facts.delete_files >= DELETE_FILES:
            actions.rewritePositionDeletes(table.java).execute()
    table.refresh()
    _log.info("compacted %s in %.1f s", table.name, time.monotonic() - started)
    return table.metadata.snapshot_id != before


def expire(table: IcebergTable, settings: MaintenanceSettings, now_ms: int) -> None:
    """Remove the past states that need not be kept any more, and the files that they alone have."""
    oldest = oldest_kept(table.metadata.history, settings, now_ms)
    if oldest is None:
        return
    with java_errors(f"expire snapshots of {table.name}"):
        table.java.expireSnapshots().expireOlderThan(oldest.timestamp_ms).retainLast(1).commit()
    table.refresh()
    _log.info("%s: snapshots before %s expired", table.name, oldest.id)


def check_files(table: IcebergTable) -> None:
    """Raise DestinationChanged if a file that the current snapshot names is missing.

    A batch reads few of the files, so that a lost one may never be met.
    """
    folder = table.own_folder
    if folder is None or not table.metadata.facts.data_files:
        return
    with java_errors(f"list the files of {table.name}"):
        io = table.java.io()
        # Names are unique. A file system may list a path in another spelling than it was written with.
        stored = {posixpath.basename(file.location()) for file in each(io.listPrefix(folder))}
        unseen = (path for path in table.paths_in_use() if posixpath.basename(path) not in stored)
        lost = next((path for path in unseen if not io.newInputFile(path).exists()), None)
    if lost is not None:
        raise DestinationChanged(
            "table_damaged",
            f"a file of {table.name} is missing: {lost}",
            hint="copy the table again: levada resync MANIFEST TABLE",
        )


def remove_orphans(table: IcebergTable, jvm: Jvm, now_ms: int) -> int:
    """Remove old data files that no snapshot of the table names; return how many.

    A process that was killed before its commit left them. Only the folder is searched that no other table can have:
    a table that was renamed in its catalog keeps its location, and the next table of its name gets the same one.
    Nothing is removed while a copy of the table is being made, whose files have no name yet however old they are.
    """
    folder = table.own_folder
    if folder is None or table.metadata.mark is None or Claim.of(table) is not None:
        return 0
    try:
        with java_errors(f"search for orphan files of {table.name}"):
            # Listed by the table's own way to its files. Hadoop's, the default, does not know of object stores here.
            action = jvm.actions().deleteOrphanFiles(table.java).location(folder).usePrefixListing(True)
            found = action.olderThan(now_ms - ORPHAN_AGE_S * 1000).execute()
            removed = sum(1 for _ in each(found.orphanFileLocations()))
    except DestinationChanged as error:
        # A table without rows may not have the folder yet, and a file may go while the folder is listed.
        _log.info("%s", error.message)
        return 0
    if removed:
        _log.info("%s: removed %d files that no commit names", table.name, removed)
    return removed
