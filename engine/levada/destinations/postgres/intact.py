"""The check that a table at the destination is as Levada left it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = %(guard)s AND t.tgenabled = 'A'),
    (SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
     ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) WHERE i.indrelid = c.oid AND i.indisprimary),
    (SELECT min(k.conname::text) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'
     AND NOT (k.confdeltype IN ('a', 'r') AND k.confupdtype IN ('a', 'r'))),
    EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)),
    (SELECT min(r.rulename::text) FROM pg_rewrite r WHERE r.ev_class = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = %(relation)s AND c.relkind IN ('r', 'p')
"""
"""The table's name, columns, guard, primary key, and what would change its rows, or other tables, behind Levada:

a foreign key with an action, a parent or child by inheritance or partitioning, and a rule.
"""


def check_intact(connection: WatchedConnection, row: TableRow) -> None:
    """Raise DestinationChanged if another session dropped, renamed or altered the table.

    Columns, indexes and constraints that another session added are allowed. A guard trigger that is missing or disabled
    is not, because the rows may then have been changed. A foreign key with an action such as CASCADE is not either.
    """
    hint, place = resync_command(row.owner.source_name), row.place
    found = connection.execute(_READ, {"guard": GUARD, "relation": row.relation}).fetchone()
    if found is None:
        message = f"{place} is no longer in the destination's database"
        raise DestinationChanged("destination_table_missing", message, hint=hint)
    schema, name, columns, guarded, key, cascade, inherits, rule = found
    if (change := _changed(row, QualifiedTable(schema, name), columns or {}, key or ())) is not None:
        raise DestinationChanged("foreign_schema_change", f"{change} by another writer", hint=hint)
    if inherits:
        # The guard sees no statement on a parent, and a statement on a parent also changes the rows of its children.
        message = f"{place} was made a partition, a parent or a child of another table by another writer"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    if rule is not None:
        message = f"the rule {rule}, which can replace Levada's statements, was added to {place} by another writer"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    if cascade is not None:
        raise DestinationChanged(
            "destination_cascade",
            f"the foreign key {cascade} of {place} changes rows of {place} by itself, which the source does not stream",
            hint=f"ALTER TABLE {place} DROP CONSTRAINT {cascade}; then {hint}",
        )
    if not guarded:
        message = f"the trigger {GUARD} of {place} was dropped or disabled, so another session may have changed rows"
        raise DestinationChanged("foreign_write", message, hint=hint)


def _changed(row: TableRow, name: QualifiedTable, columns: Mapping[str, str], key: Collection[str]) -> str | None:
    """Return a description of the first difference between the table and its state, or None."""
    if name != row.place:
        return f"{row.place} was renamed to {name}"
    expected = [(c.name, c.type) for c in row.layout.columns]
    expected += CHANGELOG_COLUMNS if row.mode is TableMode.CHANGELOG else ()
    for column, kind in expected:
        if column not in columns:
            return f"column {column} of {row.place} was dropped or renamed"
        if columns[column] != kind:
            return f"column {column} of {row.place} was changed to {columns[column]}"
    names = {c.attnum: c.name for c in row.layout.columns}
    if row.mode is TableMode.UPSERT and sorted(key) != sorted(names[a] for a in row.key):
        return f"the primary key of {row.place} was dropped or changed"
    return None
