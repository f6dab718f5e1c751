"""The conditions under which PostgreSQL accepts UPDATEs and DELETEs of a published relation, in SQL."""

from __future__ import annotations

from typing import Final

from psycopg import sql

REFUSES_GENERATED: Final = 180_000
"""The first version that refuses changes whose identity has generated columns that are not published.

Older ones stream them, and a key lacks these columns.
"""

IDENTIFIED: Final = sql.SQL("""
(l.relkind = 'f' OR CASE l.relreplident WHEN 'f' THEN {no_generated_columns} ELSE EXISTS (
    SELECT FROM pg_catalog.pg_index i WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate
    AND (i.indisprimary AND l.relreplident = 'd' OR i.indisreplident AND l.relreplident = 'i') {no_generated_key}) END)
""")
"""Template of the condition for relation ``l``, see `identified`. No change of a foreign table is streamed."""

FILTERS: Final = 150_000
"""The first version whose publications have row filters."""

UNCOVERED: Final = sql.SQL("""
SELECT f.attname FROM pg_catalog.pg_depend d
JOIN pg_catalog.pg_attribute f ON f.attrelid = d.refobjid AND f.attnum = d.refobjsubid
WHERE r.prqual IS NOT NULL AND r.prattrs IS NULL AND l.relreplident <> 'f'
    AND d.classid = 'pg_catalog.pg_publication_rel'::pg_catalog.regclass AND d.objid = r.oid
    AND d.refclassid = 'pg_catalog.pg_class'::pg_catalog.regclass AND d.refobjid = r.prrelid AND d.refobjsubid > 0
    AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_index i JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid
        WHERE i.indrelid = l.oid AND i.indisvalid AND i.indimmediate AND a.attname = f.attname
            AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])
            AND (i.indisprimary AND l.relreplident = 'd' OR i.indisreplident AND l.relreplident = 'i'))""")
"""Query of the columns that make PostgreSQL refuse UPDATEs and DELETEs of relation ``l``, from version 15 on.

They are in the row filter of ``r``, which is a member of a publication and ``l`` or a table above it, and not in the
replica identity of ``l``. A member with a column list has none, because the catalog does not distinguish its columns
from those of the filter.
"""

_GENERATED: Final = """
SELECT FROM pg_catalog.pg_attribute a
WHERE a.attrelid = l.oid AND a.attnum > 0 AND a.attgenerated <> '' AND NOT a.attisdropped
"""


def accepted(version: int) -> sql.Composed:
    """Return the condition under which a server of this version accepts UPDATEs and DELETEs of relation ``l``.

    Each partition identifies old rows by its own replica identity, so ``l`` is a table or a leaf.
    """
    nothing = sql.SQL("")
    return (
        IDENTIFIED.format(no_generated_columns=sql.SQL("true"), no_generated_key=nothing)
        if version < REFUSES_GENERATED
        else identified(version)
    )


def identified(version: int) -> sql.Composed:
    """Return the condition under which such changes of relation ``l`` are accepted, and streamed with their keys."""
    of_key = " AND a.attnum = ANY ((i.indkey::pg_catalog.int2[])[0:i.indnkeyatts - 1])"
    return IDENTIFIED.format(
        no_generated_columns=sql.SQL("true" if version < REFUSES_GENERATED else f"NOT EXISTS ({_GENERATED})"),
        no_generated_key=sql.SQL(f"AND NOT EXISTS ({_GENERATED}{of_key})"),
    )
