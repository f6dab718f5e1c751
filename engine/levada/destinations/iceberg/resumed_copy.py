"""The commit of a copy whose ranges were read in several snapshots. `levada.copy.kept` says why it is one state."""

from __future__ import annotations

from levada.copy.rows import CopiedRows
from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.snapshot_rows import all_files, index_snapshots
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.copy_commit import commit_copy
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.replacement import vanishing
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import deletes_of_copy, finish
from levada.destinations.key_index.index import index_errors
from levada.schema import ReplicatedTableSchema
from levada.values import Watermark


def commit_resumed(
    state: IcebergState,
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
    storage = lease.storage(table)
    with index_errors(state.index.folder):
        # An index of an earlier table of this name must not survive a crash before the commit.
        state.index.forget()
        index = state.index.open(schema)
        reader = KeyReader.of(schema, layout.files, index.seed)
        try:
            with vanishing():
                deletes = deletes_of_copy(storage, all_files(copied), vectors=table.has_vectors)
                index_snapshots(index, reader, storage, schema, copied, deletes)
            snapshot = commit_copy(table, all_files(copied), mark, lease, finish(deletes, {}))
        except BaseException:
            state.index.forget()
            raise
    state.index.commit(snapshot)
