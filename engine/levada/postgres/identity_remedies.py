"""The statements that give a table a replica identity with which PostgreSQL lets it be published.

From version 18 on, PostgreSQL rejects the UPDATEs and DELETEs of a published table whose identity has a generated
column that is not published. So FULL is no remedy for a table with such a column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.publications import add_statement, broken_tables, create_statement, unidentified_relations
from levada.postgres.replica_identity import REFUSES_GENERATED
from levada.postgres.streamed import leaves_of
from levada.printable import listed
from levada.schema.flaws import LISTED, for_each_partition
from levada.values import QualifiedTable

_DEFAULT: Final = "REPLICA IDENTITY DEFAULT"

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
            AND a.attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1])))),
    EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped)
FROM unnest(%s::text[], %s::text[]) AS wanted(schema, name)
JOIN pg_namespace n ON n.nspname = wanted.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = wanted.name ORDER BY 1, 2
""").format(leaves=leaves_of("c.oid"))


def identity_remedies(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, str]:
    """Return the way in which each of these tables without a replica identity gets one."""
    return {table: f"{before}{statements}" for table, before, statements in _remedies(conn, tables)}


def identity_statements(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, str]:
    """Return the SQL that gives each of these tables a replica identity, or what to do if no SQL is enough."""
    return {table: statements for table, _, statements in _remedies(conn, tables)}


def _remedies(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Iterator[tuple[QualifiedTable, str, str]]:
    """Yield the SQL of each table with the words before it in a sentence."""
    generated_matters = conn.info.server_version >= REFUSES_GENERATED
    relations = unidentified_relations(conn, tables)
    for table, unused_key, generated, _, has_columns in _read(conn, tables):
        if unused_key:
            yield table, "run ", _identify(table, relations[table], "DEFAULT")
        elif not has_columns:
            yield table, "add a column and a primary key, or run ", _identify(table, relations[table], "FULL")
        elif generated and generated_matters:
            yield table, "", _without_generated(table, generated)
        else:
            yield table, "add a primary key, or run ", _identify(table, relations[table], "FULL")


def generated_columns(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> Mapping[QualifiedTable, Sequence[str]]:
    """Return the names of the generated columns of these tables and of their partitions."""
    return {table: generated for table, _, generated, *_ in _read(conn, tables)}


def upgrade_problems(conn: psycopg.Connection[Any], streamed: Collection[QualifiedTable]) -> Iterator[Problem]:
    """Yield a problem for each published table whose UPDATEs PostgreSQL 18 would refuse, on an older server."""
    if conn.info.server_version >= REFUSES_GENERATED:
        return
    for table, unused_key, generated, refused, _ in _read(conn, streamed):
        if refused:
            remedy = f"run {_alter(table, _DEFAULT)}" if unused_key else _without_generated(table, generated)
            yield Problem(
                Severity.WARNING,
                "upgrade_refuses_updates",
                f"the replica identity of table {table} has a generated column ({listed(generated)}): PostgreSQL 18"
                " refuses its UPDATEs and DELETEs while it is published",
                f"before an upgrade to PostgreSQL 18: {remedy}",
            )


def publish_hint(
    publication: str, tables: Collection[QualifiedTable], remedies: Iterable[str], *, exists: bool = True
) -> str:
    """Return the SQL that publishes the tables, for a hint. ``exists`` is False if there is no publication.

    It first gives a replica identity to tables without one, by ``remedies``. PostgreSQL rejects their UPDATEs and
    DELETEs once they are published: https://www.postgresql.org/docs/current/logical-replication-publication.html
    """
    publish = add_statement(publication, tables) if exists else create_statement(publication, tables)
    return "; ".join([*remedies, publish])


def publish_all_hint(conn: psycopg.Connection[Any], publication: str) -> str:
    """Return the SQL by which the publication publishes all operations, for a hint.

    It first gives a replica identity to published tables without one, whose UPDATEs and DELETEs would fail then.
    """
    remedies = identity_statements(conn, broken_tables(conn, publication)).values()
    statement = sql.SQL("ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')")
    publish = statement.format(sql.Identifier(publication)).as_string(None)
    return "; ".join([*remedies, publish])


def identify_again(table: QualifiedTable) -> str:
    """Return the SQL for a table of this name, of which the catalog says nothing now."""
    return _alter(table, "REPLICA IDENTITY FULL")


def _identify(table: QualifiedTable, relations: Sequence[QualifiedTable], identity: str) -> str:
    """Return the SQL that gives a table, or partitions of it, a replica identity."""
    action = f"REPLICA IDENTITY {identity}"
    if len(relations) <= LISTED:
        return "; ".join(_alter(relation, action) for relation in relations)
    kept = "'f'" if identity == "FULL" else "'d', 'f'"
    each = f"in psql: {for_each_partition(table, action, f'relreplident NOT IN ({kept})')}"
    return f"{each}; {_alter(table, action)}" if table in relations else each


@source_errors("reading the replica identities of tables")
def _read(
    conn: psycopg.Connection[Any], tables: Collection[QualifiedTable]
) -> list[tuple[QualifiedTable, bool, list[str], bool, bool]]:
    names = [[t.schema for t in tables], [t.name for t in tables]]
    rows = conn.execute(_TABLES, names).fetchall() if tables else ()
    return [(QualifiedTable(schema, name), *found) for schema, name, *found in rows]


def _alter(table: QualifiedTable, action: str) -> str:
    return f"ALTER TABLE {sql.Identifier(table.schema, table.name).as_string(None)} {action}"


def _without_generated(table: QualifiedTable, generated: Collection[str]) -> str:
    columns = listed(list(generated))
    return f"add a primary key without {columns} and run {_alter(table, _DEFAULT)}, or drop the generated column"
