"""The commits to one table: a batch of changes, a copy, or a shadow copy, each with its watermark."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from levada import codes
from levada.copy.tasks import BatchRunner, run_tasks
from levada.destinations.data_files.folded_ahead import FoldedAhead
from levada.destinations.data_files.key_reader import KeyReader
from levada.destinations.data_files.parallel_changelog import ChangelogTask, write_changes
from levada.destinations.data_files.parallel_upsert import ParallelUpsert
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile, remove_files
from levada.destinations.ducklake.columns import LakeColumn, LakeColumns
from levada.destinations.ducklake.database import CatalogDatabase, UnconfirmedCommit
from levada.destinations.ducklake.deletes import DeletedRows
from levada.destinations.ducklake.index_sync import sync_index
from levada.destinations.ducklake.intact import IntactTable, own_whole, read_intact
from levada.destinations.ducklake.snapshot import DeleteFile, NextSnapshot
from levada.destinations.ducklake.state import State, TableRow, key_text
from levada.destinations.ducklake.statistics import DataFile, describe_files
from levada.destinations.ducklake.storage import LakeFolder
from levada.destinations.ducklake.tables import LakeTable, LiveDataFile, TableContent, read_content, read_files
from levada.destinations.fenced import committed, key_changed, require_epoch
from levada.destinations.interface import TableMode
from levada.destinations.key_index.index import KeyIndex, index_errors
from levada.destinations.key_index.table_index import TableIndex
from levada.errors import LevadaError, Transient
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.segments.batch import TableEvents
from levada.values import Lsn, Watermark

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 5
_NOT_REPEATED: Final = frozenset({codes.COMMIT_CONFLICT, codes.FILE_VANISHED})
"""Errors of a task with which the whole batch is repeated."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Catalog:
    """The catalog's database, its state and the folder of its files."""

    database: CatalogDatabase
    state: State
    lake: LakeFolder
    author: str


@dataclass(slots=True)
class Changes:
    """The files of one commit. ``replacing`` removes all earlier rows."""

    columns: LakeColumns
    files: Sequence[DataFile] = ()
    deletes: DeletedRows | None = None
    replacing: bool = False


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit: the table's state and numbers after it, and the IDs of the data files that it added."""

    row: TableRow
    content: TableContent
    added: Sequence[int]


@dataclass(slots=True)
class SyncedFiles:
    """The data files to which a key index corresponds: their number and the sum of their IDs."""

    known: tuple[int, int] | None = field(default=None)

    def follow(self, made: Committed, removed: Sequence[LiveDataFile]) -> None:
        """Follow a commit that added data files and removed others. A compaction just before it is found later."""
        if self.known is None:
            return
        files, total = self.known
        expected = files + len(made.added) - len(removed), total + sum(made.added) - sum(f.id for f in removed)
        self.known = expected if expected == (made.content.files, made.content.file_ids) else None


def commit(
    catalog: Catalog,
    read: TableRow,
    before: IntactTable,
    changes: Changes,
    after: TableRow,
    *,
    check: bool = True,
    recorded: bool = True,
) -> Committed:
    """Commit the changes and the state ``after`` in one transaction.

    ``read`` is the state when ``before`` was read. ``after`` has the new watermark. Without ``check``, changes by
    another writer are ignored, because a copy replaces them. Unless it is ``recorded``, the commit looks like that of
    another writer afterwards. Raise Transient ``commit_conflict``
    if the table has changed since, StaleEpoch if a newer driver writes it, and DestinationChanged if another writer
    changed it.
    """
    assert after.lsn is not None
    mark = Watermark(catalog.author, after.epoch, after.lsn)
    table = before.table
    with catalog.database.transaction(f"committing to {table.name}", pipelined=True) as connection:
        locked = catalog.state.find(connection, read.owner.table, lock=True)
        if locked is None:
            raise conflict(f"the state of {table.name} was removed")
        require_epoch(locked.epoch, after.epoch)
        if replace(locked, epoch=read.epoch) != read:
            raise conflict(f"another process has written {table.name}")
        snapshot = NextSnapshot.begin(connection, catalog.author)
        if check:
            now = read_intact(connection, catalog.lake.uri, locked)
            if now.columns.columns != before.columns.columns:
                raise conflict(f"another writer has added or changed columns of {table.name}")
        else:
            found = own_whole(connection, catalog.lake.uri, locked)
            if found is None:
                raise conflict(f"{table.name} was dropped")
            columns = LakeColumns.of(found.columns, locked.columns)
            now = IntactTable(table, columns, found.content, found.last_column_id)
        if changes.deletes is not None:
            _check_replaced(connection, table, changes.deletes)
        if changes.replacing:
            snapshot.end_files(table.id)
        snapshot.change_columns(table.id, now.columns, changes.columns, has_rows=now.content.next_row_id > 0)
        files = [(f, _relative(catalog, table.folder, f.path)) for f in changes.files]
        added = snapshot.add_files(table.id, files, changes.columns.own)
        if changes.deletes is not None:
            ids = {f.path: number for f, number in zip(changes.files, added, strict=True)}
            snapshot.replace_deletes(
                table.id,
                [
                    (
                        DeleteFile(
                            w.file.path,
                            ids[w.data_path] if w.data_id is None else w.data_id,
                            w.file.rows,
                            w.file.bytes,
                            w.footer,
                        ),
                        _relative(catalog, table.folder, w.file.path),
                    )
                    for w in changes.deletes.written
                ],
                [f.id for f in changes.deletes.emptied],
            )
        snapshot.finish()
        stored, content = replace(after, columns=changes.columns.state()), read_content(connection, table.id)
        if recorded:
            stored = stored.committed(snapshot.id, content, mark)
        catalog.state.save(connection, locked, stored)
    return Committed(stored, content, added)


def upsert_batch(
    catalog: Catalog,
    row: TableRow,
    intact: IntactTable,
    columns: LakeColumns,
    index: TableIndex,
    synced: SyncedFiles,
    events: TableEvents,
    after: Lsn,
    mark: Watermark,
    runner: BatchRunner | None = None,
    ahead: FoldedAhead | None = None,
) -> None:
    """Write the last state of each key, with delete files for the rows before, from commit LSN ``after`` on.

    Tasks of ``runner`` write the data files while there is a backlog.
    """
    storage = catalog.lake.storage(intact.table.folder)
    live: dict[str, LiveDataFile] = {}
    opened = synced_index(catalog, row, intact, columns, index, synced, events.schema)
    deletes = DeletedRows(storage, catalog.lake)
    files = columns.files(events.schema)
    batch = ParallelUpsert(storage, files, events.schema, opened, deletes, runner=runner, ahead=ahead)
    with index_errors(index.folder):
        batch.run(events, after)
    if not batch.changes and columns.columns == intact.columns.columns:
        opened.discard()
        advance(catalog, row, mark)
        return
    try:
        if deletes.positions and not batch.truncated:
            live = {catalog.lake.path(f.path): f for f in _files(catalog, intact)}
        end = partial(_end_batch, deletes, live, batch.files, columns.own)
        deletes, described = end() if runner is None or not events.tasks else _in_a_task(runner, end, events.schema)
        batch.deletes = deletes
        remove_files(storage, [f for f in batch.files if f.path in deletes.obsolete])
        changes = Changes(columns, described, deletes, replacing=batch.truncated)
        made = commit(catalog, row, intact, changes, replace(row, epoch=mark.epoch, lsn=mark.lsn))
    except LevadaError as error:
        if is_uncommitted(error):
            batch.discard()
        else:
            opened.discard()
        raise
    except BaseException:
        # The commit may have succeeded all the same, so keep the files.
        opened.discard()
        raise
    opened.remove_files([catalog.lake.path(f.path) for f in deletes.emptied])
    index.commit(made.row.snapshot)
    if batch.truncated or deletes.obsolete:
        synced.known = None
    else:
        synced.follow(made, deletes.emptied)


def _end_batch(
    deletes: DeletedRows, live: Mapping[str, LiveDataFile], files: Sequence[WrittenFile], columns: Sequence[LakeColumn]
) -> tuple[DeletedRows, list[DataFile]]:
    """Write the delete files of a batch. Return them, and its data files except those of which no row is left."""
    deletes.write(live, {f.path: f.rows for f in files})
    deletes.positions.clear()
    return deletes, describe_files(deletes.storage, [f for f in files if f.path not in deletes.obsolete], columns)


def _in_a_task(runner: BatchRunner, task: Callable[[], T], schema: ReplicatedTableSchema) -> T:
    """Return the result of a task. Raise its error, or Transient if its process ended in each attempt."""
    name, never = f"changes of {schema.name}", threading.Event()
    return run_tasks(runner, [task], name, parallel=1, cancelled=never, final=_NOT_REPEATED)[0]


def append_batch(
    catalog: Catalog,
    row: TableRow,
    intact: IntactTable,
    columns: LakeColumns,
    events: TableEvents,
    after: Lsn,
    mark: Watermark,
    runner: BatchRunner | None = None,
) -> None:
    """Write every change as a row, from commit LSN ``after`` on. Tasks of ``runner`` do it while there is a backlog."""
    storage = catalog.lake.storage(intact.table.folder)
    files = write_changes(ChangelogTask(storage, columns.files(), events.schema, after), events, runner)
    if not files and columns.columns == intact.columns.columns:
        advance(catalog, row, mark)
        return
    append(catalog, row, intact, columns, storage, files, mark)


def append(
    catalog: Catalog,
    row: TableRow,
    intact: IntactTable,
    columns: LakeColumns,
    storage: FileSystemStorage,
    files: Sequence[WrittenFile],
    mark: Watermark,
) -> TableRow:
    """Commit data files without deletes."""
    try:
        described = describe_files(storage, files, columns.own)
        after = replace(row, epoch=mark.epoch, lsn=mark.lsn)
        return commit(catalog, row, intact, Changes(columns, described), after).row
    except LevadaError as error:
        if is_uncommitted(error):
            remove_files(storage, files)
        raise


def synced_index(
    catalog: Catalog,
    row: TableRow,
    intact: IntactTable,
    columns: LakeColumns,
    index: TableIndex,
    synced: SyncedFiles,
    schema: ReplicatedTableSchema,
) -> KeyIndex:
    """Return the key index, up to date with the table's current files. A damaged one is rebuilt."""
    content = intact.content
    storage = catalog.lake.storage(intact.table.folder)

    def sync(opened: KeyIndex) -> None:
        if synced.known == (content.files, content.file_ids) and opened.snapshot_id == row.snapshot:
            return
        files = _files(catalog, intact)
        reader = KeyReader.of(schema, columns.files(schema), opened.seed)
        sync_index(opened, reader, storage, catalog.lake, files, row.snapshot)
        synced.known = (len(files), sum(f.id for f in files))

    return index.synced(schema, sync)


def _files(catalog: Catalog, intact: IntactTable) -> Sequence[LiveDataFile]:
    if intact.files is not None:
        return intact.files
    with catalog.database.transaction(f"reading {intact.table.name}", pipelined=True) as connection:
        return read_files(connection, intact.table)


def advance(catalog: Catalog, row: TableRow, mark: Watermark) -> None:
    """Store the watermark of a batch that changes nothing."""
    _save(catalog, row, replace(row, epoch=mark.epoch, lsn=mark.lsn))


def take_key(
    catalog: Catalog,
    row: TableRow,
    intact: IntactTable,
    index: TableIndex,
    synced: SyncedFiles,
    schema: ReplicatedTableSchema,
    mark: Watermark,
) -> TableRow:
    """Identify the rows by the key of ``schema`` from now on. Return the state, whose watermark stays.

    The table has every row of the source from before that key, with its columns. Raise NeedsOperator ``key_changed`` if
    several rows have the same key or one has NULL, and ``schema_change_unsupported`` without a column of the key.
    """
    index.forget()
    synced.known = None
    if not synced_index(catalog, row, intact, intact.columns, index, synced, schema).is_distinct():
        raise key_changed(row.name, schema, "several of its rows have the same values there")
    _log.info("%s: its rows have another key now", row.name)
    after = replace(row, epoch=mark.epoch, key=key_text(schema))
    _save(catalog, row, after)
    return after


def _save(catalog: Catalog, row: TableRow, after: TableRow) -> None:
    """Store the state ``after`` of a table, which has the state ``row``."""
    with catalog.database.transaction(f"storing the state of {row.name}", pipelined=True) as connection:
        locked = catalog.state.find(connection, row.owner.table, lock=True)
        if locked is None:
            raise conflict(f"the state of {row.name} was removed")
        require_epoch(locked.epoch, after.epoch)
        if replace(locked, epoch=row.epoch) != row:
            raise conflict(f"another process has written {row.name}")
        catalog.state.save(connection, locked, after)


def new_row(row: TableRow, schema: ReplicatedTableSchema, mode: TableMode, mark: Watermark) -> TableRow:
    """Return the state after a copy."""
    return replace(row, mode=mode, key=key_text(schema), epoch=mark.epoch, lsn=mark.lsn, copy_folder=None)


def retried(run: Callable[[], T]) -> T:
    """Run a write, again if another writer of the catalog or a compaction came first."""
    return committed(run, _ATTEMPTS, lambda error: error.code in (codes.COMMIT_CONFLICT, codes.TABLE_DAMAGED))


def conflict(message: str) -> Transient:
    """Return the error after which the caller reads the table again and repeats the write."""
    return Transient("commit_conflict", message)


def is_uncommitted(error: LevadaError) -> bool:
    """Return True if the error shows that the transaction was not committed."""
    return not isinstance(error, UnconfirmedCommit)


def _check_replaced(connection: WatchedConnection, table: LakeTable, deletes: DeletedRows) -> None:
    expected = {w.data_id: w.replaces for w in deletes.written if w.data_id is not None}
    expected |= {f.id: f.delete_id for f in deletes.emptied}
    live = {f.id: f for f in read_files(connection, table, expected)}
    for number, delete_id in expected.items():
        if number not in live or live[number].delete_id != delete_id:
            raise conflict("a compaction has replaced files of the table")


def _relative(catalog: Catalog, folder: str, path: str) -> str:
    """Return a file's path relative to the table's folder."""
    return catalog.lake.location(path).removeprefix(folder)
