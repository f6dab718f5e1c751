"""The tables that Levada, or the catalog of a lake, writes in a database that is also a source."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from typing import Any, Final

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors
from levada.postgres.problems import Problem, Severity
from levada.postgres.seal import SEAL_SCHEMA
from levada.postgres.utf8_names import named_rows
from levada.printable import counted
from levada.values import QualifiedTable

WRITTEN: Final = sql.SQL("""
(n.nspname = {own} OR EXISTS (
    SELECT FROM pg_class m WHERE m.relnamespace = n.oid AND m.relkind = 'r' AND m.relowner = c.relowner
    AND m.relname IN ('store_migrations', 'destination_copy_parts', 'levada_tables', 'iceberg_tables')
    AND CASE m.relname
        WHEN 'store_migrations' THEN true
        WHEN 'destination_copy_parts' THEN true
        WHEN 'levada_tables' THEN c.relname = 'levada_tables' OR starts_with(c.relname::text, 'ducklake_')
        WHEN 'iceberg_tables' THEN c.relname IN ('iceberg_tables', 'iceberg_namespace_properties') AND EXISTS (
            SELECT FROM pg_attribute a WHERE a.attrelid = m.oid AND a.attname = 'previous_metadata_location')
        ELSE false END))
""").format(own=sql.Literal(SEAL_SCHEMA))
"""The condition for a table ``c`` in schema ``n`` that Levada, or the catalog of a lake, writes.

These are a schema with a store or with the state of a PostgreSQL destination, the tables of a DuckLake catalog with the
table of Levada's state, and those of an Iceberg JDBC catalog. All have the owner of the table that shows it. So no role
can hide another role's table.
"""


@source_errors("listing the tables that Levada writes")
def list_written_tables(conn: psycopg.Connection[Any]) -> frozenset[QualifiedTable]:
    """Return the tables that Levada, or the catalog of a lake, writes, but for its trigger."""
    rows = named_rows(
        conn,
        sql.SQL(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.relkind IN ('r', 'p') AND n.nspname <> {} AND {}"
        ).format(sql.Literal(SEAL_SCHEMA), WRITTEN),
    )
    return frozenset(QualifiedTable(schema, name) for schema, name in rows)


def written_problems(tables: AbstractSet[QualifiedTable], publication: str) -> Iterator[Problem]:
    """Yield a problem for tables that are written by each commit, which would then be a change itself, without end."""
    if not tables:
        return
    first, *others = sorted(tables)
    more = f" and {counted(len(others), 'more table')}" if others else ""
    yield Problem(
        Severity.ERROR,
        "written_tables_published",
        f"publication {publication} streams {first}{more}, which Levada or the catalog of a lake writes: each"
        " commit would be replicated again, without end",
        f"exclude such tables in spec.tables, for example {{schema: {first.schema}, name: {first.name}}}, or keep the"
        " store and the catalog in another database",
        spares_others=True,
    )
