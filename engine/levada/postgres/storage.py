"""The storage of many tables, read by one query of the catalog."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.description_sql import FLAW, STORAGE_QUERY, STORAGE_WITHOUT_SIZES
from levada.postgres.failures import source_errors
from levada.postgres.streamed import leaves_of
from levada.postgres.utf8_names import CANNOT, is_utf8
from levada.schema.flaws import LeafFlaw
from levada.schema.storage import TableStorage
from levada.values import Lsn, QualifiedTable, TableId

_log = logging.getLogger(__name__)

_POSITION: Final = (
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)::text"
)

# Otherwise PostgreSQL may read all of pg_type or pg_attribute again for each table.
_BY_INDEX: Final = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"

_IDENTITY_INDEXES: Final = """
SELECT indrelid::bigint, indexrelid::bigint, xmin::text::bigint FROM pg_catalog.pg_index
WHERE indrelid = ANY(%s::oid[]) AND (indisprimary OR indisreplident)
"""

# The access method heap has the OID 2 in every database.
_OTHER_METHODS: Final = "SELECT oid FROM pg_catalog.pg_class WHERE oid = ANY(%s::oid[]) AND relam <> 2"

_EMPTY: Final = """
SELECT l.oid::bigint FROM pg_catalog.pg_class l JOIN pg_catalog.pg_inherits i ON i.inhrelid = l.oid
WHERE l.oid = ANY(%s::oid[]) AND l.relispartition AND NOT i.inhdetachpending
    AND pg_catalog.pg_relation_size(l.oid) = 0
"""

_LEAF_NAME: Final = """
SELECT n.nspname, l.relname FROM pg_catalog.pg_class l JOIN pg_catalog.pg_namespace n ON n.oid = l.relnamespace
WHERE l.oid = %s AND l.relispartition AND l.relkind = 'r'
"""

# A scan of a range of TIDs, which reads these blocks alone.
_OLD_ROW: Final = sql.SQL(
    "SELECT EXISTS (SELECT FROM ONLY {} WHERE tableoid = %s AND ctid < '(16,0)'"
    " AND pg_catalog.age(xmin) > pg_catalog.age(%s::xid))"
)

_STORED_TABLES: Final = sql.SQL(
    "SELECT c.oid::bigint, n.nspname, c.relname, {}"
    " FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY (%s::oid[])"
).format(STORAGE_QUERY)

_FLAWS: Final = sql.SQL("""
SELECT wanted.schema, wanted.name, f.flaw
FROM unnest(%s::text[], %s::text[]) AS wanted (schema, name)
JOIN pg_namespace r ON r.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = r.oid AND c.relname = wanted.name
CROSS JOIN LATERAL {leaves} t
JOIN pg_class l ON l.oid = t.relid AND l.relkind IN ('r', 'f')
JOIN pg_namespace s ON s.oid = l.relnamespace
CROSS JOIN LATERAL (SELECT {flaw}) AS f(flaw)
WHERE f.flaw IS NOT NULL AND NOT EXISTS (SELECT FROM pg_publication WHERE pubname = %s AND NOT pubviaroot)
""").format(flaw=FLAW, leaves=leaves_of("c.oid"))


@dataclass(frozen=True, slots=True)
class StorageSnapshot:
    """The storage of tables at one moment.

    ``start`` is the WAL position before the query. Every commit that the query sees lies below ``end``. ``next_xid``
    and ``running`` are the query's snapshot. ``names`` has the tables' names. Of the partitions ``examined``, those in
    ``emptied`` had no row at ``end``, and those in ``kept`` have rows from before the transaction that is given with
    each of them. ``streamed`` has the generated columns that are streamed, for tables with generated columns of which
    that is known.
    """

    start: Lsn
    end: Lsn
    next_xid: int
    running: frozenset[int]
    tables: Mapping[TableId, TableStorage]
    names: Mapping[TableId, QualifiedTable] = field(default_factory=dict)
    examined: frozenset[TableId] = frozenset()
    emptied: frozenset[TableId] = frozenset()
    kept: frozenset[TableId] = frozenset()
    streamed: Mapping[TableId, frozenset[int]] = field(default_factory=dict)

    @property
    def horizon(self) -> int:
        """The oldest transaction that was not finished. The effects of all before it are in this snapshot."""
        return min(self.running, key=lambda xid: (xid - self.next_xid) % 2**32, default=self.next_xid)

    def shows(self, xid: int) -> bool:
        """Return True if the effects of a committed transaction are in this snapshot.

        A transaction is in the WAL, and may be streamed, before other sessions see it.
        """
        return xid not in self.running and (self.next_xid - xid) % 2**32 < 2**31 and xid != self.next_xid


@source_errors("reading the indexes of the replica identity")
def read_identity_indexes(
    conn: psycopg.Connection[Any], relations: Collection[TableId]
) -> Mapping[TableId, Sequence[Sequence[int]]]:
    """Return the primary keys and identity indexes by relation, each with the version of its catalog row.

    The version changes if another index becomes the replica identity, also if that is undone.
    """
    found: dict[TableId, list[list[int]]] = {}
    for relation, *index in conn.execute(_IDENTITY_INDEXES, [[int(r) for r in relations]]).fetchall():
        found.setdefault(TableId(relation), []).append(index)
    return found


@source_errors("reading the access methods of the table")
def read_no_heaps(conn: psycopg.Connection[Any], relations: Collection[TableId]) -> frozenset[TableId]:
    """Return the relations that are no heap. In one, an unchanged row keeps its place until the file is rewritten."""
    rows = conn.execute(_OTHER_METHODS, [[int(r) for r in relations]]).fetchall()
    return frozenset(TableId(oid) for (oid,) in rows)


@source_errors("reading the storage of tables")
def read_stored_tables(
    conn: psycopg.Connection[Any], tables: Collection[TableId]
) -> Mapping[TableId, tuple[QualifiedTable, TableStorage]]:
    """Return the names and the storage of those tables that exist. It takes a quarter of a description's time."""
    rows = conn.execute(_STORED_TABLES, [[int(t) for t in tables]]).fetchall()
    return {
        TableId(oid): (QualifiedTable(schema, name), TableStorage.from_json(its)) for oid, schema, name, its in rows
    }


def read_stored_table(conn: psycopg.Connection[Any], table: TableId) -> tuple[QualifiedTable, TableStorage] | None:
    """Return the table's name and storage, or None if it does not exist."""
    return read_stored_tables(conn, [table]).get(table)


@source_errors("looking for flawed partitions")
def read_flaws(
    conn: psycopg.Connection[Any], publication: str, tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, list[LeafFlaw]]:
    """Return the flaws of partitions, by the table that has them.

    There are none if the publication streams partitions as tables of their own.
    """
    names = [[t.schema for t in tables], [t.name for t in tables]]
    found: dict[QualifiedTable, list[LeafFlaw]] = {}
    for schema, name, flaw in conn.execute(_FLAWS, [*names, publication]).fetchall():
        found.setdefault(QualifiedTable(schema, name), []).append(LeafFlaw.from_json(flaw))
    return found


@source_errors("looking for rewritten tables")
def read_storage(
    conn: psycopg.Connection[Any], tables: Collection[TableId], examined: Mapping[TableId, int | None] | None = None
) -> StorageSnapshot:
    """Return the storage of those tables that exist, and which of the partitions ``examined`` are empty.

    Each of these has a transaction, or None. Partitions with rows from before it are ``kept``. Wait at most a second
    for locked relations. Leave out tables with names that UTF-8 lacks, whose copies and streams name them.
    """
    examined = examined or {}
    start = _position(conn)
    rows = _read_convertible(conn, tables)
    end = _position(conn)
    storages = _storages(rows)
    _, next_xid, running = (rows[0][2] if rows else "0:0:").split(":")
    return StorageSnapshot(
        start,
        end,
        int(next_xid) % 2**32,
        frozenset(int(xid) % 2**32 for xid in running.split(",") if xid),
        storages,
        {TableId(oid): QualifiedTable(schema, name) for oid, _, _, schema, name in rows},
        frozenset(examined),
        _of_same_bounds(conn, storages, _emptied(conn, examined)) if examined else frozenset(),
        frozenset(leaf for leaf, xid in examined.items() if xid is not None and _has_rows_before(conn, leaf, xid)),
    )


def _has_rows_before(conn: psycopg.Connection[Any], leaf: TableId, xid: int) -> bool:
    """Return True if one of the first rows of a leaf is from before a transaction. A TRUNCATE would have removed it.

    VACUUM FULL and CLUSTER keep the transaction that has inserted a row.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '1s'")
            named = conn.execute(_LEAF_NAME, [int(leaf)]).fetchone()
            if named is None:
                return False
            found = conn.execute(_OLD_ROW.format(sql.Identifier(*named)), [int(leaf), str(xid)]).fetchone()
            return bool(found and found[0])
    except psycopg.Error as error:
        _log.info("the rows of partition %s are not looked at: %s", int(leaf), type(error).__name__)
        return False


def _emptied(conn: psycopg.Connection[Any], leaves: Collection[TableId]) -> frozenset[TableId]:
    """Return the leaves whose files have no block now, after the snapshot and its end were read.

    A row that was committed below that end is not in such a file, because its block would be there. Nor is it in an
    earlier file of the leaf, because the new one was seen before.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '1s'")
            return frozenset(TableId(oid) for (oid,) in conn.execute(_EMPTY, [[int(leaf) for leaf in leaves]]))
    except psycopg.errors.LockNotAvailable:
        return frozenset()


def _of_same_bounds(
    conn: psycopg.Connection[Any], before: Mapping[TableId, TableStorage], leaves: frozenset[TableId]
) -> frozenset[TableId]:
    """Return the leaves of tables that have no partition more or less than before, now that the end was read.

    Otherwise rows that were committed below that end may be in a new partition that was cut out of a DEFAULT one.
    """
    tables = [table for table, storage in before.items() if storage.leaves.keys() & leaves]
    now = _storages(_read(conn, STORAGE_WITHOUT_SIZES, tables)) if tables else {}
    same = (storage.leaves for table, storage in now.items() if _bounds(storage) == _bounds(before[table]))
    return frozenset(leaf for found in same for leaf in found) & leaves


def _bounds(storage: TableStorage) -> Mapping[TableId, object]:
    return {leaf: found.path for leaf, found in storage.leaves.items()}


def _storages(rows: list[Any]) -> Mapping[TableId, TableStorage]:
    return {TableId(oid): TableStorage.from_json(storage) for oid, storage, *_ in rows}


def _read_convertible(conn: psycopg.Connection[Any], tables: Collection[TableId]) -> list[Any]:
    """Return the rows of all tables but for those with names that UTF-8 lacks, as of one snapshot."""
    try:
        return _read_unlocked(conn, tables)
    except CANNOT:
        if is_utf8(conn):
            raise
    with conn.transaction():
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        return _read_halves(conn, list(tables))


def _read_halves(conn: psycopg.Connection[Any], tables: list[TableId]) -> list[Any]:
    """Return the rows of all tables, without those that cannot be read alone either."""
    try:
        return _read_unlocked(conn, tables)
    except CANNOT:
        if len(tables) == 1:
            _log.debug("the storage of table %d is not read: it has names that UTF-8 lacks", int(tables[0]))
            return []
    middle = len(tables) // 2
    return [*_read_halves(conn, tables[:middle]), *_read_halves(conn, tables[middle:])]


def _read_unlocked(conn: psycopg.Connection[Any], tables: Collection[TableId]) -> list[Any]:
    try:
        return _read(conn, STORAGE_QUERY, tables)
    except psycopg.errors.LockNotAvailable:
        return _read(conn, STORAGE_WITHOUT_SIZES, tables)


def _read(conn: psycopg.Connection[Any], storage: sql.SQL, tables: Collection[TableId]) -> list[Any]:
    query = sql.SQL(
        "SELECT c.oid, {}, pg_current_snapshot()::text, n.nspname, c.relname"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])"
    )
    with conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '1s'; {_BY_INDEX}", prepare=False)
        return conn.execute(query.format(storage), [[int(t) for t in tables]]).fetchall()


def _position(conn: psycopg.Connection[Any]) -> Lsn:
    row = conn.execute(_POSITION).fetchone()
    assert row is not None
    return Lsn.parse(row[0])
