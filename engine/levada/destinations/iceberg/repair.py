"""The repair of a table: the rows of some keys are written again.

The commits of a repair are not recorded as Levada's. Until `accept`, they look like those of another writer, so that a
table whose repair did not end is parked, and not taken for one that equals the source. The caller compares the whole
table with the source at an LSN again, and accepts it only if nothing differs. So the watermark of that LSN is true,
whatever another writer did to the table before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from levada.destinations.data_files.arrangement import ArrangedWriter
from levada.destinations.data_files.layout import FileLayout, project
from levada.destinations.data_files.storage import remove_files
from levada.destinations.iceberg.damage import changed_files
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import finish, live_vectors, new_deletes
from levada.destinations.verification import Comparison
from levada.schema import ReplicatedTableSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from levada.destinations.iceberg.fixed_table import IcebergSnapshot
    from levada.values import Watermark

_log = logging.getLogger(__name__)


def rewrite_keys(
    state: IcebergState,
    table: IcebergTable,
    files: FileLayout,
    schema: ReplicatedTableSchema,
    compared: tuple[IcebergSnapshot, Comparison],
    hashes: pa.Array,
    rows: Iterable[pa.RecordBatch],
) -> None:
    """Delete all rows whose keys have these hashes, and write ``rows``.

    Raise CommitConflict if the table changed since it was compared.
    """
    lake, comparison = compared
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"another writer changed {table.name}")
    places = lake.places(comparison, hashes)
    live = live_vectors(state, table) if table.has_vectors else {}
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"the deletes of {table.name} were rewritten")
    deletes = new_deletes(table.storage(), vectors=table.has_vectors)
    deletes.partitions_of = lambda paths: state.partitions.of(table, paths, ())
    with ArrangedWriter(table.storage(), files) as writer:
        for batch in rows:
            writer.write(project(batch, files, schema))
    try:
        if places.num_rows:
            paths = places["path"].combine_chunks().dictionary_encode()
            numbers = paths.indices.to_numpy().astype(np.int64)
            deletes.add(paths.dictionary.to_pylist(), numbers, places["position"].to_numpy())
        table.write(writer.files, finish(deletes, live), mark=None, unrecorded=True)
    except CommitConflict:
        deletes.discard()
        remove_files(table.storage(), writer.files)
        raise
    finally:
        # Another writer's rows are not in it.
        state.index.forget()
        state.vectors = None


def accept(table: IcebergTable, lake: IcebergSnapshot, mark: Watermark) -> None:
    """Record the snapshot ``lake``, which equals the source at ``mark``, as Levada's last commit.

    Raise CommitConflict if the table changed since it was compared.
    """
    if table.metadata.snapshot_id != lake.snapshot:
        raise CommitConflict("commit_conflict", f"another writer changed {table.name}")
    table.record_mark(mark)


def forget_missing_files(table: IcebergTable, spark: SparkSession) -> list[str]:
    """Remove files that are missing or damaged from the table's metadata, in one commit. Return their paths.

    All files are read, because a changed bit leaves the size as it was.
    """
    current = table.metadata.snapshot_id
    if current is None:
        return []
    lost = table.damaged_files(current)
    files, vectors = table.content_of(current)
    left = [file for file in files if file.path not in lost]
    lost += changed_files(spark, table.storage(), left, [v for v in vectors if v.path not in lost], str(table.name))
    if lost:
        table.remove_files(lost)
        _log.warning("%s: removed %d damaged files from its metadata", table.name, len(lost))
    return lost
