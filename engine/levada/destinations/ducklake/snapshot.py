"""The next snapshot of a catalog, in one transaction.

The transaction inserts the row of the next snapshot first. Every other writer inserts that row too, and waits for this
transaction. So from then on no other commit changes what the transaction reads. A writer that lost the race raises
Transient ``commit_conflict``, and its caller tries again.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import psycopg

from levada.destinations.ducklake.columns import LakeColumn, LakeColumns
from levada.destinations.ducklake.format import require_version
from levada.destinations.ducklake.inserts import (
    INSERT_COLUMN_STATS,
    INSERT_COLUMNS,
    INSERT_DATA_FILES,
    INSERT_DELETE_FILES,
    INSERT_FILE_STATS,
    INSERT_TABLE_STATS,
    INSERT_TABLES,
    UPDATE_COLUMN_STATS,
)
from levada.destinations.ducklake.statistics import DataFile, TableStats, table_stats
from levada.destinations.ducklake.tables import LakeSchema, TableContent
from levada.destinations.ducklake.types import FLOATS
from levada.postgres.silence import WatchedConnection

Cursor: TypeAlias = psycopg.Cursor[tuple[Any, ...]]

_NEXT: Final = """
INSERT INTO ducklake_snapshot
SELECT snapshot_id + 1, clock_timestamp(), schema_version, next_catalog_id, next_file_id
FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1
RETURNING snapshot_id, schema_version, next_catalog_id, next_file_id
"""

_UNTOUCHED: Final = """
SELECT t.table_id FROM ducklake_table t JOIN ducklake_table_stats s ON s.table_id = t.table_id
JOIN ducklake_schema n ON n.schema_id = t.schema_id AND n.end_snapshot IS NULL
WHERE t.table_id = ANY (%s) AND t.end_snapshot IS NULL AND s.next_row_id = 0
    AND NOT EXISTS (SELECT FROM ducklake_table o WHERE o.table_id = t.table_id AND o.end_snapshot IS NOT NULL)
    AND NOT EXISTS (SELECT FROM ducklake_column c WHERE c.table_id = t.table_id
        AND (c.end_snapshot IS NOT NULL OR c.begin_snapshot <> t.begin_snapshot))
    AND NOT EXISTS (SELECT FROM ducklake_data_file f WHERE f.table_id = t.table_id)
"""

_PLAIN: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """A file with all deleted positions of one data file, to replace the data file's delete file."""

    path: str
    data_file: int
    count: int
    bytes: int
    footer: int


@dataclass(frozen=True, slots=True)
class NewFiles:
    """The data files of a table that never had one, each with its path relative to the table's folder.

    ``columns`` are those in the files.
    """

    table: int
    files: Sequence[tuple[DataFile, str]]
    columns: Sequence[LakeColumn]


@dataclass(slots=True)
class NextSnapshot:
    """The snapshot that the transaction of ``connection`` commits. `finish` completes it."""

    connection: WatchedConnection
    id: int
    schema_version: int
    next_catalog_id: int
    next_file_id: int
    author: str
    changes: dict[str, None] = field(default_factory=dict)
    altered: set[int] = field(default_factory=set)

    @classmethod
    def begin(cls, connection: WatchedConnection, author: str) -> NextSnapshot:
        """Take the next snapshot ID, or wait for the writer that has taken it.

        Raise NeedsOperator ``catalog_unsupported`` for a version that Levada cannot write.
        """
        # Levada's own writers wait here, instead of repeating their transactions.
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(current_schema(), 20417))")
        asked = connection.execute("SELECT value FROM ducklake_metadata WHERE key = 'version' AND scope IS NULL")
        taken = connection.execute(_NEXT)
        # A newer DuckDB may have upgraded the catalog since it was opened.
        version = asked.fetchone()
        require_version(connection.info.host, None if version is None else version[0])
        found = taken.fetchone()
        assert found is not None
        number, schema_version, catalog_id, file_id = found
        return cls(connection, number, schema_version, catalog_id, file_id, author)

    def finish(self) -> None:
        """Store the counters and the description of the changes."""
        if self.altered:
            self.schema_version += 1
        self.connection.execute(
            "UPDATE ducklake_snapshot SET schema_version = %s, next_catalog_id = %s, next_file_id = %s"
            " WHERE snapshot_id = %s",
            [self.schema_version, self.next_catalog_id, self.next_file_id, self.id],
        )
        self._many(
            "INSERT INTO ducklake_schema_versions VALUES (%s, %s, %s)",
            [(self.id, self.schema_version, table) for table in sorted(self.altered)],
        )
        self.connection.execute(
            "INSERT INTO ducklake_snapshot_changes VALUES (%s, %s, %s, NULL, NULL)",
            [self.id, ",".join(self.changes), self.author],
        )

    def add_schema(self, name: str) -> LakeSchema:
        """Create a schema."""
        made = LakeSchema(self._catalog_id(), name, _folder(name))
        self.connection.execute(
            "INSERT INTO ducklake_schema VALUES (%s, %s, %s, NULL, %s, %s, true)",
            [made.id, uuid.uuid4(), self.id, name, made.path],
        )
        self.changes[f"created_schema:{_quoted(name)}"] = None
        return made

    def add_table(self, schema: LakeSchema, name: str, columns: LakeColumns) -> int:
        """Create a table without rows. Return its ID."""
        return self.add_tables([(schema, name, columns)])[0]

    def add_tables(self, tables: Sequence[tuple[LakeSchema, str, LakeColumns]]) -> list[int]:
        """Create tables without rows, each with its name and columns. Return their IDs."""
        made = [self._catalog_id() for _ in tables]
        self._write(
            INSERT_TABLES,
            [
                (table, uuid.uuid4(), self.id, None, schema.id, name, _folder(name), True)
                for table, (schema, name, _) in zip(made, tables, strict=True)
            ],
        )
        self._insert_columns(
            [(t, column) for t, (_, _, its) in zip(made, tables, strict=True) for column in its.columns]
        )
        self._write(INSERT_TABLE_STATS, [(table, 0, 0, 0) for table in made])
        for table, (schema, name, _) in zip(made, tables, strict=True):
            self.changes[f"created_table:{_quoted(schema.name)}.{_quoted(name)}"] = None
            self.altered.add(table)
        return made

    def untouched(self, tables: Sequence[int]) -> frozenset[int]:
        """Return those of the tables that exist as they were created: without rows, and with their columns."""
        found = self.connection.execute(_UNTOUCHED, [list(tables)])
        return frozenset(table for (table,) in found)

    def drop_table(self, table: int) -> None:
        """End a table with its files, columns and settings."""
        for name in (
            "table",
            "partition_info",
            "column",
            "column_tag",
            "data_file",
            "delete_file",
            "sort_info",
        ):
            self._end(f"ducklake_{name}", "table_id = %s", [table])
        self._end("ducklake_tag", "object_id = %s", [table])
        self.changes[f"dropped_table:{table}"] = None
        self.altered.add(table)

    def change_columns(self, table: int, before: LakeColumns, after: LakeColumns, *, has_rows: bool) -> None:
        """Change the columns. With ``has_rows``, the statistics of an added column include the rows without it."""
        if before.columns == after.columns:
            return
        old, new = before.by_id, after.by_id
        changed = [i for i, c in old.items() if new.get(i) != c]
        ended = [i for c in (old[i] for i in changed) for i in _ids(c)]
        if ended:
            self._end("ducklake_column", "table_id = %s AND column_id = ANY (%s)", [table, ended])
        added = [c for c in after.columns if old.get(c.id) != c]
        self._insert_columns([(table, column) for column in added])
        if has_rows:
            for column in added:
                if column.id not in old and not column.parts:
                    stats = {column.id: (column.type, _default_stats(column))}
                    self._widen(table, stats, self._column_stats(table, stats))
        self.changes[f"altered_table:{table}"] = None
        self.altered.add(table)

    def end_files(self, table: int) -> None:
        """Remove all rows of the table."""
        self._end("ducklake_delete_file", "table_id = %s", [table])
        ended = self._end("ducklake_data_file", "table_id = %s RETURNING 1", [table])
        if ended.fetchone() is not None:
            self.changes[f"deleted_from_table:{table}"] = None

    def add_files(self, table: int, files: Sequence[tuple[DataFile, str]], columns: Sequence[LakeColumn]) -> list[int]:
        """Add data files, each with its path relative to the table's folder. Return their IDs.

        ``columns`` are those in the files.
        """
        if not files:
            return []
        described = [file for file, _ in files]
        merged = table_stats(described, columns)
        asked = self.connection.execute("SELECT next_row_id FROM ducklake_table_stats WHERE table_id = %s", [table])
        widened = self._column_stats(table, merged)
        found = asked.fetchone()
        row_id = first_row = 0 if found is None else found[0]
        ids, rows, stats = [], [], []
        for file, path in files:
            number = self._file_id()
            ids.append(number)
            rows.append((number, table, self.id, path, file.rows, file.bytes, file.footer, row_id))
            row_id += file.rows
            stats += [(number, table, c.column, c.bytes, c.values, c.nulls, *c.texts) for c in file.columns]
        self._write(INSERT_DATA_FILES, [(*row, True, "parquet") for row in rows])
        self._write(INSERT_FILE_STATS, stats)
        self._count(table, row_id - first_row, sum(f.bytes for f in described), new=found is None)
        self._widen(table, merged, widened)
        self.changes[f"inserted_into_table:{table}"] = None
        return ids

    def add_new_files(self, tables: Sequence[NewFiles]) -> list[TableContent]:
        """Add the data files of tables that never had one. Return the numbers of the tables."""
        rows, stats, totals, columns, counts = [], [], [], [], []
        for its in tables:
            row_id, ids = 0, []
            for file, path in its.files:
                ids.append(number := self._file_id())
                rows.append((number, its.table, self.id, path, file.rows, file.bytes, file.footer, row_id))
                row_id += file.rows
                stats += [(number, its.table, c.column, c.bytes, c.values, c.nulls, *c.texts) for c in file.columns]
            described = [file for file, _ in its.files]
            counts.append(TableContent(row_id, row_id, len(ids), sum(ids)))
            if described:
                totals.append((row_id, row_id, sum(f.bytes for f in described), its.table))
                merged = table_stats(described, its.columns)
                columns += [(its.table, c, of.contains_null, of.low, of.high) for c, (_, of) in merged.items()]
                self.changes[f"inserted_into_table:{its.table}"] = None
        self._write(INSERT_DATA_FILES, [(*row, True, "parquet") for row in rows])
        self._write(INSERT_FILE_STATS, stats)
        self._many(
            "UPDATE ducklake_table_stats SET record_count = %s, next_row_id = %s, file_size_bytes = %s"
            " WHERE table_id = %s",
            totals,
        )
        self._write(INSERT_COLUMN_STATS, columns)
        return counts

    def replace_deletes(self, table: int, files: Sequence[tuple[DeleteFile, str]], dropped: Sequence[int]) -> None:
        """Replace the delete files of data files, and remove the data files ``dropped``, of which no row is left."""
        touched = [*(file.data_file for file, _ in files), *dropped]
        if not touched:
            return
        self._end("ducklake_delete_file", "table_id = %s AND data_file_id = ANY (%s)", [table, touched])
        if dropped:
            self._end("ducklake_data_file", "table_id = %s AND data_file_id = ANY (%s)", [table, list(dropped)])
        self._write(
            INSERT_DELETE_FILES,
            [
                (self._file_id(), table, self.id, f.data_file, path, True, "parquet", f.count, f.bytes, f.footer)
                for f, path in files
            ],
        )
        self.changes[f"deleted_from_table:{table}"] = None

    # -- parts of the methods above

    def _catalog_id(self) -> int:
        self.next_catalog_id += 1
        return self.next_catalog_id - 1

    def _file_id(self) -> int:
        self.next_file_id += 1
        return self.next_file_id - 1

    def _end(self, name: str, where: str, values: list[Any]) -> Cursor:
        return self.connection.execute(
            f"UPDATE {name} SET end_snapshot = %s WHERE end_snapshot IS NULL AND {where}",
            [self.id, *values],
        )

    def _insert_columns(self, columns: Sequence[tuple[int, LakeColumn]]) -> None:
        """Add columns of tables, or new versions. A column's ID is its place too, as it is in DuckDB's tables."""
        rows: list[tuple[Any, ...]] = []
        for table, column in columns:
            for current, parent in _with_parents(column, None):
                kind = "" if current.parts else "literal"
                described = (current.id, current.name, current.type, current.default)
                rows.append((current.id, self.id, table, *described, "NULL", True, parent, kind, "duckdb"))
        self._write(INSERT_COLUMNS, rows)

    def _count(self, table: int, rows: int, size: int, *, new: bool) -> None:
        if new:
            self.connection.execute("INSERT INTO ducklake_table_stats VALUES (%s, 0, 0, 0)", [table])
        self.connection.execute(
            "UPDATE ducklake_table_stats SET record_count = record_count + %s, next_row_id = next_row_id + %s,"
            " file_size_bytes = file_size_bytes + %s WHERE table_id = %s",
            [rows, rows, size, table],
        )

    def _column_stats(self, table: int, columns: Collection[int]) -> Cursor:
        return self.connection.execute(
            "SELECT column_id, contains_null, min_value, max_value FROM ducklake_table_column_stats"
            " WHERE table_id = %s AND column_id = ANY (%s)",
            [table, list(columns)],
        )

    def _widen(self, table: int, stats: Mapping[int, tuple[str, TableStats]], found: Cursor) -> None:
        """Add the statistics to those that were ``found`` by `_column_stats`."""
        before = {row[0]: TableStats(bool(row[1]), row[2], row[3]) for row in found}
        added: list[tuple[Any, ...]] = []
        changed: list[tuple[Any, ...]] = []
        for column, (kind, new) in stats.items():
            old = before.get(column)
            merged = new if old is None else old.merged(kind, new)
            if merged != old:
                of = added if old is None else changed
                of.append((table, column, merged.contains_null, merged.low, merged.high))
        self._write(INSERT_COLUMN_STATS, added)
        self._write(UPDATE_COLUMN_STATS, changed)

    def _write(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        """Run a statement that gets one array of values for each column."""
        if rows:
            self.connection.execute(statement, [list(values) for values in zip(*rows, strict=True)])

    def _many(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
        if rows:
            with self.connection.cursor() as cursor:
                cursor.executemany(statement, rows)


def _ids(column: LakeColumn) -> list[int]:
    return [column.id, *(i for part in column.parts for i in _ids(part))]


def _with_parents(column: LakeColumn, parent: int | None) -> Iterator[tuple[LakeColumn, int | None]]:
    yield column, parent
    for part in column.parts:
        yield from _with_parents(part, column.id)


def _default_stats(column: LakeColumn) -> TableStats:
    if column.default is None or column.type in FLOATS:
        return TableStats(True, None, None)
    text = bytes.fromhex(column.default.replace("\\x", "")).hex().upper() if column.type == "blob" else column.default
    if column.type == "boolean":
        text = "1" if text == "true" else "0"
    return TableStats(False, text, text)


def _folder(name: str) -> str:
    """Return the folder of a schema or table, as DuckDB names it."""
    return f"{name if name and _PLAIN.issuperset(name) else uuid.uuid4()}/"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
