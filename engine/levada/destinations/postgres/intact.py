"""The check that a table at the destination is as Levada left it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from levada.destinations.fenced import missing
from levada.destinations.postgres.columns import CHANGELOG_COLUMNS, Storage
from levada.destinations.postgres.state import GUARD, TableRow
from levada.errors import DestinationChanged
from levada.postgres.silence import WatchedConnection
from levada.values import QualifiedTable, TableMode, resync_command

_READ: Final = """
SELECT c.oid::bigint, n.nspname, c.relname,
    (SELECT json_object_agg(a.attname, json_build_array(format_type(a.atttypid, a.atttypmod), a.attnum, a.xmin::text,
        a.attgenerated <> '' OR a.attidentity = 'a')) FROM pg_attribute a
     WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    coalesce(pg_relation_filenode(c.oid), 0)::bigint,
    EXISTS (SELECT FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgname = %(guard)s AND t.tgenabled = 'A'),
    (SELECT array_agg(a.attname::text) FROM pg_index i JOIN pg_attribute a
     ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey) WHERE i.indrelid = c.oid AND i.indisprimary AND i.indimmediate
     AND NOT EXISTS (SELECT FROM pg_collation k WHERE k.oid = ANY (i.indcollation) AND NOT k.collisdeterministic)),
    (SELECT min(k.conname::text) FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'f'
     AND NOT (k.confdeltype IN ('a', 'r') AND k.confupdtype IN ('a', 'r'))),
    EXISTS (SELECT FROM pg_inherits i WHERE c.oid IN (i.inhrelid, i.inhparent)),
    (SELECT min(r.rulename::text) FROM pg_rewrite r WHERE r.ev_class = c.oid),
    c.relpersistence <> 'p',
    EXISTS (SELECT FROM pg_subscription_rel s WHERE s.srrelid = c.oid)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = ANY (%(relations)s::oid[]) AND c.relkind IN ('r', 'p')
"""
"""The table's name, columns, guard, primary key, and what would change its rows, or other tables, behind Levada:

a foreign key with an action, a parent or child by inheritance or partitioning, a rule, a crash that empties an unlogged
table, and a subscription, whose worker fires no trigger for statements (PostgreSQL manual, "Logical Replication
Triggers").
"""


def read_storage(connection: WatchedConnection, row: TableRow) -> Storage:
    """Return the storage of the table of ``row``, which exists."""
    return read_storages(connection, [row])[row.relation]


def read_storages(connection: WatchedConnection, rows: Sequence[TableRow]) -> Mapping[int, Storage]:
    """Return the storage of the tables of ``rows``, which exist, by their OIDs."""
    found = _read(connection, [row.relation for row in rows])
    return {row.relation: _storage(row, found[row.relation][2] or {}, found[row.relation][3]) for row in rows}


def _read(connection: WatchedConnection, relations: Sequence[int]) -> Mapping[int, Sequence[Any]]:
    rows = connection.execute(_READ, {"guard": GUARD, "relations": list(relations)}).fetchall()
    return {oid: row for oid, *row in rows}


def require_present(connection: WatchedConnection, row: TableRow) -> None:
    """Raise DestinationChanged ``destination_table_missing`` if the table was dropped."""
    if connection.execute("SELECT 1 FROM pg_class WHERE oid = %s", [row.relation]).fetchone() is None:
        raise missing(row.place, row.owner.source_name)


def is_guarded(connection: WatchedConnection, row: TableRow) -> bool:
    """Return True if the trigger that keeps other sessions from writing the table is there and enabled."""
    found = _read(connection, [row.relation]).get(row.relation)
    return found is not None and bool(found[4])


def check_intact(connection: WatchedConnection, row: TableRow) -> Storage:
    """Raise DestinationChanged if another session dropped, renamed or altered the table. Return its storage.

    Columns, indexes and constraints that another session added are allowed. A guard trigger that is missing or disabled
    is not, because the rows may then have been changed. A foreign key with an action such as CASCADE is not either.
    """
    hint, place = resync_command(row.owner.source_name), row.place
    found = _read(connection, [row.relation]).get(row.relation)
    if found is None:
        raise missing(row.place, row.owner.source_name)
    schema, name, columns, file, guarded, key, cascade, inherits, rule, volatile, subscribed = found
    if (change := _changed(row, QualifiedTable(schema, name), columns or {}, key or ())) is not None:
        raise DestinationChanged("foreign_schema_change", f"{change} by another writer", hint=hint)
    if inherits:
        # The guard sees no statement on a parent, and a statement on a parent also changes the rows of its children.
        message = f"{place} was made a partition, a parent or a child of another table by another writer"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    if rule is not None:
        message = f"the rule {rule}, which can replace Levada's statements, was added to {place} by another writer"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    if volatile:
        message = f"{place} was made UNLOGGED by another writer, so a crash of the server removes its rows"
        raise DestinationChanged("foreign_schema_change", message, hint=hint)
    if cascade is not None:
        raise DestinationChanged(
            "destination_cascade",
            f"the foreign key {cascade} of {place} changes rows of {place} by itself, which the source does not stream",
            hint=f"ALTER TABLE {place} DROP CONSTRAINT {cascade}; then {hint}",
        )
    if subscribed:
        message = f"a subscription of the destination's database writes {place} too"
        raise DestinationChanged("foreign_write", message, hint=f"drop the subscription; then {hint}")
    if not guarded:
        message = f"the trigger {GUARD} of {place} was dropped or disabled, so another session may have changed rows"
        raise DestinationChanged("foreign_write", message, hint=hint)
    storage = _storage(row, columns, file)
    if row.storage is not None and row.storage.is_unaccepted:
        message = f"{place} was changed by another session, and its repair has not ended"
        raise DestinationChanged("foreign_write", message, hint=hint)
    if row.storage is not None and storage.file != row.storage.file and storage.columns != row.storage.columns:
        message = f"ALTER TABLE has rewritten columns of {place} in another session, so their values may be others"
        raise DestinationChanged("foreign_write", message, hint=hint)
    return storage


def _storage(row: TableRow, columns: Mapping[str, Sequence[Any]], file: int) -> Storage:
    return Storage(file, {c: (columns[c][1], columns[c][2]) for c, _ in _expected(row)})


def _expected(row: TableRow) -> list[tuple[str, str]]:
    """Return the names and types of Levada's columns."""
    extra = CHANGELOG_COLUMNS if row.mode is TableMode.CHANGELOG else ()
    return [*((c.name, c.type) for c in row.layout.columns), *extra]


def _changed(
    row: TableRow, name: QualifiedTable, columns: Mapping[str, Sequence[Any]], key: Collection[str]
) -> str | None:
    """Return a description of the first difference between the table and its state, or None."""
    if name != row.place:
        return f"{row.place} was renamed to {name}"
    for column, kind in _expected(row):
        if column not in columns:
            return f"column {column} of {row.place} was dropped or renamed"
        found, number, _, generated = columns[column]
        if found != kind:
            return f"column {column} of {row.place} was changed to {found}"
        if row.storage is not None and number != row.storage.columns[column][0]:
            return f"column {column} of {row.place} was dropped and added again"
        if generated:
            return f"column {column} of {row.place} was made a generated column"
    names = {c.attnum: c.name for c in row.layout.columns}
    if row.mode is TableMode.UPSERT and sorted(key) != sorted(names[a] for a in row.key):
        return f"the primary key of {row.place} was dropped or changed"
    return None
