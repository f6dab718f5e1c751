"""Why a name in ``spec.tables.include`` selects no table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Any

import psycopg
from psycopg import sql

from levada.values import QualifiedTable

_KINDS = {
    "v": "is a view",
    "m": "is a materialized view",
    "f": "is a foreign table",
    "S": "is a sequence",
    "i": "is an index",
    "I": "is an index",
    "c": "is a type",
}


def unselected_reasons(
    conn: psycopg.Connection[Any], named: Sequence[QualifiedTable], possible: Sequence[QualifiedTable]
) -> Iterator[tuple[QualifiedTable, str, str]]:
    """Yield each of the named tables that cannot be replicated, with the reason and with what to do.

    ``possible`` are the tables that can be replicated. Only the catalog is read, so no table is locked.
    """
    missing = sorted(set(named) - set(possible))
    rows = conn.execute(
        """
        SELECT n.nspname, c.relname, c.relkind, c.relpersistence, c.relispartition,
            CASE WHEN c.relispartition THEN (
                SELECT ARRAY[rn.nspname, r.relname] FROM pg_catalog.pg_class r
                JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
                WHERE r.oid = pg_catalog.pg_partition_root(c.oid)) END
        FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
        JOIN unnest(%s::text[], %s::text[]) AS wanted (schema, name) ON n.nspname = schema AND c.relname = name""",
        [[t.schema for t in missing], [t.name for t in missing]],
    ).fetchall()
    found = {QualifiedTable(schema, name): row for schema, name, *row in rows}
    for table in missing:
        if table not in found:
            yield table, "does not exist", _correction(table, possible)
            continue
        kind, persistence, partition, root = found[table]
        if partition and root is not None:
            yield table, "is a partition", f"name its root, {QualifiedTable(*root)}, in spec.tables"
        elif kind in _KINDS:
            yield table, f"{_KINDS[kind]}, not a table", "remove it from spec.tables"
        elif persistence == "u":
            logged = sql.SQL("ALTER TABLE {} SET LOGGED").format(sql.Identifier(table.schema, table.name))
            yield table, "is unlogged, so its changes are not in the WAL", f"{logged.as_string(conn)};"
        else:
            what = "is a table of the system, of an extension or of Levada"
            yield table, what, "remove it from spec.tables"


def _correction(table: QualifiedTable, possible: Sequence[QualifiedTable]) -> str:
    by_text = {str(t).lower(): t for t in reversed(possible)}
    close = get_close_matches(str(table).lower(), by_text, n=1, cutoff=0.75)
    if close:
        return f"did you mean {by_text[close[0]]}? Correct spec.tables"
    return "create the table, or correct spec.tables, whose names are case-sensitive"
