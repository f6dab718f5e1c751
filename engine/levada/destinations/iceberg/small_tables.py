"""Compaction of a small table in this process. Spark needs half a second of CPU for the smallest one."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from levada.destinations.data_files.data_writer import DataWriter
from levada.destinations.data_files.layout import cast_columns
from levada.destinations.data_files.live_files import READERS
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files, table_file
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.metadata import TableMetadata
from levada.destinations.iceberg.scan import live_files
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.table_reader import VECTORS_SINCE

_log = logging.getLogger(__name__)

MOST_BYTES: Final = 16 << 20
"""The size of a table's data files up to which they are rewritten here."""
_BATCH_ROWS: Final = 1024
"""Few rows at a time. In the row groups of other writers, a value of 2 MB takes its space once for all of its rows."""


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A commit that replaced all files of a table, ``removed``, by ``added`` with the same rows."""

    before: int
    """The snapshot before the commit."""
    snapshot: int
    removed: tuple[str, ...]
    added: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Loaded:
    """The contents of files, read side by side. To read a small file of an object store is mostly waiting."""

    contents: Mapping[str, bytes]

    @classmethod
    def of(cls, storage: Storage, paths: Sequence[str]) -> _Loaded:
        def read(path: str) -> bytes:
            with table_file(storage, path), storage.open(path) as file:
                content: bytes = file.read()
                return content

        with ThreadPoolExecutor(READERS) as pool:
            return cls(dict(zip(paths, pool.map(read, paths), strict=True)))

    def open(self, path: str) -> pa.BufferReader:
        return pa.BufferReader(self.contents[path])


def is_small(metadata: TableMetadata) -> bool:
    """Return True if this process can rewrite the table. Pure.

    Without a size in the summary of another writer's compaction, the table may have any size. Spark rewrites that, and
    tables with partitions or sorted rows, and those of format version 3, whose rows have IDs to keep.
    """
    return (
        0 < metadata.facts.bytes <= MOST_BYTES
        and not metadata.ever_partitioned
        and not metadata.arrangement.sort_by
        and metadata.format_version < VECTORS_SINCE
    )


def rewrite_small(table: IcebergTable) -> Rewritten | None:
    """Rewrite all rows of a table to new files without deletes, in one commit. Return None if another came first."""
    started, before = time.monotonic(), table.metadata.snapshot_id
    files = live_files(table)
    if before is None or table.metadata.snapshot_id != before:
        return None
    storage, fields = table.storage(), table.metadata.layout.files.arrow
    loaded = _Loaded.of(storage, [f.path for f in files])
    with DataWriter(storage, fields) as writer:
        for file in files:
            for rows, _ in file.read(loaded, list(fields), _BATCH_ROWS):
                writer.write(cast_columns(rows.columns, fields, str(table.name)))
    snapshot = _commit(table, writer.files)
    if snapshot is None:
        return None
    _log.info("compacted %s in %.1f s", table.name, time.monotonic() - started)
    return Rewritten(before, snapshot, tuple(f.path for f in files), tuple(f.path for f in writer.files))


def _commit(table: IcebergTable, files: list[WrittenFile]) -> int | None:
    try:
        return table.rewrite(files)
    except CommitConflict as conflict:
        _log.info("the compaction of %s is left for later: %s", table.name, conflict.message)
        remove_files(table.storage(), files)
        table.refresh()
        return None
