"""The commit of a copy whose ranges were read in several snapshots. `levada.copy.kept` says why it is one state."""

from __future__ import annotations

import numpy as np

from levada.copy.rows import CopiedRows
from levada.destinations.data_files.key_reader import KeyReader, add_files
from levada.destinations.data_files.live_files import without_deletes
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.copy_commit import commit_copy
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.replacement import vanishing
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.state import TableState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import finish, new_deletes
from levada.destinations.key_index.index import index_errors
from levada.destinations.keys import KeyEncoder, key_kind
from levada.schema import ReplicatedTableSchema
from levada.values import Watermark


def commit_resumed(
    state: TableState,
    table: IcebergTable,
    schema: ReplicatedTableSchema,
    layout: IcebergSchema,
    copied: CopiedRows[list[WrittenFile]],
    mark: Watermark,
    lease: CopyLease,
) -> None:
    """Commit the files of all snapshots without the rows whose keys changed, and the files of the changed rows.

    The key index is built before the commit, because it finds the rows to delete.
    """
    assert copied.changed_keys is not None
    snapshots = [[file for part in parts for file in part] for parts in copied.snapshots]
    changed = [file for part in copied.changed for file in part]
    files = [file for of_snapshot in snapshots for file in of_snapshot] + changed
    partitions = {file.path: file.partition for file in files}
    storage = lease.storage(table)
    deletes = new_deletes(storage, vectors=table.has_vectors)
    deletes.partitions_of = lambda paths: [partitions[path] for path in paths]
    with index_errors(state.index.folder):
        # An index of an earlier table of this name must not survive a crash before the commit.
        state.index.forget()
        index = state.index.open(key_kind(schema))
        reader = KeyReader.of(schema, layout.files, index.seed)
        outdated = KeyEncoder(schema, index.seed).encode(copied.changed_keys)
        try:
            with vanishing():
                for of_snapshot in snapshots:
                    # Snapshot by snapshot, because the index has only one row for each key.
                    add_files(index, reader, storage, (without_deletes(file.path) for file in of_snapshot))
                    gone = index.lookup(outdated, forget=True)
                    found = np.flatnonzero(gone.found)
                    if len(found):
                        numbers, places = np.unique(gone.file_id[found], return_inverse=True)
                        deletes.add([index.file_path(int(n)) for n in numbers], places, gone.position[found])
                add_files(index, reader, storage, (without_deletes(file.path) for file in changed))
            snapshot = commit_copy(table, files, mark, lease, finish(deletes, {}))
        except BaseException:
            state.index.forget()
            raise
    state.index.commit(snapshot)
