"""The statements that give a table a replica identity with which PostgreSQL lets it be published.

From version 18 on, PostgreSQL rejects the UPDATEs and DELETEs of a published table whose identity has a generated
column that is not published. So FULL is no remedy for a table with such a column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import identify_statement, unidentified_relations
from levada.postgres.replica_identity import REFUSES_GENERATED
from levada.postgres.streamed import leaves_of
from levada.printable import listed
from levada.values import QualifiedTable

# Only catalog tables: pg_partition_tree would wait for a partition that another session has locked.
_TABLES: Final = sql.SQL("""
SELECT n.nspname, c.relname,
    c.relreplident <> 'd' AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary
        AND i.indimmediate AND NOT (i.indkey::int2[])[0:i.indnkeyatts - 1] && array(SELECT a.attnum FROM pg_attribute a
            WHERE a.attrelid = c.oid AND a.attgenerated <> '' AND a.attnum > 0 AND NOT a.attisdropped)),
    array(SELECT DISTINCT a.attname::text FROM pg_attribute a
        WHERE (a.attrelid = c.oid OR a.attrelid IN {leaves})
        AND a.attgenerated <> '' AND a.attnum > 0 AND NOT a.attisdropped ORDER BY 1),
    EXISTS (SELECT FROM pg_class l JOIN pg_attribute a ON a.attrelid = l.oid
        WHERE l.oid IN {leaves} AND l.relkind = 'r'
        AND a.attgenerated <> '' AND a.attnum > 0 AND NOT a.attisdropped
        AND (l.relreplident = 'f' OR EXISTS (SELECT FROM pg_index i WHERE i.indrelid = l.oid AND i.indimmediate
            AND (i.indisprimary AND l.relreplident = 'd' OR i.indisreplident AND l.relreplident = 'i')
            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))))
FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name ORDER BY 1, 2
""").format(leaves=leaves_of("c.oid"))


def identity_remedies(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, str]:
    """Return the way in which each of these tables without a replica identity gets one."""
    generated_matters = conn.info.server_version >= REFUSES_GENERATED
    relations, remedies = unidentified_relations(conn, tables), {}
    for table, unused_key, generated, _ in _read(conn, tables):
        if unused_key:
            remedies[table] = f"run {_default(table)}"
        elif generated and generated_matters:
            remedies[table] = _without_generated(table, generated)
        else:
            remedies[table] = f"add a primary key, or run {identify_statement(relations[table])}"
    return remedies


def upgrade_problems(conn: psycopg.Connection[Any], streamed: Collection[QualifiedTable]) -> Iterator[Problem]:
    """Yield a problem for each published table whose UPDATEs PostgreSQL 18 would refuse, on an older server."""
    if conn.info.server_version >= REFUSES_GENERATED:
        return
    for table, unused_key, generated, refused in _read(conn, streamed):
        if refused:
            remedy = f"run {_default(table)}" if unused_key else _without_generated(table, generated)
            yield Problem(
                Severity.WARNING,
                "upgrade_refuses_updates",
                f"the replica identity of table {table} has a generated column ({listed(generated)}): PostgreSQL 18"
                " refuses its UPDATEs and DELETEs while it is published",
                f"before an upgrade to PostgreSQL 18: {remedy}",
            )


@source_errors("reading the replica identities of tables")
def _read(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> list[tuple[QualifiedTable, bool, list[str], bool]]:
    names = [[t.schema for t in tables], [t.name for t in tables]]
    rows = conn.execute(_TABLES, names).fetchall() if tables else ()
    return [(QualifiedTable(schema, name), unused, generated, bad) for schema, name, unused, generated, bad in rows]


def _default(table: QualifiedTable) -> str:
    name = sql.Identifier(table.schema, table.name)
    return sql.SQL("ALTER TABLE {} REPLICA IDENTITY DEFAULT").format(name).as_string(None)


def _without_generated(table: QualifiedTable, generated: Collection[str]) -> str:
    columns = listed(list(generated))
    return f"add a primary key without {columns} and run {_default(table)}, or drop the generated column"
