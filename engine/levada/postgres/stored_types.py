"""The problems of ``columns.types`` that the columns of the source show."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg

from levada.errors import NeedsOperator
from levada.postgres.catalog import read_table_descriptions
from levada.postgres.problems import Problem, Severity
from levada.schema.stored_types import StoredTypes
from levada.values import QualifiedTable


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
