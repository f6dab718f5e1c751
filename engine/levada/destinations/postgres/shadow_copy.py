"""A copy of a table in a table of its own, next to the one that serves, and the step that makes its rows serve.

Several processes write the copy at the same time, each partition in one transaction. A partition may be written twice,
because a task whose result was lost runs again. So each transaction registers itself, and the rows of transactions
whose results did not arrive are removed by their xmin. No transaction can commit after that, because each locks the
copy's row in the state while it is open.

The rows of a table that exists are replaced in place: only those that differ are changed, in one transaction. Its
views, privileges, foreign keys and indexes stay, and readers see the old rows until the commit, without waiting. A
table whose key, mode or types differ from the copy's cannot be kept. It is dropped, and the copy gets its name.

A copy that was interrupted stays with its parts until the next one continues it or begins another, see
`levada.destinations.postgres.kept_parts`. That includes one that was closed and did not come to serve.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import psycopg
import pyarrow as pa
from psycopg import sql

from levada import codes
from levada.destinations.interface import OnSchemaChange, TableMode
from levada.destinations.postgres.columns import CHANGELOG_COLUMNS, HeldColumn, Layout, create_table, reconcile
from levada.destinations.postgres.connections import DEFER, begin_transaction, lock_exclusively, open_connection
from levada.destinations.postgres.copy_text import copy_rows
from levada.destinations.postgres.failures import destination_errors
from levada.destinations.postgres.intact import check_intact, read_storage
from levada.destinations.postgres.naming import identifier
from levada.destinations.postgres.state import COPIES, PARTS, State, TableRow, end_writers, find_relation
from levada.destinations.postgres.types import equal_is_identical
from levada.errors import DestinationChanged, NeedsOperator, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.silence import WatchedConnection
from levada.printable import counted
from levada.schema import ReplicatedTableSchema
from levada.values import Lsn, QualifiedTable

_log = logging.getLogger(__name__)

_KEY_BYTES: Final = 58
_COLUMNS: Final = """
SELECT attname::text, format_type(atttypid, atttypmod) FROM pg_attribute
WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum
"""


@dataclass(slots=True)
class ShadowCopy:
    """A copy that does not serve yet. Not thread-safe."""

    id: str
    place: QualifiedTable
    schema: ReplicatedTableSchema
    """The version that was written last."""
    mode: TableMode
    layout: Layout
    lsn: Lsn
    """The LSN of the copied rows."""

    def columns(self) -> list[str]:
        """Return the names of all columns."""
        extra = [n for n, _ in CHANGELOG_COLUMNS] if self.mode is TableMode.CHANGELOG else []
        return [*(c.name for c in self.layout.columns), *extra]


@dataclass(frozen=True, slots=True)
class PartitionWriter:
    """Writes one partition in one transaction, and returns the ID under which the transaction registered itself."""

    server: PostgresConnection
    state_schema: str
    copy_id: str
    place: QualifiedTable
    constants: tuple[tuple[str, str | int], ...] = ()
    """Values of additional columns, the same in each row."""

    def __call__(self, rows: pa.RecordBatchReader) -> str:
        """Write the rows, and return the ID of the transaction."""
        part = str(uuid.uuid4())
        with destination_errors(f"copying rows to {self.place} at {self.server.where}"):
            connection = open_connection(self.server, "copy")
            try:
                with connection.transaction():
                    begin_transaction(connection)
                    fill(connection, self.place, rows, self.constants)
                    self._register(connection, part)
            except psycopg.errors.UndefinedTable:
                # Another copy of the table has dropped this one.
                raise superseded(self.place) from None
            finally:
                connection.close()
        return part

    def _register(self, connection: WatchedConnection, part: str) -> None:
        lock = sql.SQL("SELECT FROM {} WHERE copy_id = %s AND is_open FOR SHARE")
        if connection.execute(lock.format(sql.Identifier(self.state_schema, COPIES)), [self.copy_id]).rowcount != 1:
            raise superseded(self.place)
        # A row's xmin has the lower 32 bits of the transaction's number.
        insert = sql.SQL(
            "INSERT INTO {} (part_id, copy_id, inserted_by) VALUES (%s, %s, (txid_current() %% 4294967296)::text::xid)"
        )
        connection.execute(insert.format(sql.Identifier(self.state_schema, PARTS)), [part, self.copy_id])


def fill(
    connection: WatchedConnection,
    place: QualifiedTable,
    rows: pa.RecordBatchReader,
    constants: Sequence[tuple[str, str | int]],
) -> None:
    """Write rows to a table by one COPY. ``constants`` are values of additional columns, the same in each row."""
    names = [*rows.schema.names, *(name for name, _ in constants)]
    with connection.cursor() as cursor, cursor.copy(copy_statement(identifier(place), names)) as copy:
        for batch in rows:
            table = pa.Table.from_batches([batch])
            for name, value in constants:
                table = table.append_column(name, pa.repeat(pa.scalar(value), batch.num_rows))
            for data in copy_rows(table):
                copy.write(data)


def create_schema(connection: WatchedConnection, name: str) -> None:
    """Create a schema if it is missing."""
    connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 20413))", [name])
    if connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [name]).rowcount == 0:
        connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(name)))


def copy_statement(name: sql.Composable, columns: Sequence[str]) -> sql.Composed:
    """Return the COPY statement whose data `copy_rows` formats."""
    return sql.SQL("COPY {} ({}) FROM STDIN").format(name, sql.SQL(", ").join(map(sql.Identifier, columns)))


def superseded(place: QualifiedTable) -> Transient:
    """Return the error of a copy that another copy of the table has replaced."""
    return Transient("shadow_copy_lost", f"another copy of the table began while rows were copied to {place}")


def begin(
    connection: WatchedConnection,
    state: State,
    row: TableRow,
    schema: ReplicatedTableSchema,
    mode: TableMode,
    place: QualifiedTable,
    lsn: Lsn,
    kept: str | None = None,
) -> ShadowCopy:
    """Drop earlier shadow copies of the table, and create an empty one in the schema of ``place``.

    If the ID of one of them is ``kept``, return that one with its rows.
    """
    found = None if kept is None else _interrupted(connection, state, row, kept, Layout.of(schema), mode)
    drop_all(connection, state, row, keep=None if found is None else kept)
    if kept is not None and found is not None:
        return ShadowCopy(kept, found, schema, mode, Layout.of(schema), lsn)
    copy_id = str(uuid.uuid4())
    made = ShadowCopy(
        copy_id, QualifiedTable(place.schema, f"_levada_{uuid.UUID(copy_id).hex}"), schema, mode, Layout.of(schema), lsn
    )
    create_schema(connection, place.schema)
    connection.execute(create_table(identifier(made.place), made.layout, mode))
    # A publication FOR ALL TABLES at the destination refuses to delete from a table without a replica identity.
    connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(identifier(made.place)))
    state.guard(connection, made.place)
    insert = sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, true, %s)").format(state.table(COPIES))
    owner = row.owner
    connection.execute(
        insert,
        [copy_id, owner.pipeline, owner.source_id, int(owner.table), made.place.schema, made.place.name, str(lsn)],
    )
    return made


def _interrupted(
    connection: WatchedConnection, state: State, row: TableRow, copy_id: str, layout: Layout, mode: TableMode
) -> QualifiedTable | None:
    """Open a copy of the table again, without its writers, and return its place.

    None: there is none with this ID, or another session has altered its columns.
    """
    find = sql.SQL(
        "UPDATE {} SET is_open = true WHERE copy_id::text = %s"
        " AND source_id = %s AND table_id = %s AND pipeline = ANY (%s) RETURNING schema_name, table_name"
    ).format(state.table(COPIES))
    owner = row.owner
    names = list({owner.pipeline, *state.owner.names()})
    found = connection.execute(find, [copy_id, owner.source_id, int(owner.table), names]).fetchone()
    if found is None or (relation := find_relation(connection, place := QualifiedTable(*found))) is None:
        return None
    end_writers(connection, place)
    columns = [(c.name, c.type) for c in layout.columns]
    columns += CHANGELOG_COLUMNS if mode is TableMode.CHANGELOG else ()
    if connection.execute(_COLUMNS, [relation]).fetchall() != columns:
        return None
    key = "SELECT conname::text FROM pg_constraint WHERE conrelid = %s AND contype = 'p'"
    for (name,) in connection.execute(key, [relation]).fetchall():
        # Of a copy that was closed. A row may be in two ranges of several snapshots.
        drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}, REPLICA IDENTITY FULL")
        connection.execute(drop.format(identifier(place), sql.Identifier(name)))
    return place


def close(connection: WatchedConnection, state: State, copy: ShadowCopy, parts: Sequence[str]) -> dict[str, int]:
    """End the writing of the copy as of its LSN, and remove rows of unknown transactions.

    Return the transaction of each part, as the rows have it in their xmin.
    """
    shut = sql.SQL("UPDATE {} SET is_open = false, lsn = %s WHERE copy_id = %s AND is_open").format(state.table(COPIES))
    if connection.execute(shut, [str(copy.lsn), copy.id]).rowcount != 1:
        raise superseded(copy.place)
    find = sql.SQL("SELECT part_id::text, inserted_by::text FROM {} WHERE copy_id = %s")
    written = dict(connection.execute(find.format(state.table(PARTS)), [copy.id]).fetchall())
    if missing := set(parts) - written.keys():
        message = f"the state of the destination no longer has {counted(len(missing), 'part')} of the copy {copy.place}"
        raise Transient("shadow_copy_lost", message)
    if unknown := [xid for part, xid in written.items() if part not in set(parts)]:
        # Without parameters, because the schema's name may have a percent sign.
        surplus = sql.SQL("DELETE FROM {} WHERE xmin = ANY ({}::text[]::xid[])")
        connection.execute(surplus.format(identifier(copy.place), sql.Literal(unknown)))
    return {part: int(written[part]) for part in parts}


def add_key(connection: WatchedConnection, copy: ShadowCopy) -> None:
    """Create the key of a copy with all its rows."""
    if copy.mode is TableMode.UPSERT:
        key = sql.SQL(", ").join(sql.Identifier(c.name) for c in copy.schema.key_columns)
        add = sql.SQL("ALTER TABLE {} ADD PRIMARY KEY ({}), REPLICA IDENTITY DEFAULT")
        connection.execute(add.format(identifier(copy.place), key))
    analyze(connection, [copy.place])


def analyze(connection: WatchedConnection, places: Sequence[QualifiedTable]) -> None:
    """Compute the statistics of tables. A value for which PostgreSQL cannot do that is logged and changes nothing.

    The length of a range of numeric may exceed what a double precision holds. Then each ANALYZE of its table fails, at
    the source too.
    """
    try:
        with connection.transaction():
            connection.execute(sql.SQL("ANALYZE {}").format(sql.SQL(", ").join(map(identifier, places))))
    except psycopg.DataError as error:
        # PostgreSQL's message has the value.
        if len(places) == 1:
            _log.warning("%s has no statistics: ANALYZE fails there (SQLSTATE %s)", places[0], error.sqlstate)
            return
        for place in places:
            analyze(connection, [place])


def position(connection: WatchedConnection, state: State, copy: ShadowCopy, *, lock: bool = True) -> Lsn | None:
    """Lock a closed copy, and return the LSN below which it has all changes. None: it is gone."""
    query = "SELECT lsn - '0/0'::pg_lsn FROM {} WHERE copy_id = %s AND NOT is_open"
    chosen = sql.SQL(query + " FOR UPDATE" if lock else query)
    found = connection.execute(chosen.format(state.table(COPIES)), [copy.id]).fetchone()
    return None if found is None else Lsn(int(found[0]))


def advance(connection: WatchedConnection, state: State, copy: ShadowCopy, lsn: Lsn) -> None:
    """Record that the copy has all changes below ``lsn``. Its rows are no longer those of its parts."""
    _forget_parts(connection, state, copy.id)
    update = sql.SQL("UPDATE {} SET lsn = %s WHERE copy_id = %s")
    connection.execute(update.format(state.table(COPIES)), [str(lsn), copy.id])


def serve(
    connection: WatchedConnection, state: State, row: TableRow, copy: ShadowCopy, place: QualifiedTable
) -> TableRow:
    """Make the copy's rows those of the table ``place``. Return the table's state, which the caller saves."""
    connection.execute(DEFER)
    still = sql.SQL("DELETE FROM {} WHERE copy_id = %s AND NOT is_open").format(state.table(COPIES))
    if connection.execute(still, [copy.id]).rowcount != 1:
        raise superseded(copy.place)
    _forget_parts(connection, state, copy.id)
    kept = _kept(connection, row, copy, place)
    after = replace(
        row,
        owner=state.owner.of(copy.schema),
        place=place,
        mode=copy.mode,
        key=copy.schema.key,
        layout=copy.layout,
    )
    if kept is not None:
        if kept:
            lock_exclusively(connection, place)
        for clause in kept:
            connection.execute(sql.SQL("ALTER TABLE {} {}").format(identifier(place), clause))
        # Before the rows, because deferred foreign keys of theirs keep the table from being altered.
        state.guard(connection, place)
        _replace_rows(connection, copy, place)
        connection.execute(sql.SQL("DROP TABLE {}").format(identifier(copy.place)))
        return replace(after, storage=read_storage(connection, after))
    if row.relation:
        drop_table(connection, row)
    relation = _move(connection, copy, place)
    state.guard(connection, place)
    after = replace(after, relation=relation)
    return replace(after, storage=read_storage(connection, after))


def drop_all(connection: WatchedConnection, state: State, row: TableRow, *, keep: str | None = None) -> None:
    """Drop all shadow copies of the table, except that with the ID ``keep``."""
    find = sql.SQL(
        "DELETE FROM {} WHERE source_id = %s AND table_id = %s AND pipeline = ANY (%s)"
        " AND copy_id::text IS DISTINCT FROM %s RETURNING copy_id, schema_name, table_name"
    ).format(state.table(COPIES))
    owner = row.owner
    names = list({owner.pipeline, *state.owner.names()})
    found = connection.execute(find, [owner.source_id, int(owner.table), names, keep]).fetchall()
    for copy_id, schema, name in found:
        _forget_parts(connection, state, copy_id)
        copy = QualifiedTable(schema, name)
        end_writers(connection, copy)
        connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(identifier(copy)))


def _forget_parts(connection: WatchedConnection, state: State, copy_id: str) -> None:
    connection.execute(sql.SQL("DELETE FROM {} WHERE copy_id = %s").format(state.table(PARTS)), [copy_id])


def drop_table(connection: WatchedConnection, row: TableRow) -> None:
    """Drop the serving table. A missing table is no error, and one that was renamed is left to those who renamed it."""
    if find_relation(connection, row.place) == row.relation:
        lock_exclusively(connection, row.place)
        connection.execute(sql.SQL("DROP TABLE {}").format(identifier(row.place)))


def _kept(
    connection: WatchedConnection, row: TableRow, copy: ShadowCopy, place: QualifiedTable
) -> tuple[sql.Composable, ...] | None:
    """Return the changes of columns that keep the table, or None if it must be dropped."""
    if not row.relation or row.place != place or row.mode is not copy.mode or set(row.key) != set(copy.schema.key):
        return None
    try:
        check_intact(connection, row)
    except DestinationChanged as error:
        if error.code == codes.DESTINATION_CASCADE:
            raise
        # After writes by another session, the rows are replaced anyway.
        if error.code != codes.FOREIGN_WRITE:
            return None
    try:
        step = reconcile(row.layout, copy.schema, copy.mode, OnSchemaChange.PROPAGATE)
    except NeedsOperator:
        return None
    return step.clauses


def _replace_rows(connection: WatchedConnection, copy: ShadowCopy, place: QualifiedTable) -> None:
    table, shadow = identifier(place), identifier(copy.place)
    columns = sql.SQL(", ").join(map(sql.Identifier, copy.columns()))
    if copy.mode is TableMode.CHANGELOG:
        connection.execute(sql.SQL("DELETE FROM {}").format(table))
        connection.execute(sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {}").format(table, columns, columns, shadow))
        return
    keys = [c for c in copy.layout.columns if c.attnum in copy.schema.key]
    same = sql.SQL(" AND ").join(sql.SQL("s.{0} = t.{0}").format(sql.Identifier(k.name)) for k in keys)
    connection.execute(
        sql.SQL("DELETE FROM {} t WHERE NOT EXISTS (SELECT FROM {} s WHERE {})").format(table, shadow, same)
    )
    connection.execute(upsert_statement(table, copy.columns(), keys, shadow, copy.columns(), only_changed=True))


def upsert_statement(
    table: sql.Composable,
    columns: Sequence[str],
    keys: Sequence[HeldColumn],
    source: sql.Composable,
    source_columns: Sequence[str],
    *,
    only_changed: bool = False,
    cleared: Sequence[str] = (),
) -> sql.Composed:
    """Return the INSERT … ON CONFLICT of all rows of ``source``. Columns that are ``cleared`` become NULL.

    If ``only_changed``, a row stays as it is if each value has the same bytes (PostgreSQL manual, "Composite Type
    Comparison").
    """
    names = list(map(sql.Identifier, (*columns, *cleared)))
    # A column of the key is assigned only if needed, because the row's lock then makes foreign keys to it wait.
    same = {k.name for k in keys if equal_is_identical(k.type)}
    changing = [c for c in (*columns, *cleared) if c not in same]
    assigned = [sql.SQL("{0} = excluded.{0}").format(sql.Identifier(c)) for c in changing]
    action: sql.Composable = sql.SQL("UPDATE SET {}").format(sql.SQL(", ").join(assigned))
    if not assigned:
        action = sql.SQL("NOTHING")
    elif only_changed:
        now = sql.SQL(", ").join(sql.SQL("t.{}").format(n) for n in names)
        new = sql.SQL(", ").join(sql.SQL("excluded.{}").format(n) for n in names)
        action = sql.SQL("{} WHERE ROW({})::record *<> ROW({})::record").format(action, now, new)
    return sql.SQL("INSERT INTO {} AS t ({}) SELECT {} FROM {} ON CONFLICT ({}) DO {}").format(
        table,
        sql.SQL(", ").join(names),
        sql.SQL(", ").join([*map(sql.Identifier, source_columns), *(sql.NULL for _ in cleared)]),
        source,
        sql.SQL(", ").join(sql.Identifier(k.name) for k in keys),
        action,
    )


def _move(connection: WatchedConnection, copy: ShadowCopy, place: QualifiedTable) -> int:
    """Give the copy the name ``place``. Return its OID."""
    rename = sql.SQL("ALTER TABLE {} RENAME TO {}")
    connection.execute(rename.format(identifier(copy.place), sql.Identifier(place.name)))
    found = connection.execute(
        "SELECT c.oid::bigint, k.conname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " LEFT JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype = 'p' WHERE n.nspname = %s AND c.relname = %s",
        [place.schema, place.name],
    ).fetchone()
    assert found is not None
    relation, key = found
    wanted = place.name.encode()[:_KEY_BYTES].decode("utf-8", "ignore") + "_pkey"
    taken = "SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE nspname = %s AND relname = %s"
    if key is not None and connection.execute(taken, [place.schema, wanted]).rowcount == 0:
        connection.execute(
            sql.SQL("ALTER TABLE {} RENAME CONSTRAINT {} TO {}").format(
                identifier(place), sql.Identifier(key), sql.Identifier(wanted)
            )
        )
    return int(relation)
