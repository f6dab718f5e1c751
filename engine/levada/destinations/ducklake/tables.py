"""The catalog's schemas, tables, columns and files as of its newest snapshot, and the names of tables."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from levada.destinations.collisions import TargetName
from levada.destinations.ducklake.columns import LakeColumn
from levada.destinations.ducklake.types import LIST, MAP, STRUCT
from levada.errors import NeedsOperator
from levada.postgres.silence import WatchedConnection
from levada.values import QualifiedTable


@dataclass(frozen=True, slots=True)
class FullName:
    """The schema and name of a table in the catalog. DuckDB ignores the case of names."""

    schema: str
    name: str

    def __str__(self) -> str:
        return f"{self.schema}.{self.name}"

    def same(self, other: FullName) -> bool:
        """Return True if both are one name to DuckDB."""
        return (self.schema.lower(), self.name.lower()) == (other.schema.lower(), other.name.lower())


@dataclass(frozen=True, slots=True)
class LakeSchema:
    """A schema. ``path`` is relative to the data path, or a full path, and ends with a slash."""

    id: int
    name: str
    path: str


@dataclass(frozen=True, slots=True)
class LakeTable:
    """A table. ``folder`` is the full path or URI of its files, and ends with a slash."""

    id: int
    uuid: str
    name: FullName
    folder: str


@dataclass(frozen=True, slots=True)
class LiveDataFile:
    """A data file of a table, with its delete file if it has one. Paths are full paths or URIs."""

    id: int
    path: str
    rows: int
    delete_id: int | None
    delete_path: str | None
    deleted: int


@dataclass(frozen=True, slots=True)
class TableContent:
    """Numbers that change with the rows of a table, but not with a compaction.

    ``next_row_id`` grows with each inserted row. ``rows`` counts the rows in data files without deleted ones.
    ``files`` and ``file_ids`` change with a compaction: the number of data files, and the sum of their IDs.
    """

    next_row_id: int
    rows: int
    files: int
    file_ids: int


@dataclass(frozen=True, slots=True)
class WholeTable:
    """A table with all that can show what another writer did to it.

    ``last_column_id`` is the highest that a column ever had. ``setting`` says what another writer has set that Levada's
    files do not have, empty without one. ``inlined`` names the catalog's own tables that may have rows or deletes of
    it.
    """

    table: LakeTable
    columns: Sequence[LakeColumn]
    content: TableContent
    last_column_id: int
    setting: str
    inlined: Sequence[str]


_FILES: Final = """
SELECT f.data_file_id, f.path, f.path_is_relative, f.record_count,
    d.delete_file_id, d.path, d.path_is_relative, coalesce(d.delete_count, 0)
FROM ducklake_data_file f
LEFT JOIN ducklake_delete_file d ON d.table_id = f.table_id AND d.data_file_id = f.data_file_id
    AND d.end_snapshot IS NULL
WHERE f.table_id = %(table)s AND f.end_snapshot IS NULL
    AND (%(only)s::bigint[] IS NULL OR f.data_file_id = ANY (%(only)s::bigint[]))
ORDER BY f.data_file_id
"""

_CONTENT: Final = """
SELECT coalesce((SELECT next_row_id FROM ducklake_table_stats WHERE table_id = %(table)s), 0),
    coalesce(sum(record_count), 0)::bigint
        - (SELECT coalesce(sum(delete_count), 0)::bigint FROM ducklake_delete_file
            WHERE table_id = %(table)s AND end_snapshot IS NULL),
    count(*), coalesce(sum(data_file_id), 0)::bigint
FROM ducklake_data_file WHERE table_id = %(table)s AND end_snapshot IS NULL
"""


_WHOLE: Final = f"""
SELECT t.table_id, t.table_uuid::text, t.table_name, t.path, t.path_is_relative, s.schema_name, s.path,
    s.path_is_relative, c.*,
    EXISTS (SELECT FROM ducklake_partition_info WHERE table_id = %(table)s AND end_snapshot IS NULL),
    EXISTS (SELECT FROM ducklake_column WHERE table_id = %(table)s AND end_snapshot IS NULL AND NOT nulls_allowed),
    (SELECT coalesce(max(column_id), 0) FROM ducklake_column WHERE table_id = %(table)s),
    ARRAY(SELECT table_name::text FROM ducklake_inlined_data_tables WHERE table_id = %(table)s
        UNION ALL SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = current_schema() AND c.relname = %(inlined)s)
FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL
CROSS JOIN ({_CONTENT}) c
WHERE t.table_id = %(table)s AND t.end_snapshot IS NULL
"""
_COLUMNS: Final = """
SELECT column_id, column_name, column_type, initial_default, parent_column FROM ducklake_column
WHERE table_id = %s AND end_snapshot IS NULL ORDER BY column_order
"""


def find_schema(connection: WatchedConnection, name: str) -> LakeSchema | None:
    """Return the schema of this name, in any case of letters."""
    found = connection.execute(
        "SELECT schema_id, schema_name, path FROM ducklake_schema"
        " WHERE lower(schema_name) = lower(%s) AND end_snapshot IS NULL",
        [name],
    ).fetchone()
    return None if found is None else LakeSchema(*found)


def find_table(connection: WatchedConnection, data_path: str, table: int) -> LakeTable | None:
    """Return the table with this ID, or None if it was dropped."""
    return find_tables(connection, data_path, [table]).get(table)


def find_tables(connection: WatchedConnection, data_path: str, tables: Sequence[int]) -> Mapping[int, LakeTable]:
    """Return the tables with these IDs that were not dropped."""
    found = connection.execute(
        "SELECT t.table_id, t.table_uuid::text, t.table_name, t.path, t.path_is_relative, s.schema_name, s.path,"
        " s.path_is_relative"
        " FROM ducklake_table t JOIN ducklake_schema s ON s.schema_id = t.schema_id AND s.end_snapshot IS NULL"
        " WHERE t.table_id = ANY (%s) AND t.end_snapshot IS NULL",
        [list(tables)],
    )
    return {row[0]: _table(data_path, row) for row in found}


def read_whole(connection: WatchedConnection, data_path: str, table: int) -> WholeTable | None:
    """Return the table with this ID, or None if it was dropped."""
    asked = connection.execute(_WHOLE, {"table": table, "inlined": f"ducklake_inlined_delete_{table}"})
    columns = connection.execute(_COLUMNS, [table])
    found = asked.fetchone()
    if found is None:
        return None
    *content, partitioned, not_null, last_id, inlined = found[8:]
    setting = "was partitioned" if partitioned else "got a NOT NULL constraint" if not_null else ""
    made = _columns(columns.fetchall())
    return WholeTable(_table(data_path, found[:8]), made, TableContent(*content), last_id, setting, inlined)


def find_named(connection: WatchedConnection, name: FullName) -> int | None:
    """Return the ID of the table or view of this name, in any case of letters."""
    found = connection.execute(
        "SELECT e.id FROM (SELECT table_id, schema_id, table_name, end_snapshot FROM ducklake_table"
        " UNION ALL SELECT view_id, schema_id, view_name, end_snapshot FROM ducklake_view) e (id, schema, name, ended)"
        " JOIN ducklake_schema s ON s.schema_id = e.schema AND s.end_snapshot IS NULL"
        " WHERE e.ended IS NULL AND lower(e.name) = lower(%s) AND lower(s.schema_name) = lower(%s)",
        [name.name, name.schema],
    ).fetchone()
    return None if found is None else int(found[0])


def find_all_named(connection: WatchedConnection, names: Sequence[FullName]) -> frozenset[FullName]:
    """Return those of the names that a table or view has, in any case of letters."""
    found = connection.execute(
        "SELECT w.schema, w.name FROM unnest(%s::text[], %s::text[]) AS w (schema, name)"
        " JOIN ducklake_schema s ON lower(s.schema_name) = lower(w.schema) AND s.end_snapshot IS NULL"
        " WHERE EXISTS (SELECT FROM ducklake_table t WHERE t.schema_id = s.schema_id AND t.end_snapshot IS NULL"
        " AND lower(t.table_name) = lower(w.name))"
        " OR EXISTS (SELECT FROM ducklake_view v WHERE v.schema_id = s.schema_id AND v.end_snapshot IS NULL"
        " AND lower(v.view_name) = lower(w.name))",
        [[n.schema for n in names], [n.name for n in names]],
    )
    return frozenset(FullName(schema, name) for schema, name in found)


def read_columns(connection: WatchedConnection, table: int) -> list[LakeColumn]:
    """Return the table's columns in order."""
    return _columns(connection.execute(_COLUMNS, [table]).fetchall())


def last_column_id(connection: WatchedConnection, table: int) -> int:
    """Return the highest column ID that the table ever had."""
    found = connection.execute("SELECT max(column_id) FROM ducklake_column WHERE table_id = %s", [table]).fetchone()
    return 0 if found is None or found[0] is None else int(found[0])


def read_content(connection: WatchedConnection, table: int) -> TableContent:
    """Return the numbers by which a change of the table's rows is detected."""
    found = connection.execute(_CONTENT, {"table": table}).fetchone()
    assert found is not None
    return TableContent(*found)


def newest_snapshot(connection: WatchedConnection) -> int:
    """Return the ID of the catalog's newest snapshot."""
    found = connection.execute("SELECT coalesce(max(snapshot_id), 0) FROM ducklake_snapshot").fetchone()
    return int(found[0]) if found else 0


def read_files(
    connection: WatchedConnection, table: LakeTable, only: Collection[int] | None = None
) -> list[LiveDataFile]:
    """Return the table's data files, or ``only`` those with some of these IDs, in the order of their IDs."""
    rows = connection.execute(_FILES, {"table": table.id, "only": None if only is None else list(only)}).fetchall()
    return [
        LiveDataFile(
            number,
            table.folder + path if relative else path,
            count,
            delete_id,
            None if delete_path is None else table.folder + delete_path if delete_relative else delete_path,
            deleted,
        )
        for number, path, relative, count, delete_id, delete_path, delete_relative, deleted in rows
    ]


def has_rows_in(connection: WatchedConnection, names: Sequence[str]) -> bool:
    """Return True if one of the catalog's tables has rows."""
    for name in names:
        found = connection.execute(sql.SQL("SELECT EXISTS (SELECT FROM {})").format(sql.Identifier(name))).fetchone()
        if found is not None and found[0]:
            return True
    return False


def _table(data_path: str, row: Sequence[Any]) -> LakeTable:
    table, number, name, path, relative, schema, schema_path, schema_relative = row
    base = data_path + schema_path if schema_relative else schema_path
    return LakeTable(table, number, FullName(schema, name), base + path if relative else path)


def _columns(rows: Sequence[Sequence[Any]]) -> list[LakeColumn]:
    children: dict[int, list[Any]] = {}
    for row in rows:
        children.setdefault(row[4] or 0, []).append(row)
    return [_column(row, children) for row in children.get(0, [])]


def _column(row: Sequence[Any], children: Mapping[int, Sequence[Any]]) -> LakeColumn:
    number, name, kind, default, _ = row
    parts = children.get(number, ()) if kind in (LIST, STRUCT, MAP) else ()
    return LakeColumn(number, name, kind, tuple(_column(part, children) for part in parts), default)


_NAME_BYTES: Final = 255


def full_name(template: str, source: QualifiedTable, name: QualifiedTable) -> FullName:
    """Return the table's name in the catalog. ``template`` is the name of schemas, with ``{schema}``.

    ``source`` is the source table, and ``name`` is `TableTarget.name`. Raise NeedsOperator
    ``destination_name_unusable``.
    """
    made = FullName(template.replace("{schema}", name.schema), name.name)
    for part in (made.schema, made.name):
        if not part or len(part.encode()) > _NAME_BYTES or "\0" in part:
            raise NeedsOperator(
                "destination_name_unusable",
                f"{source} cannot be the table {made} in DuckLake: a name is empty or has more than {_NAME_BYTES}"
                " bytes",
                hint="set destinationTable in the table's TableSync, or another schema in the destination's settings",
            )
    return made


def target_name(made: FullName) -> TargetName:
    """Return the name in the form that other layers compare. DuckDB ignores the case of names."""
    return TargetName(str(made), json.dumps([made.schema.lower(), made.name.lower()]))
