"""The condition under which PostgreSQL streams UPDATEs and DELETEs of a published relation with their keys, in SQL."""

from __future__ import annotations

from typing import Final

from psycopg import sql

IDENTIFIED: Final = sql.SQL("""
(CASE l.relreplident WHEN 'f' THEN {no_generated_columns} ELSE EXISTS (
    SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate
    AND (i.indisprimary AND l.relreplident = 'd' OR i.indisreplident AND l.relreplident = 'i') {no_generated_key}) END)
""")
"""Template of the condition for relation ``l``, see `identified`."""

# From PostgreSQL 18 on it refuses changes whose identity has generated columns that are not published. Before, it
# streams them, and a key lacks these columns.
_GENERATED: Final = """
SELECT FROM pg_catalog.pg_attribute a
WHERE a.attrelid = l.oid AND a.attnum > 0 AND a.attgenerated <> '' AND NOT a.attisdropped
"""


def identified(version: int) -> sql.Composed:
    """Return the condition for relation ``l`` on a server of this version.

    Each partition identifies old rows by its own replica identity, so ``l`` is a table or a leaf.
    """
    of_key = " AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])"
    return IDENTIFIED.format(
        no_generated_columns=sql.SQL("true" if version < 180000 else f"NOT EXISTS ({_GENERATED})"),
        no_generated_key=sql.SQL(f"AND NOT EXISTS ({_GENERATED}{of_key})"),
    )
