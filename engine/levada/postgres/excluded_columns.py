"""Names in ``columns.exclude`` that no column of their table has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import psycopg

from levada.values import QualifiedTable

_MISSING: Final = """
SELECT t.schema, t.name, array_agg(t.column_name ORDER BY t.column_name)
FROM unnest(%s::text[], %s::text[], %s::text[]) AS t(schema, name, column_name)
JOIN pg_namespace n ON n.nspname = t.schema
JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = t.name
WHERE NOT EXISTS (SELECT FROM pg_attribute a
    WHERE a.attrelid = c.oid AND a.attname = t.column_name AND a.attnum > 0 AND NOT a.attisdropped)
GROUP BY 1, 2 ORDER BY 1, 2
"""


def missing_columns(
    conn: psycopg.Connection[Any], excluded: Mapping[QualifiedTable, AbstractSet[str]]
) -> Sequence[tuple[QualifiedTable, Sequence[str]]]:
    """Return the excluded names of each table that none of its columns has."""
    names = [(table.schema, table.name, column) for table, columns in excluded.items() for column in columns]
    if not names:
        return ()
    found = conn.execute(_MISSING, [list(part) for part in zip(*names, strict=True)]).fetchall()
    return [(QualifiedTable(schema, name), columns) for schema, name, columns in found]
