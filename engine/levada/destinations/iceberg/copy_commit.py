"""The rows of a copy: written as data files under a lease, and committed with the watermark."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from levada.copy.rows import CopiedRows, TableRows
from levada.destinations.data_files.partition_writer import PartitionWriter
from levada.destinations.data_files.range_files import RangeFiles
from levada.destinations.data_files.storage import WrittenFile
from levada.destinations.iceberg.copy_lease import CopyLease
from levada.destinations.iceberg.delete_files import NewDeletes
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.metadata import Property
from levada.destinations.iceberg.table import NO_DELETES, IcebergTable
from levada.errors import LevadaError
from levada.values import Watermark

_ATTEMPTS: Final = 3


def write_leased(
    rows: TableRows, writer: PartitionWriter, keeper: RangeFiles, lease: CopyLease, table: IcebergTable
) -> CopiedRows[list[WrittenFile]]:
    """Write the rows to data files. After an error, remove the files, unless the next attempt can use some of them."""
    try:
        return rows.map_ranges(writer, keeper)
    except Exception:
        if rows.kept_place != lease.folder:
            # Files that cannot be removed now are removed with the lease, when the next copy begins.
            with suppress(LevadaError):
                lease.release(table)
        raise


def commit_copy(
    table: IcebergTable,
    files: Sequence[WrittenFile],
    mark: Watermark,
    lease: CopyLease,
    deletes: NewDeletes = NO_DELETES,
) -> int:
    """Commit the copied rows, and remove all earlier rows. Return the snapshot's ID.

    ``deletes`` are rows of ``files`` that do not belong to the table.

    Raise CommitConflict if another copy of the table has begun in the meantime, and StaleEpoch if its driver is newer.
    """
    for attempt in range(1, _ATTEMPTS + 1):
        # A copy may take hours, so read the current metadata before the commit is built.
        table.refresh()
        table.check_epoch(mark)
        if not lease.holds(table, mark):
            raise CommitConflict("commit_conflict", f"another process copies {table.name}")
        try:
            # The copied rows have all values, so a pending backfill is obsolete.
            done = {Property.FILL.value: None, Property.COPY_LEASE.value: None}
            replacing = bool(table.metadata.facts.data_files)
            return table.write(files, deletes, mark=mark, replacing=replacing, properties=done)
        except CommitConflict:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError
