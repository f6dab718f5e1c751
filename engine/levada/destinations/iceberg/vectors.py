"""The deletes of a table by its format version, and its live deletion vectors.

A table of format version 2 gets position-delete files. One of version 3 gets deletion vectors. Its data files have one
vector at most, so a batch replaces the vectors of the data files in which it deletes rows.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from levada.destinations.data_files.deletion_vectors import (
    DeletionVector,
    DeletionVectors,
    files_of,
    to_bitmap,
    write_vectors,
)
from levada.destinations.data_files.position_deletes import PositionDeleteFiles
from levada.destinations.data_files.storage import Storage, WrittenFile, remove_files
from levada.destinations.iceberg.delete_files import NewDeletes
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.scan import positions_in_files
from levada.destinations.iceberg.storage import POSITION_DELETES
from levada.destinations.iceberg.table import IcebergTable

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveVectors:
    """The deletion vectors of a snapshot, by data file. Without a snapshot there are none."""

    snapshot_id: int | None
    by_file: dict[str, DeletionVector]


def new_deletes(storage: Storage, *, vectors: bool) -> PositionDeleteFiles | DeletionVectors:
    """Return what takes the deleted rows of a batch: deletion vectors or position-delete files."""
    return DeletionVectors(storage) if vectors else PositionDeleteFiles(storage, POSITION_DELETES)


def deletes_of_copy(
    storage: Storage, files: Iterable[WrittenFile], *, vectors: bool
) -> PositionDeleteFiles | DeletionVectors:
    """Return what takes the deleted rows of a copy that is not committed, and has ``files``."""
    partitions = {file.path: file.partition for file in files}
    deletes = new_deletes(storage, vectors=vectors)
    deletes.partitions_of = lambda paths: [partitions[path] for path in paths]
    return deletes


def finish(deletes: PositionDeleteFiles | DeletionVectors, live: Mapping[str, DeletionVector]) -> NewDeletes:
    """Write what is not written yet, and return what to commit. ``live`` has the vectors before the batch."""
    if isinstance(deletes, PositionDeleteFiles):
        return NewDeletes(deletes.files)
    deletes.write(live)
    return NewDeletes(vectors=deletes.written, replaced=deletes.replaced)


def live_vectors(known: LiveVectors | None, table: IcebergTable) -> LiveVectors:
    """Return the deletion vectors of the current snapshot: those that are ``known``, if they are its own.

    Position-delete files, which a table has from an older format version, are replaced by vectors first. Raise
    CommitConflict if data files were replaced meanwhile, so that positions that were looked up before are void.
    """
    current = table.metadata.snapshot_id
    if current is None:
        return LiveVectors(None, {})
    if known is not None and known.snapshot_id == current:
        return known
    found = table.delete_files()
    if found.by_position:
        current = replace_position_deletes(table)
        found = table.delete_files()
    return LiveVectors(current, found.vectors)


def replace_position_deletes(table: IcebergTable) -> int:
    """Replace all position-delete files by deletion vectors, in one commit. Return its snapshot's ID."""
    planned = table.plan()
    if planned is None:
        table.rewrite_all()
        raise CommitConflict("commit_conflict", f"{table.name} was rewritten, as it had files of another writer")
    deleted = positions_in_files(table, planned)
    partitions = table.partitions() if table.metadata.ever_partitioned else {}
    written = write_vectors(table.storage(), ((path, to_bitmap(rows)) for path, rows in deleted.items()))
    vectors = [replace(v, partition=partitions.get(v.data_file)) for v in written]
    try:
        snapshot = table.replace_deletes(table.delete_files().by_position, vectors)
    except CommitConflict:
        remove_files(table.storage(), files_of(vectors))
        raise
    if table.metadata.snapshot_id != snapshot:
        raise CommitConflict("commit_conflict", f"another writer changed {table.name}")
    _log.info("%s: replaced position deletes of %d data files by deletion vectors", table.name, len(vectors))
    return snapshot
