"""Settings of columns in the manifest that the columns at the source cannot have: exclusions, masks and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, Final

import psycopg

from levada.errors import NeedsOperator
from levada.postgres.catalog import read_column_names, read_table_description, read_table_descriptions
from levada.postgres.problems import Problem, Severity
from levada.schema.masking import mask_refusal, masked_column_missing, missing_masks
from levada.schema.masks import TableMasks
from levada.schema.stored_types import StoredTypes
from levada.values import QualifiedTable, TableId

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


_OID: Final = """
SELECT c.oid FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


def mask_errors(conn: psycopg.Connection[Any], masks: Mapping[QualifiedTable, TableMasks]) -> Iterator[NeedsOperator]:
    """Yield ``masked_column_missing`` and ``mask_refused`` for tables that exist, whose copies raise the same.

    A column that was renamed since its copy keeps its mask, and is reported here as missing all the same.
    """
    for name, wanted in masks.items():
        row = conn.execute(_OID, [name.schema, name.name]).fetchone() if wanted else None
        if row is None:
            continue
        table = TableId(row[0])
        if missing := missing_masks(wanted, read_column_names(conn, table).values(), None):
            yield masked_column_missing(name, missing, copied=True)
        schema = read_table_description(conn, table).schema()
        for column in schema.columns:
            mask = wanted.get(column.name)
            if mask is not None and (refused := mask_refusal(schema, column, mask)) is not None:
                yield refused


def stored_type_problems(
    conn: psycopg.Connection[Any], types: Mapping[QualifiedTable, StoredTypes]
) -> Iterator[Problem]:
    """Yield a warning for each table that has a type for a column that is missing, or that does not take the type.

    Such a table is parked, and all others are replicated.
    """
    chosen = {table: its for table, its in types.items() if its.chosen}
    if not chosen:
        return
    for name, description in sorted(read_table_descriptions(conn, list(chosen)).items()):
        its = chosen[name]
        if missing := sorted(its.by_column.keys() - {c.name for c in description.columns}):
            yield Problem(
                Severity.WARNING,
                "stored_type_without_column",
                f"columns.types of table {name} has {', '.join(missing)}, which is no replicated column",
                "if the column was renamed, write its new name into columns.types of the table's TableSync",
            )
        try:
            description.schema(types=its)
        except NeedsOperator as error:
            yield Problem(Severity.WARNING, error.code, error.message, error.hint)
