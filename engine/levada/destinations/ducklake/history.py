"""All files of a table that the catalog lists: those of the newest snapshot and of former ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from levada.destinations.ducklake.columns import LakeColumn
from levada.destinations.ducklake.tables import LakeTable
from levada.postgres.silence import WatchedConnection

_DATA: Final = """
SELECT data_file_id, path, path_is_relative, begin_snapshot, end_snapshot IS NULL, record_count
FROM ducklake_data_file WHERE table_id = %s ORDER BY data_file_id
"""
_DELETES: Final = """
SELECT delete_file_id, data_file_id, path, path_is_relative, end_snapshot IS NULL
FROM ducklake_delete_file WHERE table_id = %s ORDER BY delete_file_id
"""
_NAMES: Final = """
SELECT regexp_replace(path, '^.*/', '') FROM ducklake_data_file
UNION SELECT regexp_replace(path, '^.*/', '') FROM ducklake_delete_file
"""
_DROPPED: Final = """
SELECT count(*) FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id
JOIN ducklake_table mine ON mine.schema_id = t.schema_id AND mine.path = t.path AND mine.table_id = %s
WHERE t.table_id <> mine.table_id AND t.end_snapshot IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class FormerDeletes:
    """A delete file of a data file. ``live``: the newest snapshot has it. The path is a full path or a URI."""

    id: int
    path: str
    live: bool


@dataclass(frozen=True, slots=True)
class FormerFile:
    """A data file with all of its delete files, one for each time at which rows of it were deleted."""

    id: int
    path: str
    begin: int
    live: bool
    rows: int
    deletes: tuple[FormerDeletes, ...]


def read_history(connection: WatchedConnection, table: LakeTable) -> list[FormerFile]:
    """Return the data files of a table in all snapshots, in the order of their IDs."""
    deletes: dict[int, list[FormerDeletes]] = {}
    for number, data_file, path, relative, live in connection.execute(_DELETES, [table.id]).fetchall():
        full = table.folder + path if relative else path
        deletes.setdefault(data_file, []).append(FormerDeletes(number, full, live))
    return [
        FormerFile(number, table.folder + path if relative else path, begin, live, rows, tuple(deletes.get(number, ())))
        for number, path, relative, begin, live, rows in connection.execute(_DATA, [table.id]).fetchall()
    ]


def listed_names(connection: WatchedConnection) -> set[str]:
    """Return the names of all files of the catalog without their folders, which are unique."""
    return {name for (name,) in connection.execute(_NAMES).fetchall()}


def dropped_files(connection: WatchedConnection, table: LakeTable) -> int:
    """Return the number of files of tables that were dropped and had this table's folder."""
    found = connection.execute(_DROPPED, [table.id]).fetchone()
    return 0 if found is None else int(found[0])


def columns_at(connection: WatchedConnection, table: int, snapshot: int) -> Sequence[LakeColumn]:
    """Return the leaf columns of a table as of a snapshot, also those within lists, in any order."""
    rows = connection.execute(
        "SELECT column_id, column_name, column_type FROM ducklake_column WHERE table_id = %s"
        " AND begin_snapshot <= %s AND (end_snapshot IS NULL OR end_snapshot > %s)",
        [table, snapshot, snapshot],
    ).fetchall()
    return [LakeColumn(number, name, kind) for number, name, kind in rows]
