"""A copy into a table that exists: its files, its commit with the watermark, and its key index."""

from __future__ import annotations

from levada.copy.rows import TableRows
from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.iceberg.arranging import arrange_as
from levada.destinations.iceberg.copy_commit import commit_copy, write_leased
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.evolution import evolve_to
from levada.destinations.iceberg.index_sync import index_copy
from levada.destinations.iceberg.ownership import check_same_table
from levada.destinations.iceberg.partitioning import PartitionLists
from levada.destinations.iceberg.resumed_copy import commit_resumed
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.schema import TableTarget
from levada.values import Watermark


def write_copy(
    state: IcebergState,
    table: IcebergTable,
    target: TableTarget,
    mode: TableMode,
    rows: TableRows,
    mark: Watermark,
    policy: OnSchemaChange,
    *,
    lease: CopyLease | None = None,
    indexed: bool = True,
) -> None:
    """Write the rows as data files, and commit them with ``mark``. The commit removes all earlier rows.

    ``lease`` is that with which the table was created for this copy. The lock of the state is held. Unless it is
    ``indexed``, the first batch of changes builds the key index.
    """
    schema = target.schema
    check_same_table(table, schema, mode)
    table.check_epoch(mark)
    table.upgrade()
    layout = evolve_to(table, schema, mode, policy)
    lease = lease or CopyLease.take(table, mark, rows.kept_place)
    new_files = arrange_as(table, target, layout, keeps_rows=False)
    storage = lease.storage(table)
    writer = PartitionWriter.of_copy(storage, new_files, schema, mode, mark.lsn)
    keeper = RangeFiles(storage, new_files.arrow, PartitionLists())
    written = write_leased(rows, writer, keeper, lease, table)
    if written.changed_keys is not None:
        commit_resumed(state, table, schema, layout, written, mark, lease)
    else:
        files = [file for part in written.snapshots[0] for file in part]
        snapshot = commit_copy(table, files, mark, lease)
        if mode is TableMode.UPSERT and indexed:
            index_copy(state, table, schema, layout, files, snapshot)
        elif not indexed:
            state.index.forget()
    state.schema, state.seen = schema, mark.lsn
    keeper.remove(written.names)
