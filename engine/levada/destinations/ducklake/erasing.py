"""Erases keys from a DuckLake table: from its data files, in all snapshots, and from the statistics of the catalog.

A snapshot of DuckLake is one of all tables of the catalog, so none expires for one table. Instead, each data file that
has the rows, or had them at any snapshot, is written again without them and takes the place of the former one in the
catalog. Its delete files name positions, so they are written again too. All snapshots stay, without the rows.

One transaction changes the catalog. Afterwards the former files are removed, and the catalog's tables that had bounds
of the rows are vacuumed. A process that is killed before leaves
files that the catalog does not list, which the next erasure of the same keys finds.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from pyarrow import fs

from levada.destinations.data_files.key_search import KeySearch, LeftFiles
from levada.destinations.data_files.live_files import Positions
from levada.destinations.data_files.position_deletes import write_position_deletes
from levada.destinations.data_files.rewritten import moved, without_rows
from levada.destinations.data_files.storage import FileSystemStorage, WrittenFile, remove_files, storage_errors
from levada.destinations.ducklake.deletes import SCHEMA, read_deletes
from levada.destinations.ducklake.history import (
    FormerFile,
    columns_at,
    dropped_files,
    listed_names,
    read_history,
)
from levada.destinations.ducklake.intact import IntactTable, read_intact
from levada.destinations.ducklake.snapshot import NextSnapshot
from levada.destinations.ducklake.state import TableRow
from levada.destinations.ducklake.statistics import TableStats, describe_by_id, footer_size
from levada.destinations.ducklake.tables import read_content
from levada.destinations.ducklake.writes import Catalog, conflict, is_uncommitted
from levada.destinations.erasure import Erased, Erasure, Remaining
from levada.destinations.fenced import require_epoch
from levada.errors import LevadaError
from levada.postgres.silence import WatchedConnection
from levada.schema import ReplicatedTableSchema
from levada.values import QualifiedTable, Watermark

_log = logging.getLogger(__name__)

_REMOVED: Final = "ducklake_delete_orphaned_files removes them"
_WITH_BOUNDS: Final = ("ducklake_file_column_stats", "ducklake_file_variant_stats", "ducklake_table_column_stats")
_BACKUPS: Final = Remaining(
    "the WAL, standbys and backups of the catalog's server, which may have bounds of values", "they are removed there"
)


@dataclass(frozen=True, slots=True)
class _Deletes:
    """A delete file that takes the place of ``id``, or None if none of its rows is left."""

    id: int
    file: WrittenFile | None
    footer: int = 0


@dataclass(frozen=True, slots=True)
class _Rewritten:
    """A data file with its delete files, and those that take their place. Without ``file``, no row is left."""

    former: FormerFile
    file: WrittenFile | None
    deletes: tuple[_Deletes, ...] = field(default=())


def erase(
    catalog: Catalog, row: TableRow, intact: IntactTable, schema: ReplicatedTableSchema, wanted: Erasure, epoch: int
) -> Erased:
    """Erase the keys. Raise Transient ``commit_conflict`` if another process changed the table meanwhile."""
    storage = catalog.lake.storage(intact.table.folder)
    with catalog.database.transaction(f"reading {intact.table.name}") as connection:
        history = read_history(connection, intact.table)
        listed, dropped = listed_names(connection), dropped_files(connection, intact.table)
    search = KeySearch.of(schema, intact.columns.files(schema), wanted.keys)
    found = search.files(storage, [catalog.lake.path(f.path) for f in history])
    mine = {f.id: found.positions[p] for f in history if (p := catalog.lake.path(f.path)) in found.positions}
    # A former file whose key column was another one may have anything.
    mine |= {f.id: np.arange(f.rows) for f in history if not f.live and catalog.lake.path(f.path) in found.lacking}
    left_files = _left_files(storage, search, listed)
    live = [f for f in history if f.live and f.id in mine]
    rows = sum(len(np.setdiff1d(mine[f.id], _deleted(catalog, storage, f))) for f in live)
    erased = Erased(rows, len(live), len(mine) - len(live), (), len(left_files.found))
    remaining = [*_places(catalog), *left_files.remaining(_REMOVED)]
    if dropped:
        where = f"{dropped} files of tables that were dropped and had this table's name"
        remaining.append(Remaining(where, "their snapshots expire, and ducklake_cleanup_old_files removes them"))
    if wanted.dry_run:
        return erased.also(remaining)
    if mine:
        _replace(catalog, storage, row, intact, [f for f in history if f.id in mine], mine, epoch)
    for path in left_files.found:
        storage.delete(path)
    # Also after a deletion by an earlier call.
    catalog.database.vacuum(_WITH_BOUNDS)
    _log.info("%s: erased %d rows from %d files", intact.table.name, rows, len(mine))
    return erased.also(remaining)


def _places(catalog: Catalog) -> list[Remaining]:
    """Return what may still have bounds at the catalog's server. VACUUM overwrites no bytes in a page's free space."""
    schema = catalog.database.schema
    names = ", ".join(QualifiedTable(schema, table).sql for table in _WITH_BOUNDS)
    where = f"the free space in pages of the catalog {schema}, and its dead rows and statistics if it was not vacuumed"
    return [Remaining(where, f"VACUUM (FULL, ANALYZE) {names}"), _BACKUPS]


def _deleted(catalog: Catalog, storage: FileSystemStorage, file: FormerFile) -> Positions:
    paths = [d.path for d in file.deletes if d.live]
    return read_deletes(storage, catalog.lake, paths) if paths else np.empty(0, np.int64)


def _replace(
    catalog: Catalog,
    storage: FileSystemStorage,
    row: TableRow,
    intact: IntactTable,
    files: Sequence[FormerFile],
    erased: Mapping[int, Positions],
    epoch: int,
) -> None:
    """Write the files again, replace them in the catalog in one transaction, and remove the former ones."""
    written: list[WrittenFile] = []
    try:
        made = [_rewrite(catalog, storage, file, erased[file.id], written) for file in files]
        _commit(catalog, storage, row, intact, made, epoch)
    except BaseException as error:
        if not isinstance(error, LevadaError) or is_uncommitted(error):
            remove_files(storage, written)
        raise
    for former in files:
        for path in (former.path, *(d.path for d in former.deletes)):
            storage.delete(catalog.lake.path(path))


def _rewrite(
    catalog: Catalog, storage: FileSystemStorage, former: FormerFile, erased: Positions, written: list[WrittenFile]
) -> _Rewritten:
    """Write a data file without its erased rows, and each of its delete files. Add what is written to ``written``."""
    file = without_rows(storage, catalog.lake.path(former.path), erased)
    if file is None:
        return _Rewritten(former, None)
    written.append(file)
    deletes = []
    for delete in former.deletes:
        left = moved(read_deletes(storage, catalog.lake, [delete.path]), erased)
        if not len(left):
            deletes.append(_Deletes(delete.id, None))
            continue
        names = [catalog.lake.location(file.path)]
        again = write_position_deletes(storage, SCHEMA, names, np.zeros(len(left), np.int32), left)
        written.append(again)
        deletes.append(_Deletes(delete.id, again, footer_size(storage, again.path)))
    return _Rewritten(former, file, tuple(deletes))


def _commit(
    catalog: Catalog,
    storage: FileSystemStorage,
    row: TableRow,
    intact: IntactTable,
    made: Sequence[_Rewritten],
    epoch: int,
) -> None:
    table = intact.table
    assert row.lsn is not None
    with catalog.database.transaction(f"erasing from {table.name}") as connection:
        locked = catalog.state.find(connection, row.owner.table, lock=True)
        if locked is None:
            raise conflict(f"the state of {table.name} was removed")
        require_epoch(locked.epoch, epoch)
        if replace(locked, epoch=row.epoch) != row:
            raise conflict(f"another process has written {table.name}")
        snapshot = NextSnapshot.begin(connection, catalog.author)
        read_intact(connection, catalog.lake.uri, locked)
        now = {file.id: file for file in read_history(connection, table)}
        if any(now.get(m.former.id) != m.former for m in made):
            raise conflict(f"a compaction has replaced files of {table.name}")
        for each in made:
            _replace_file(connection, catalog, storage, table.id, table.folder, each)
        _narrow(connection, table.id, intact)
        snapshot.changes[f"deleted_from_table:{table.id}"] = None
        snapshot.finish()
        mark = Watermark(catalog.author, epoch, row.lsn)
        content = read_content(connection, table.id)
        catalog.state.save(connection, locked, row.committed(snapshot.id, content, mark))


def _replace_file(
    connection: WatchedConnection,
    catalog: Catalog,
    storage: FileSystemStorage,
    table: int,
    folder: str,
    made: _Rewritten,
) -> None:
    """Replace one data file with its delete files and its statistics."""
    number = made.former.id
    known = connection.execute(
        "DELETE FROM ducklake_file_column_stats WHERE data_file_id = %s RETURNING column_id", [number]
    ).fetchall()
    connection.execute("DELETE FROM ducklake_file_variant_stats WHERE data_file_id = %s", [number])
    if made.file is None:
        connection.execute("DELETE FROM ducklake_delete_file WHERE data_file_id = %s", [number])
        connection.execute("DELETE FROM ducklake_data_file WHERE data_file_id = %s", [number])
        return
    columns = [c for c in columns_at(connection, table, made.former.begin) if (c.id,) in set(known)]
    described = describe_by_id(storage, made.file, columns)
    connection.execute(
        "UPDATE ducklake_data_file SET path = %s, path_is_relative = true, record_count = %s, file_size_bytes = %s,"
        " footer_size = %s WHERE data_file_id = %s",
        [_relative(catalog, folder, described.path), described.rows, described.bytes, described.footer, number],
    )
    with connection.cursor() as cursor:
        cursor.executemany(
            "INSERT INTO ducklake_file_column_stats (data_file_id, table_id, column_id, column_size_bytes,"
            " value_count, null_count, min_value, max_value) VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
            [(number, table, c.column, c.bytes, c.values, c.nulls, *c.texts) for c in described.columns],
        )
    for delete in made.deletes:
        if delete.file is None:
            connection.execute("DELETE FROM ducklake_delete_file WHERE delete_file_id = %s", [delete.id])
            continue
        file = delete.file
        connection.execute(
            "UPDATE ducklake_delete_file SET path = %s, path_is_relative = true, delete_count = %s,"
            " file_size_bytes = %s, footer_size = %s WHERE delete_file_id = %s",
            [_relative(catalog, folder, file.path), file.rows, file.bytes, delete.footer, delete.id],
        )


def _narrow(connection: WatchedConnection, table: int, intact: IntactTable) -> None:
    """Compute the bounds of the table's columns again. They only widen otherwise, so they may be the erased values."""
    current = {leaf.id: leaf for column in intact.columns.columns for leaf in column.leaves()}
    rows = connection.execute(
        "SELECT column_id, min_value, max_value FROM ducklake_file_column_stats"
        " WHERE table_id = %s AND (min_value IS NOT NULL OR value_count > 0)",
        [table],
    ).fetchall()
    files: dict[int, list[TableStats]] = {}
    for column, low, high in rows:
        files.setdefault(column, []).append(TableStats(False, low, high))
    bounded = connection.execute(
        "SELECT column_id FROM ducklake_table_column_stats WHERE table_id = %s AND min_value IS NOT NULL", [table]
    ).fetchall()
    for (column,) in bounded:
        low, high = _bounds(current.get(column), files.get(column, []))
        connection.execute(
            "UPDATE ducklake_table_column_stats SET min_value = %s, max_value = %s WHERE table_id = %s"
            " AND column_id = %s",
            [low, high, table, column],
        )


def _bounds(column: Any, files: Sequence[TableStats]) -> tuple[str | None, str | None]:
    """Return the bounds over all files. Without those of one file there are none, nor for a column with a default."""
    if column is None or column.default is not None or any(f.low is None or f.high is None for f in files):
        return None, None
    merged = TableStats(False, None, None)
    for file in files:
        merged = merged.merged(column.type, file)
    return merged.low, merged.high


def _left_files(storage: FileSystemStorage, search: KeySearch, listed: set[str]) -> LeftFiles:
    """Look into the files in the table's folder that the catalog does not list."""
    with storage_errors(f"list {storage.folder}"):
        selected = fs.FileSelector(storage.folder.rstrip("/"), recursive=True, allow_not_found=True)
        paths = [info.path for info in storage.file_system.get_file_info(selected) if info.is_file]
    return search.left_files(
        storage, [p for p in paths if p.endswith(".parquet") and p.rpartition("/")[2] not in listed]
    )


def _relative(catalog: Catalog, folder: str, path: str) -> str:
    return catalog.lake.location(path).removeprefix(folder)
