"""The sizes of tables as PostgreSQL estimates them, without reading the tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.streamed import leaves_of
from levada.values import QualifiedTable, TableId

_EXACT_BYTES: Final = sql.SQL("pg_table_size(l.oid)")
_LAST_BYTES: Final = sql.SQL("""(
    SELECT sum(greatest(f.relpages, 0)) * current_setting('block_size')::bigint
    FROM pg_class s JOIN pg_class f ON f.oid IN (s.oid, s.reltoastrelid) WHERE s.oid = l.oid)""")

# The rows of a table that was never analysed, as PostgreSQL's planner estimates them: those of so many full pages, with
# 32 bytes for a value of variable length. A row has a header of 24 bytes, and a pointer of 4.
_EXACT_ROWS: Final = sql.SQL("""(
    SELECT floor(pg_relation_size(l.oid) / b.size * ((b.size - 24) / (28 + greatest(w.width, 1))))
    FROM (SELECT current_setting('block_size')::bigint) AS b(size), (
        SELECT coalesce(sum(CASE WHEN a.attlen > 0 THEN a.attlen ELSE 32 END), 0) FROM pg_attribute a
        WHERE a.attrelid = l.oid AND a.attnum > 0 AND NOT a.attisdropped) AS w(width))""")
_NO_ROWS: Final = sql.SQL("NULL::bigint")


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """The size of a table with its partitions, and its replica identity.

    ``rows`` is estimated by the size if it was never analysed, and None if it was locked then. ``bytes`` includes
    TOAST. ``identity`` is ``primary key``, ``index``, ``full`` or ``nothing``. ``current`` is False if a table was
    locked, so that ``bytes`` is of its last VACUUM.
    """

    rows: int | None
    bytes: int
    identity: str
    current: bool = True


# A root has the bytes of its partitions.
_BYTES: Final = sql.SQL("""
SELECT c.oid::bigint, sum(coalesce(pg_table_size(l.oid), 0))::bigint
FROM pg_class c CROSS JOIN LATERAL (
    SELECT c.oid WHERE c.relkind <> 'p' UNION ALL SELECT t.relid FROM {leaves} t WHERE c.relkind = 'p') AS l(oid)
WHERE c.oid = ANY (%s::oid[]) GROUP BY c.oid""")


@source_errors("reading the sizes of tables")
def read_table_bytes(conn: psycopg.Connection[Any], tables: Collection[TableId]) -> Mapping[TableId, int] | None:
    """Return the bytes of those tables that exist, with TOAST and without indexes. Return None if one is locked.

    Wait at most a second for its lock.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '1s'")
            rows = conn.execute(_BYTES.format(leaves=leaves_of("c.oid")), [[int(t) for t in tables]]).fetchall()
    except psycopg.errors.LockNotAvailable:
        return None
    return {TableId(table): size for table, size in rows}


@source_errors("estimating the sizes of tables")
def estimate_tables(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, TableEstimate]:
    """Return the estimated sizes of those tables that exist.

    Wait at most a second for locked tables. Then all sizes are those of the last VACUUM or ANALYZE.
    """
    try:
        with conn.transaction():
            conn.execute("SET LOCAL lock_timeout = '1s'")
            return _estimate(conn, tables, _EXACT_BYTES)
    except psycopg.errors.LockNotAvailable:
        return _estimate(conn, tables, _LAST_BYTES)


def _estimate(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable], size_of: sql.SQL
) -> Mapping[QualifiedTable, TableEstimate]:
    query = sql.SQL("""
        SELECT n.nspname, c.relname, bool_and(l.reltuples >= 0 OR {rows} IS NOT NULL),
               sum(CASE WHEN l.reltuples >= 0 THEN l.reltuples ELSE {rows} END)::bigint,
               sum(coalesce({size}, 0))::bigint,
               CASE c.relreplident
                    WHEN 'f' THEN 'full'
                    WHEN 'i' THEN 'index'
                    WHEN 'd' THEN CASE WHEN EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)
                                       THEN 'primary key' ELSE 'nothing' END
                    ELSE 'nothing' END
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON n.nspname = schema AND c.relname = name
        CROSS JOIN LATERAL (
            SELECT c.oid AS oid, c.reltuples AS reltuples WHERE c.relkind <> 'p'
            UNION ALL
            SELECT t.relid, p.reltuples FROM {leaves} t JOIN pg_class p ON p.oid = t.relid WHERE c.relkind = 'p'
        ) AS l
        GROUP BY 1, 2, c.oid, c.relreplident""")
    names = [[t.schema for t in tables], [t.name for t in tables]]
    rows = conn.execute(
        query.format(
            size=size_of, rows=_EXACT_ROWS if size_of is _EXACT_BYTES else _NO_ROWS, leaves=leaves_of("c.oid")
        ),
        names,
    ).fetchall()
    return {
        QualifiedTable(schema, name): TableEstimate(count if known else None, size, identity, size_of is _EXACT_BYTES)
        for schema, name, known, count, size, identity in rows
    }
