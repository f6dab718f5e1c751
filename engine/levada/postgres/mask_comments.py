"""Reads the comments at the source that give masks to columns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import psycopg

from levada.postgres.failures import source_errors
from levada.schema.mask_comments import MaskComments
from levada.values import QualifiedTable, TableId

_COMMENTS: Final = """
SELECT n.nspname, c.relname, a.attname, d.description
FROM pg_catalog.pg_description d
JOIN pg_catalog.pg_class c ON c.oid = d.objoid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.objsubid
WHERE d.classoid = 'pg_catalog.pg_class'::regclass AND d.objsubid > 0 AND d.description ILIKE '%%levada:%%'
    AND c.relkind IN ('r', 'p') AND NOT a.attisdropped
"""
# A condition of its own: with one that may be absent, a generic plan reads all comments for each table.
_OF_TABLE: Final = _COMMENTS + " AND d.objoid = %(table)s"


@source_errors("reading the comments of tables")
def read_mask_comments(connection: psycopg.Connection[Any]) -> Mapping[QualifiedTable, MaskComments]:
    """Return the comments of all tables that have some."""
    return _read(connection, None)


@source_errors("reading the comments of a table")
def read_table_comments(connection: psycopg.Connection[Any], table: TableId) -> MaskComments:
    """Return the comments of one table."""
    return next(iter(_read(connection, table).values()), MaskComments())


def _read(connection: psycopg.Connection[Any], table: TableId | None) -> Mapping[QualifiedTable, MaskComments]:
    found: dict[QualifiedTable, dict[str, str]] = {}
    query, parameters = (_COMMENTS, {}) if table is None else (_OF_TABLE, {"table": table})
    for schema, name, column, text in connection.execute(query, parameters):
        found.setdefault(QualifiedTable(schema, name), {})[column] = text
    comments = {name: MaskComments.of(texts) for name, texts in found.items()}
    return {name: its for name, its in sorted(comments.items()) if its.entries}
