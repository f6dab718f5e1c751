"""Maintenance of a table between batches: compaction, expiry of snapshots, and removal of orphan files.

Callers hold the table's lock, because a rewrite of data files conflicts with position deletes for the same files.
"""

from __future__ import annotations

import logging
import posixpath
import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from levada.destinations.data_files.storage import TARGET_BYTES
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.java import Jvm, each, java_errors
from levada.destinations.iceberg.metadata import VERIFY_TAG, TableFacts
from levada.destinations.iceberg.retention import RETENTION, RetentionLimits, retention
from levada.destinations.iceberg.settings import Maintenance
from levada.destinations.iceberg.small_tables import Rewritten, is_small, rewrite_small
from levada.destinations.iceberg.storage import parquet_settings
from levada.destinations.iceberg.table import IcebergTable
from levada.errors import DestinationChanged, NeedsOperator

_log = logging.getLogger(__name__)

REWRITE_BYTES: Final = 1 << 30
"""The most bytes that one compaction rewrites, so that the table's changes do not wait long."""

_NOW_REFERENCED: Final = "Still referenced by refs"
"""Part of Iceberg's message if another writer has set a tag or branch since the metadata was read."""

FILES_EVERY_S: Final = 24 * 3600
"""The interval, in seconds, of listing a table's folder to find missing files and orphan files."""


@dataclass(frozen=True, slots=True)
class FileLimits:
    """The numbers of files from which maintenance has something to do.

    From ``data_files`` data files on, they are merged, if their average size is below half the target size. From
    ``delete_files`` delete files on, these are merged. Data files are rewritten if more than ``deleted_share`` of their
    rows are deleted. An orphan file is removed from an age of ``orphan_age_s`` seconds on, because a younger one may
    belong to a pending commit. That is the default of Iceberg's own procedure.
    """

    data_files: int = 10
    delete_files: int = 10
    deleted_share: float = 0.2
    orphan_age_s: float = 3 * 24 * 3600


FILES: Final = FileLimits()
"""The limits of the engine's maintenance."""


@dataclass(frozen=True, slots=True)
class MaintenanceSettings:
    """The interval of compaction, and the age at which snapshots expire, in seconds. 0 turns either off.

    No manifest sets ``files`` and ``retention``.
    """

    compact_every_s: float = 600
    expire_after_s: float = 120 * 3600
    files: FileLimits = FILES
    retention: RetentionLimits = RETENTION

    @classmethod
    def of(cls, settings: Maintenance) -> MaintenanceSettings:
        """Return the manifest's settings in seconds."""
        return cls(float(settings.compact_every_seconds), float(settings.expire_snapshots_after_hours) * 3600)


@dataclass(frozen=True, slots=True)
class Work:
    """The due compaction work. ``max_files`` limits a rewrite of data files."""

    rewrite_data: bool = False
    rewrite_deletes: bool = False
    max_files: int = 0


def work_due(
    facts: TableFacts, *, target_bytes: int = TARGET_BYTES, has_vectors: bool = False, limits: FileLimits = FILES
) -> Work:
    """Return the compaction work that is due for a table. Pure.

    Deletion vectors are not merged, because a data file has one at most.
    """
    if not facts.data_files:
        return Work()
    average = max(1, facts.bytes // facts.data_files)
    small = facts.data_files >= limits.data_files and average < target_bytes // 2
    riddled = facts.deleted_rows > facts.rows * limits.deleted_share
    return Work(
        rewrite_data=small or riddled,
        rewrite_deletes=facts.delete_files >= limits.delete_files and not has_vectors,
        max_files=max(limits.data_files, REWRITE_BYTES // average),
    )


def compact(table: IcebergTable, jvm: Jvm, limits: FileLimits = FILES) -> Rewritten | None:
    """Merge small data files and delete files if it is due.

    Return the commit of this process, or None if Spark rewrote the files, if another commit came first, or if nothing
    was due.
    """
    target_bytes = parquet_settings(table.metadata.properties).target_bytes
    work = work_due(table.metadata.facts, target_bytes=target_bytes, has_vectors=table.has_vectors, limits=limits)
    if not (work.rewrite_data or work.rewrite_deletes):
        return None
    if is_small(table.metadata):
        return rewrite_small(table)
    started = time.monotonic()
    with java_errors(f"compact {table.name}"):
        actions = jvm.actions()
        if work.rewrite_data:
            rewrite = actions.rewriteDataFiles(table.java)
            rewrite = rewrite.sort() if table.metadata.arrangement.sort_by else rewrite.binPack()
            for key, value in {
                "target-file-size-bytes": target_bytes,
                "max-files-to-rewrite": work.max_files,
                "max-file-group-size-bytes": max(REWRITE_BYTES // 4, target_bytes),
                "delete-ratio-threshold": limits.deleted_share,
                "remove-dangling-deletes": "true",
            }.items():
                rewrite = rewrite.option(key, str(value))
            rewrite.execute()
        table.refresh()
        if work.rewrite_deletes and table.metadata.facts.delete_files >= limits.delete_files:
            actions.rewritePositionDeletes(table.java).execute()
    table.refresh()
    _log.info("compacted %s in %.1f s", table.name, time.monotonic() - started)
    return None


def remove_left_tags(table: IcebergTable, in_use: Collection[str]) -> None:
    """Remove the tags of verifications that were killed. They would keep their snapshots for ever."""
    left = [name for name in table.metadata.refs if name.startswith(VERIFY_TAG) and name not in in_use]
    if left:
        table.set_tags({}, left)
        _log.info("%s: removed %d tags of verifications that did not end", table.name, len(left))


def expire(table: IcebergTable, settings: MaintenanceSettings, now_ms: int) -> None:
    """Thin out old snapshots, and remove the files to which only they refer."""
    if not table.metadata.may_remove_files:
        return
    due = retention(table.metadata, settings.expire_after_s, now_ms, settings.retention)
    if due.tagged or due.untagged:
        table.set_tags(due.tagged, due.untagged)
    if not due.expired:
        return
    try:
        with java_errors(f"expire snapshots of {table.name}"):
            # Snapshots expire by their IDs alone, not also by the table's properties. Then Iceberg only removes files
            # to which no snapshot refers. Otherwise it would remove the file of each replaced deletion vector, although
            # the file's other vectors may be in use.
            update = table.java.expireSnapshots().expireOlderThan(0)
            for snapshot in due.expired:
                update = update.expireSnapshotId(snapshot)
            update.commit()
    except NeedsOperator as error:
        if _NOW_REFERENCED not in error.message:
            raise
        _log.info("%s", error.message)
    table.refresh()
    _log.info("%s: %d snapshots expired", table.name, len(due.expired))


def check_files(table: IcebergTable) -> None:
    """Raise DestinationChanged if a file of the current snapshot is missing.

    A batch reads only a few files, so it may never detect a missing one.
    """
    folder = table.own_folder
    if folder is None or not table.metadata.facts.data_files:
        return
    with java_errors(f"list the files of {table.name}"):
        io = table.java.io()
        # Compare file names, which are unique. A file system may list a path in another form than it was written.
        stored = {posixpath.basename(file.location()) for file in each(io.listPrefix(folder))}
        unseen = (path for path in table.paths_in_use() if posixpath.basename(path) not in stored)
        lost = next((path for path in unseen if not io.newInputFile(path).exists()), None)
    if lost is not None:
        raise DestinationChanged(
            "table_damaged",
            f"a file of {table.name} is missing: {lost}",
            hint="copy the table again: levada resync MANIFEST TABLE",
        )


def remove_orphans(table: IcebergTable, jvm: Jvm, now_ms: int, limits: FileLimits = FILES) -> int:
    """Remove old data files to which no snapshot of the table refers. Return their number.

    A process that is killed before its commit leaves such files. Only a folder that belongs to this table alone is
    searched. The table's location is not enough: a table that is renamed in its catalog keeps its location, and the
    next table of the former name gets the same one. While the table is being copied, nothing is removed, because no
    commit refers to the copy's files yet.
    """
    folder = table.own_folder
    if folder is None or table.metadata.mark is None or CopyLease.of(table) is not None:
        return 0
    if not table.metadata.may_remove_files:
        return 0
    try:
        with java_errors(f"search for orphan files of {table.name}"):
            # List by the table's FileIO. The default is Hadoop's file system, which has no object stores configured.
            action = jvm.actions().deleteOrphanFiles(table.java).location(folder).usePrefixListing(True)
            found = action.olderThan(now_ms - int(limits.orphan_age_s * 1000)).execute()
            removed = sum(1 for _ in each(found.orphanFileLocations()))
    except DestinationChanged as error:
        # The folder of an empty table may not exist yet, and a file may be removed during the listing.
        _log.info("%s", error.message)
        return 0
    if removed:
        _log.info("%s: removed %d orphan files", table.name, removed)
    return removed
