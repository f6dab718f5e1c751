"""Masks of the manifest that the columns at the source cannot have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import psycopg

from levada.errors import NeedsOperator
from levada.postgres.catalog import read_column_names, read_table_description
from levada.schema.masking import mask_refusal, masked_column_missing, missing_masks
from levada.schema.masks import TableMasks
from levada.values import QualifiedTable, TableId

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
