"""The sizes of tables as PostgreSQL estimates them, without reading the tables."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from levada.postgres.failures import source_errors
from levada.values import QualifiedTable


@dataclass(frozen=True, slots=True)
class TableEstimate:
    """The size of a table with its partitions, and its replica identity.

    ``rows`` is None if it was never analysed. ``bytes`` includes TOAST. ``identity`` is ``primary key``, ``index``,
    ``full`` or ``nothing``.
    """

    rows: int | None
    bytes: int
    identity: str


@source_errors("estimating the sizes of tables")
def estimate_tables(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, TableEstimate]:
    """Return the estimated sizes of those tables that exist."""
    rows = conn.execute(
        """
        SELECT n.nspname, c.relname, max(l.reltuples) >= 0, sum(greatest(l.reltuples, 0))::bigint,
               sum(coalesce(pg_table_size(l.oid), 0))::bigint,
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
            SELECT t.relid, p.reltuples FROM pg_partition_tree(c.oid) t JOIN pg_class p ON p.oid = t.relid
            WHERE c.relkind = 'p' AND t.isleaf
        ) AS l
        GROUP BY 1, 2, c.oid, c.relreplident""",
        [[t.schema for t in tables], [t.name for t in tables]],
    ).fetchall()
    return {
        QualifiedTable(schema, name): TableEstimate(count if known else None, size, identity)
        for schema, name, known, count, size, identity in rows
    }
