"""The check that a table at the destination is as Levada left it."""

from __future__ import annotations

from typing import Final

from levada.destinations.postgres.columns import CHANGELOG_COLUMNS
from levada.destinations.postgres.state import GUARD, TableRow
from levada.errors import DestinationChanged
from levada.postgres.silence import WatchedConnection
from levada.values import QualifiedTable, TableMode, resync_command

_READ: Final = """
SELECT n.nspname, c.relname,
    (SELECT json_object_agg(a.attname, format_type(a.atttypid, a.atttypmod)) FROM pg_attribute a
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = %s AND t.tgenabled IN ('O', 'A')),
    (SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
     ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) WHERE i.indrelid = c.oid AND i.indisprimary)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %s AND c.relkind IN ('r', 'p')
"""


def check_intact(connection: WatchedConnection, row: TableRow) -> None:
    """Raise DestinationChanged if another session dropped, renamed or altered the table.

    Columns, indexes and constraints that another session added are allowed. A guard trigger that is missing or disabled
    is not, because the rows may then have been changed.
    """
    if (error := _difference(connection, row)) is not None:
        raise DestinationChanged(*error, hint=resync_command(row.owner.source_name))


def _difference(connection: WatchedConnection, row: TableRow) -> tuple[str, str] | None:
    """Return the code and the message of the first difference, or None."""
    found = connection.execute(_READ, [GUARD, row.relation]).fetchone()
    if found is None:
        return "destination_table_missing", f"{row.place} is no longer in the destination's database"
    schema, name, columns, guarded, key = found
    if QualifiedTable(schema, name) != row.place:
        return "foreign_schema_change", f"{row.place} was renamed to {schema}.{name} at the destination"
    expected = [(c.name, c.type) for c in row.layout.columns]
    expected += CHANGELOG_COLUMNS if row.mode is TableMode.CHANGELOG else ()
    for column, kind in expected:
        if columns is None or column not in columns:
            return (
                "foreign_schema_change",
                f"column {column} of {row.place} was dropped or renamed by another writer",
            )
        if columns[column] != kind:
            return (
                "foreign_schema_change",
                f"column {column} of {row.place} was changed to {columns[column]} by another writer",
            )
    names = {c.attnum: c.name for c in row.layout.columns}
    if row.mode is TableMode.UPSERT and sorted(key or ()) != sorted(names[a] for a in row.key):
        return "foreign_schema_change", f"the primary key of {row.place} was dropped or changed by another writer"
    if not guarded:
        return (
            "foreign_write",
            f"the trigger {GUARD} of {row.place} was dropped or disabled, so another session may have changed rows",
        )
    return None
