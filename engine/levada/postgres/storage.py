"""The storage of many tables, read by one query of the catalog."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.description import FLAW, STORAGE_QUERY, STORAGE_WITHOUT_SIZES
from levada.postgres.failures import source_errors
from levada.postgres.streamed import leaves_of
from levada.schema.flaws import LeafFlaw
from levada.schema.storage import TableStorage
from levada.values import Lsn, QualifiedTable, TableId

_POSITION: Final = (
    "SELECT (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END)::text"
)

# Otherwise PostgreSQL may read all of pg_type or pg_attribute again for each table.
_BY_INDEX: Final = "SET LOCAL enable_seqscan = off; SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"

_IDENTITY_INDEXES: Final = """
SELECT indexrelid::bigint, xmin::text::bigint FROM pg_catalog.pg_index
WHERE indrelid = ANY(%s::oid[]) AND (indisprimary OR indisreplident) ORDER BY 1
"""

# The access method heap has the OID 2 in every database.
_OTHER_METHODS: Final = "SELECT oid FROM pg_catalog.pg_class WHERE oid = ANY(%s::oid[]) AND relam <> 2 LIMIT 1"

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
    and ``running`` are the query's snapshot. ``names`` has the tables' names.
    """

    start: Lsn
    end: Lsn
    next_xid: int
    running: frozenset[int]
    tables: Mapping[TableId, TableStorage]
    names: Mapping[TableId, QualifiedTable] = field(default_factory=dict)

    def shows(self, xid: int) -> bool:
        """Return True if the effects of a committed transaction are in this snapshot.

        A transaction is in the WAL, and may be streamed, before other sessions see it.
        """
        return xid not in self.running and (self.next_xid - xid) % 2**32 < 2**31 and xid != self.next_xid


@source_errors("reading the indexes of the replica identity")
def read_identity_indexes(conn: psycopg.Connection[Any], relations: Collection[TableId]) -> list[list[int]]:
    """Return the primary keys and identity indexes of relations, each with the version of its catalog row.

    The version changes if another index becomes the replica identity, also if that is undone.
    """
    rows = conn.execute(_IDENTITY_INDEXES, [[int(r) for r in relations]]).fetchall()
    return [list(row) for row in rows]


@source_errors("reading the access methods of the table")
def are_heaps(conn: psycopg.Connection[Any], relations: Collection[TableId]) -> bool:
    """Return True if all relations are heaps, in which an unchanged row keeps its place until the file is rewritten."""
    row = conn.execute(_OTHER_METHODS, [[int(r) for r in relations]]).fetchone()
    return row is None


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
def read_storage(conn: psycopg.Connection[Any], tables: Collection[TableId]) -> StorageSnapshot:
    """Return the storage of those tables that exist. Wait at most a second for locked relations."""
    start = _position(conn)
    try:
        rows = _read(conn, STORAGE_QUERY, tables)
    except psycopg.errors.LockNotAvailable:
        rows = _read(conn, STORAGE_WITHOUT_SIZES, tables)
    end = _position(conn)
    _, next_xid, running = (rows[0][2] if rows else "0:0:").split(":")
    return StorageSnapshot(
        start,
        end,
        int(next_xid) % 2**32,
        frozenset(int(xid) % 2**32 for xid in running.split(",") if xid),
        {TableId(oid): TableStorage.from_json(storage) for oid, storage, *_ in rows},
        {TableId(oid): QualifiedTable(schema, name) for oid, _, _, schema, name in rows},
    )


def _read(conn: psycopg.Connection[Any], storage: sql.SQL, tables: Collection[TableId]) -> list[Any]:
    query = sql.SQL(
        "SELECT c.oid, {}, pg_current_snapshot()::text, n.nspname, c.relname"
        " FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = ANY(%s::oid[])"
    )
    with conn.transaction():
        conn.execute(f"SET LOCAL lock_timeout = '1s'; {_BY_INDEX}")
        return conn.execute(query.format(storage), [[int(t) for t in tables]]).fetchall()


def _position(conn: psycopg.Connection[Any]) -> Lsn:
    row = conn.execute(_POSITION).fetchone()
    assert row is not None
    return Lsn.parse(row[0])
