"""One batch of changes, written to one table and committed with the watermark."""

from __future__ import annotations

from levada.copy.tasks import BatchRunner
from levada.destinations.context import DestinationContext
from levada.destinations.data_files.deletion_vectors import DeletionVector
from levada.destinations.data_files.fold_task import FoldTask
from levada.destinations.data_files.layout import FileLayout
from levada.destinations.data_files.parallel_changelog import ChangelogTask, write_changes
from levada.destinations.data_files.parallel_upsert import ParallelUpsert
from levada.destinations.data_files.storage import remove_files
from levada.destinations.iceberg.arranging import arranged_already
from levada.destinations.iceberg.index_sync import synced_index
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.ownership import has_key
from levada.destinations.iceberg.schema import IcebergSchema, reconcile
from levada.destinations.iceberg.state import IcebergState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.vectors import LiveVectors, finish, live_vectors, new_deletes
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import index_errors
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark


def upsert_batch(
    state: IcebergState,
    table: IcebergTable,
    layout: IcebergSchema,
    files: FileLayout,
    events: TableEvents,
    after: Lsn,
    mark: Watermark,
    pipeline: str,
    runner: BatchRunner | None,
) -> None:
    """Write the last state of each key, and delete the rows before, from commit LSN ``after`` on.

    ``files`` is the layout of new files. Tasks of ``runner`` write a large batch.
    """
    index = synced_index(state, table, events.schema, layout, pipeline)
    has_vectors = table.has_vectors
    live: dict[str, DeletionVector] = {}
    if has_vectors:
        state.vectors = live_vectors(state.vectors, table)
        live = state.vectors.by_file
    deletes = new_deletes(table.storage(), vectors=has_vectors)
    batch = ParallelUpsert(table.storage(), files, events.schema, index, deletes, runner=runner, ahead=state.ahead)
    deletes.partitions_of = lambda paths: state.partitions.of(table, paths, batch.files)
    with index_errors(state.index.folder):
        batch.run(events, after)
    if not batch.changes and len(events.versions) == 1:
        index.discard()
        # The segments will be removed. Without the watermark, a restart would report them as missing.
        table.record_mark(mark)
        return
    if batch.truncated:
        live = {}
    try:
        finished = finish(deletes, live)
    except BaseException:
        batch.discard()
        raise
    try:
        snapshot = table.write(batch.files, finished, mark=mark, replacing=batch.truncated)
    except CommitConflict:
        batch.discard()
        raise
    except BaseException:
        # The commit may have succeeded all the same, so keep the files.
        index.discard()
        raise
    if has_vectors:
        live.update({v.data_file: v for v in finished.vectors})
        state.vectors = LiveVectors(snapshot, live)
    state.index.commit(snapshot)
    state.partitions.learn(table, batch.files)


def task_ahead(
    state: IcebergState, table: IcebergTable, events: TableEvents, context: DestinationContext
) -> FoldTask | None:
    """Return the task that folds changes before their COMMIT, None if a batch would change the form of the files."""
    schema, metadata = events.schema, table.metadata
    if not has_key(table, schema):
        # The batch looks at all rows first, and builds the key index again.
        return None
    if reconcile(metadata.layout, metadata.last_field_id, schema, TableMode.UPSERT, context.on_schema_change).changes:
        return None
    files = arranged_already(table, events.target, metadata.layout)
    if files is None:
        return None
    index = synced_index(state, table, schema, metadata.layout, context.pipeline)
    return FoldTask(table.storage(), files, schema, index.seed, events.after, None)


def append_batch(
    table: IcebergTable,
    layout: FileLayout,
    events: TableEvents,
    after: Lsn,
    mark: Watermark,
    runner: BatchRunner | None,
) -> None:
    """Write every change as a row, from commit LSN ``after`` on. Tasks of ``runner`` write a large batch."""
    storage = table.storage()
    files = write_changes(ChangelogTask(storage, layout, events.schema, after), events, runner)
    if not files and len(events.versions) == 1:
        table.record_mark(mark)
        return
    try:
        table.write(files, mark=mark)
    except CommitConflict:
        remove_files(storage, files)
        raise
