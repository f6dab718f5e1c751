"""SQL for the relations that a publication streams, and for partitions.

It reads only catalog tables. ``pg_get_publication_tables`` and ``pg_partition_tree`` would wait for each table that
another session has locked.
"""

from __future__ import annotations

from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.utf8_names import named_rows
from levada.values import QualifiedTable

SCHEMAS_VERSION: Final = 150000
"""The first version whose publications can have schemas."""

# The lowest OID of a relation of a user, which is FirstNormalObjectId in PostgreSQL's source.
_OF_ALL: Final[LiteralString] = """
    SELECT c.oid FROM publication p JOIN pg_catalog.pg_class c ON p.puballtables
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
"""
_OF_SCHEMAS: Final[LiteralString] = """
    UNION SELECT c.oid FROM publication p JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid
    JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid
    WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= 16384
"""
_MEMBERS: Final = (
    """member(relid) AS (
    SELECT r.prrelid FROM publication p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
    UNION """
    + _OF_ALL
    + "{schemas})"
)

# A table is streamed because of itself or of an ancestor. OFFSET makes PostgreSQL look up each of them.
_SOME: Final[LiteralString] = """wanted(relid) AS (
    SELECT w.relid FROM unnest(%(tables)s::oid[]) AS w(relid)
    UNION SELECT i.inhparent FROM wanted CROSS JOIN LATERAL (
        SELECT h.inhparent FROM pg_catalog.pg_inherits h WHERE h.inhrelid = wanted.relid OFFSET 0) i
), member(relid) AS (
    SELECT w.relid FROM wanted w CROSS JOIN publication p CROSS JOIN LATERAL (
        SELECT FROM pg_catalog.pg_publication_rel r WHERE r.prpubid = p.oid AND r.prrelid = w.relid OFFSET 0) r
    UNION SELECT w.relid FROM wanted w CROSS JOIN LATERAL (
        SELECT c.relnamespace FROM pg_catalog.pg_class c WHERE c.oid = w.relid AND c.oid >= 16384
            AND c.relkind IN ('r', 'p') AND c.relpersistence = 'p' OFFSET 0) c
    JOIN publication p ON p.puballtables {schemas})"""
_SOME_OF_SCHEMAS: Final[LiteralString] = """ OR EXISTS (
        SELECT FROM pg_catalog.pg_publication_namespace s WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""

_STREAMED: Final[LiteralString] = """(
WITH RECURSIVE publication AS (
    SELECT oid, puballtables, pubviaroot FROM pg_catalog.pg_publication WHERE pubname = %(publication)s
), {members}, below(relid) AS (
    SELECT relid FROM member
    UNION SELECT i.inhrelid FROM below JOIN pg_catalog.pg_class c ON c.oid = below.relid AND c.relkind = 'p'
    JOIN pg_catalog.pg_inherits i ON i.inhparent = c.oid AND NOT i.inhdetachpending
), above(relid, ancestor) AS (
    SELECT c.oid, i.inhparent FROM member JOIN pg_catalog.pg_class c ON c.oid = member.relid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
    UNION SELECT above.relid, i.inhparent FROM above
    JOIN pg_catalog.pg_class c ON c.oid = above.ancestor AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = c.oid
)
SELECT member.relid FROM member JOIN publication ON pubviaroot
WHERE NOT EXISTS (SELECT FROM above JOIN member root ON root.relid = above.ancestor WHERE above.relid = member.relid)
UNION ALL
SELECT below.relid FROM below JOIN publication ON NOT pubviaroot
JOIN pg_catalog.pg_class c ON c.oid = below.relid AND c.relkind = 'r')"""

# OFFSET makes PostgreSQL look up each relation. It would read the whole catalog for each table.
_LEAVES: Final[LiteralString] = """(
WITH RECURSIVE tree(relid, kind) AS (
    SELECT x.oid, x.relkind FROM (SELECT y.oid, y.relkind FROM pg_catalog.pg_class y WHERE y.oid = {root} OFFSET 0) x
    UNION ALL SELECT i.inhrelid, k.relkind FROM tree
    CROSS JOIN LATERAL (SELECT h.inhrelid FROM pg_catalog.pg_inherits h
        WHERE h.inhparent = tree.relid AND NOT h.inhdetachpending OFFSET 0) i
    CROSS JOIN LATERAL (SELECT y.relkind FROM pg_catalog.pg_class y WHERE y.oid = i.inhrelid OFFSET 0) k
    WHERE tree.kind = 'p'
)
SELECT tree.relid FROM tree WHERE tree.kind <> 'p')"""

ROW_FILTER: Final = sql.SQL("""
CASE WHEN r.prqual IS NULL OR EXISTS (
    SELECT FROM pg_catalog.pg_publication_namespace s JOIN pg_catalog.pg_class k ON k.relnamespace = s.pnnspid
    WHERE s.pnpubid = r.prpubid AND k.oid = r.prrelid) THEN NULL
WHEN EXISTS (SELECT FROM pg_catalog.pg_locks x WHERE x.relation = r.prrelid AND x.mode = 'AccessExclusiveLock'
    AND x.database = (SELECT d.oid FROM pg_catalog.pg_database d WHERE d.datname = current_database()))
THEN 'unknown while the table is locked' ELSE pg_catalog.pg_get_expr(r.prqual, r.prrelid) END""")
"""The row filter of a member ``r`` of a publication, NULL for none.

PostgreSQL ignores a filter if the publication has the schema too.
``pg_get_expr`` would wait for a table that another session has locked, so that one has another text.
"""


def streamed_relations(conn: psycopg.Connection[Any], *, some: bool = False) -> sql.Composed:
    """Return a subquery with the column ``relid``: the relations that publication ``%(publication)s`` streams.

    With ``some``, these are at least those of the OIDs ``%(tables)s``, and it does not read all members.
    """
    modern = conn.info.server_version >= SCHEMAS_VERSION
    members, of_schemas = (_SOME, _SOME_OF_SCHEMAS) if some else (_MEMBERS, _OF_SCHEMAS)
    return sql.SQL(_STREAMED).format(members=sql.SQL(members).format(schemas=sql.SQL(of_schemas if modern else "")))


def leaves_of(root: LiteralString) -> sql.Composed:
    """Return a subquery with the column ``relid``: relation ``root``, or its partitions that have rows."""
    return sql.SQL(_LEAVES).format(root=sql.SQL(root))


@source_errors("listing the tables of the publication")
def streamed_names(conn: psycopg.Connection[Any], publication: str) -> frozenset[QualifiedTable]:
    """Return the names of the tables that the publication streams, none if it does not exist."""
    query = sql.SQL(
        "SELECT n.nspname, c.relname FROM {} t JOIN pg_class c ON c.oid = t.relid"
        " JOIN pg_namespace n ON n.oid = c.relnamespace"
    ).format(streamed_relations(conn))
    rows = named_rows(conn, query, {"publication": publication})
    return frozenset(QualifiedTable(schema, name) for schema, name in rows)
