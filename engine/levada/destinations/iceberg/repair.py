"""The repair of a table: the rows of some keys are written again.

If another writer has changed the table before, the commits of a repair are not recorded as Levada's. Until `accept`,
they look like those of another writer, so that a table whose repair did not end is parked, and not taken for one that
equals the source. The caller compares the whole table with the source at an LSN again, and accepts it only if nothing
differs. So the watermark of that LSN is true, whatever another writer did to the table before. A table that no other
writer has changed goes on from its watermark, whether or not its repair ends.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.deletion_vectors import DeletionVectors
from levada.destinations.data_files.layout import FileLayout, project
from levada.destinations.data_files.position_deletes import PositionDeleteFiles
from levada.destinations.data_files.storage import remove_files
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import finish, live_vectors, new_deletes
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from levada.destinations.iceberg.fixed_table import IcebergSnapshot
    from levada.values import Watermark

_log = logging.getLogger(__name__)

_FEW_FILES: Final = 100


def rewrite_keys(
    state: IcebergState,
    table: IcebergTable,
    files: FileLayout,
    schema: ReplicatedTableSchema,
    lake: IcebergSnapshot,
    gone: pa.Table,
    rows: Iterable[pa.RecordBatch],
    *,
    recorded: bool,
) -> None:
    """Delete the rows ``gone`` of `IcebergSnapshot.digests`, and write ``rows``.

    The commit is ``recorded`` as one of Levada if no other writer has changed the table.
    Raise CommitConflict if the table changed since it was compared.
    """
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"another writer changed {table.name}")
    live = live_vectors(state.vectors, table).by_file if table.has_vectors else {}
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"the deletes of {table.name} were rewritten")
    deletes = new_deletes(table.storage(), vectors=table.has_vectors)
    deletes.partitions_of = lambda paths: state.partitions.of(table, paths, ())
    with ArrangedWriter(table.storage(), files) as writer:
        for batch in rows:
            writer.write(project(batch, files, schema))
    try:
        _delete(deletes, lake, gone)
        table.write(writer.files, finish(deletes, live), mark=None, unrecorded=not recorded)
    except CommitConflict:
        deletes.discard()
        remove_files(table.storage(), writer.files)
        raise
    finally:
        # Another writer's rows are not in it.
        state.index.forget()
        state.vectors = None


def _delete(deletes: PositionDeleteFiles | DeletionVectors, lake: IcebergSnapshot, gone: pa.Table) -> None:
    """Delete rows, by a file of position deletes for each data file if these are few.

    Such a file applies to no other data file, so that the rows of the others need not be compared again.
    """
    if not gone.num_rows:
        return
    paths = lake.paths_of(gone["file"])
    files, positions = gone["file"].to_numpy(), gone["position"].to_numpy()
    numbers = np.fromiter(paths, np.int64, len(paths))
    if len(paths) > _FEW_FILES:
        order = np.argsort(numbers)
        deletes.add(list(paths.values()), order[np.searchsorted(numbers[order], files)], positions)
        return
    for number, path in paths.items():
        mine = positions[files == number]
        deletes.add([path], np.zeros(len(mine), np.int64), mine)


def accept(table: IcebergTable, lake: IcebergSnapshot, mark: Watermark) -> None:
    """Record the snapshot ``lake``, which equals the source at ``mark``, as Levada's last commit.

    Raise CommitConflict if the table changed since it was compared.
    """
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"another writer changed {table.name}")
    table.record_mark(mark)


def forget_missing_files(table: IcebergTable, lake: IcebergSnapshot) -> Sequence[str]:
    """Remove the files of ``lake`` that were found damaged from the metadata, in one commit. Return their paths.

    Raise CommitConflict if the table changed since they were read.
    """
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"another writer changed {table.name}")
    if lake.lost:
        table.remove_files(list(lake.lost))
        _log.warning("%s: removed %d damaged files from its metadata", table.name, len(lake.lost))
    return lake.lost
