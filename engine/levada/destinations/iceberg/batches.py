"""One batch of changes, written to one table and committed with the watermark."""

from __future__ import annotations

from levada.destinations.iceberg.changelog import write_changelog
from levada.destinations.iceberg.index import index_errors
from levada.destinations.iceberg.java import CommitConflict
from levada.destinations.iceberg.schema import IcebergSchema
from levada.destinations.iceberg.state import TableState
from levada.destinations.iceberg.table import IcebergTable
from levada.destinations.iceberg.table_index import commit_index, synced_index
from levada.destinations.iceberg.upsert import Upsert
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark


def upsert_batch(
    state: TableState,
    table: IcebergTable,
    layout: IcebergSchema,
    events: TableEvents,
    after: Lsn,
    mark: Watermark,
    pipeline: str,
) -> None:
    """Write the last state of each key, with position deletes for the rows before, from commit LSN ``after`` on."""
    index = synced_index(state, table, events.schema, layout, pipeline)
    batch = Upsert(table.storage(), layout, events.schema, index)
    with index_errors(state.index_folder):
        batch.run(events, after)
    if not batch.changes and len(events.versions) == 1:
        index.discard()
        # The segments will be removed. Without the watermark, a restart would report them as missing.
        table.record_mark(mark)
        return
    try:
        snapshot = table.write(batch.files, batch.deletes, mark=mark, replacing=batch.truncated)
    except CommitConflict:
        batch.discard()
        raise
    except BaseException:
        # The commit may have succeeded all the same, so keep the files.
        index.discard()
        raise
    commit_index(state, index, snapshot)


def append_batch(table: IcebergTable, layout: IcebergSchema, events: TableEvents, after: Lsn, mark: Watermark) -> None:
    """Write every change as a row, from commit LSN ``after`` on."""
    storage = table.storage()
    files = write_changelog(storage, layout, events.schema, events, after)
    if not files and len(events.versions) == 1:
        table.record_mark(mark)
        return
    try:
        table.write(files, mark=mark)
    except CommitConflict:
        storage.remove(files)
        raise
