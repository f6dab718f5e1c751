"""Levada's own tables at the destination: the owner, the columns, the epoch and the watermark of each table.

A transaction that changes a table locks its row here first. So only one driver writes a table at a time, and an old
driver sees the newer epoch before it writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from levada.destinations.interface import TableMode
from levada.destinations.ownership import Owner, TableOwner
from levada.destinations.postgres.columns import Layout, Storage
from levada.destinations.postgres.connections import lock_exclusively
from levada.destinations.postgres.naming import identifier
from levada.destinations.stored_rows import StoredRows, read_lsn
from levada.errors import AccessDenied, NeedsOperator
from levada.postgres.sessions import end_sessions
from levada.postgres.silence import WatchedConnection
from levada.stores.schema_owner import require_own_schema
from levada.values import Lsn, QualifiedTable, TableId, quote_identifier

TABLES: Final = "destination_tables"
COPIES: Final = "destination_copies"
PARTS: Final = "destination_copy_parts"
GUARD: Final = "levada_guard"

_CREATE: Final = """
CREATE TABLE IF NOT EXISTS {schema}.destination_tables (
    pipeline text NOT NULL, source_id text NOT NULL, table_id bigint NOT NULL,
    source_schema text NOT NULL, source_name text NOT NULL,
    schema_name text NOT NULL, table_name text NOT NULL, relation oid NOT NULL,
    mode text NOT NULL, key_attnums smallint[] NOT NULL, columns json NOT NULL,
    epoch bigint NOT NULL, lsn pg_lsn, storage json, updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (pipeline, source_id, table_id), UNIQUE (schema_name, table_name));
CREATE TABLE IF NOT EXISTS {schema}.destination_copies (
    copy_id uuid PRIMARY KEY, pipeline text NOT NULL, source_id text NOT NULL, table_id bigint NOT NULL,
    schema_name text NOT NULL, table_name text NOT NULL, is_open boolean NOT NULL, lsn pg_lsn NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.destination_copy_parts (
    part_id uuid PRIMARY KEY, copy_id uuid NOT NULL, inserted_by xid NOT NULL, range_name text,
    row_count bigint, unrepresentable bigint);
CREATE OR REPLACE FUNCTION {schema}.levada_guard() RETURNS trigger LANGUAGE plpgsql AS $guard$
BEGIN
    IF current_setting('levada.writer', true) IS DISTINCT FROM 'on' THEN
        RAISE EXCEPTION 'table %.% is written by Levada and read-only for others', TG_TABLE_SCHEMA, TG_TABLE_NAME
            USING ERRCODE = 'read_only_sql_transaction', HINT = 'Change the rows in the source database.';
    END IF;
    RETURN NULL;
END $guard$
"""


_LACKS: Final = """
SELECT NOT (has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE')),
    bool_or(NOT (has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT')
        AND has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE'))),
    quote_ident(current_user)
FROM pg_namespace n JOIN pg_class c ON c.relnamespace = n.oid JOIN pg_roles r ON r.oid = c.relowner
WHERE n.nspname = %(schema)s AND c.relname = ANY (%(tables)s::text[]) AND r.rolname = current_user
GROUP BY n.oid
"""
"""The privileges that the role lacks on the state's schema and on its own tables in it. No row without such tables."""
_OLDEST: Final = 140_000

_RELATION: Final = """
SELECT c.oid::bigint FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE n.nspname = %s AND c.relname = %s
"""

_RELATIONS: Final = """
SELECT c.oid::bigint, n.nspname, c.relname FROM unnest(%s::text[], %s::text[]) AS w (schema, name)
JOIN pg_namespace n ON n.nspname = w.schema JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = w.name
"""

_HOLDERS: Final = """
SELECT DISTINCT a.pid FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid AND a.pid <> pg_backend_pid() AND a.usename = session_user"""
"""The sessions of Levada's login that hold locks, of which the caller adds the condition."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """The state of one table."""

    owner: TableOwner
    place: QualifiedTable
    relation: int
    """The OID of the table at the destination, 0 before the first copy is complete."""
    mode: TableMode
    key: tuple[int, ...]
    layout: Layout
    epoch: int
    lsn: Lsn | None
    """The watermark, or None if there is no complete copy."""
    storage: Storage | None = None
    """The storage after Levada's last change of the table, or None before the first one."""


class State(StoredRows[TableRow]):
    """The statements on the state, each in a transaction of the caller."""

    source_table = "table_id"
    columns = (
        "schema_name", "table_name", "relation", "mode", "key_attnums", "columns", "epoch", "lsn", "storage"
    )  # fmt: skip
    also_set = sql.SQL(", updated_at = now()")

    def __init__(self, schema: str, owner: Owner) -> None:
        super().__init__(owner, sql.Identifier(schema, TABLES))
        self.schema = schema

    def create(self, connection: WatchedConnection) -> None:
        """Create the schema and its tables if they are missing. Raise NeedsOperator if the schema is another role's."""
        _check_server(connection)
        connection.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 20413))", [self.schema])
        # First, because an owner without its privileges would count as another role.
        self._require_rights(connection)
        if not self.exists(connection):
            connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(self.schema)))
        if not self.is_created(connection):
            connection.execute(sql.SQL(_CREATE).format(schema=sql.Identifier(self.schema)))

    def is_created(self, connection: WatchedConnection) -> bool:
        """Return True if the tables of the state exist."""
        return find_relation(connection, QualifiedTable(self.schema, PARTS)) is not None

    def exists(self, connection: WatchedConnection) -> bool:
        """Return True if the schema exists. Raise NeedsOperator if it is another role's."""
        try:
            return require_own_schema(connection, self.schema, (TABLES, COPIES, PARTS))
        except NeedsOperator as error:
            message = error.message.replace("of the store", "of the destination's state")
            hint = error.hint.partition("; or set")[0] + "; or set another stateSchema in the destination's settings"
            raise NeedsOperator("destination_schema_foreign", message, hint=hint) from None

    def _require_rights(self, connection: WatchedConnection) -> None:
        """Raise AccessDenied ``destination_privilege_missing`` if the role has lost privileges on what it owns."""
        found = connection.execute(_LACKS, {"schema": self.schema, "tables": [TABLES, COPIES, PARTS]}).fetchone()
        schema_lacks, table_lacks, role = found or (False, False, "")
        if not (schema_lacks or table_lacks):
            return
        schema, database = quote_identifier(self.schema), connection.info.dbname
        grants = [
            *([f"GRANT USAGE, CREATE ON SCHEMA {schema} TO {role}"] if schema_lacks else []),
            *([f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}"] * table_lacks),
        ]
        raise AccessDenied(
            "destination_privilege_missing",
            f"role {role} may not use schema {self.schema} of database {database}, where the destination's state is",
            hint=f"in database {database}: {'; '.join(grants)};",
        )

    def end_older_writer(self, connection: WatchedConnection, table: TableId, epoch: int) -> None:
        """End the session of an older driver that has locked the table's state.

        A process that is stopped keeps its transaction open, and its kernel keeps the connection alive. Who has locked
        a row is its xmax.
        """
        find = sql.SQL(
            _HOLDERS + " JOIN {} t ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = t.xmax"
        )
        where = sql.SQL(" WHERE t.source_id = %s AND t.table_id = %s AND t.pipeline = ANY (%s) AND t.epoch < %s")
        parameters = [self.owner.source_id, int(table), self.owner.names(), epoch]
        found = connection.execute(find.format(self.table(TABLES)) + where, parameters)
        end_sessions(connection, [pid for (pid,) in found.fetchall()])

    def at(self, connection: WatchedConnection, place: QualifiedTable) -> TableRow | None:
        """Lock and return the state of the table of this name, of whatever owner, or None."""
        where = sql.SQL("schema_name = %s AND table_name = %s")
        return self._select(connection, where, [place.schema, place.name], lock=True)

    def taken(self, connection: WatchedConnection, places: Sequence[QualifiedTable]) -> frozenset[QualifiedTable]:
        """Return those of the places that a table of whatever owner has."""
        query = sql.SQL(
            "SELECT t.schema_name, t.table_name FROM {} t JOIN unnest(%s::text[], %s::text[]) AS w (schema, name)"
            " ON t.schema_name = w.schema AND t.table_name = w.name"
        ).format(self.table(TABLES))
        found = connection.execute(query, [[p.schema for p in places], [p.name for p in places]])
        return frozenset(QualifiedTable(*row) for row in found)

    def places(self, connection: WatchedConnection) -> frozenset[QualifiedTable]:
        """Return the tables of this database that pipelines write, of whatever owner."""
        found = connection.execute(sql.SQL("SELECT schema_name, table_name FROM {}").format(self.table(TABLES)))
        return frozenset(QualifiedTable(*row) for row in found)

    def is_table_of_levada(self, connection: WatchedConnection, name: QualifiedTable) -> bool:
        """Return True if this database has a table of this name that a pipeline writes."""
        return self.at(connection, name) is not None

    def guard(self, connection: WatchedConnection, place: QualifiedTable) -> None:
        """Make the table read-only for every session other than Levada's. Readers do not wait."""
        for statement in guarding(self, place):
            connection.execute(statement)

    def unguard(self, connection: WatchedConnection, row: TableRow) -> None:
        """Let every session write the table again. One that was renamed or dropped is no error."""
        found = connection.execute(
            "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = %s",
            [row.relation],
        ).fetchone()
        if found is not None:
            table = identifier(QualifiedTable(*found))
            lock_exclusively(connection, QualifiedTable(*found))
            connection.execute(sql.SQL("DROP TRIGGER IF EXISTS levada_guard ON {}").format(table))

    def table(self, name: str) -> sql.Identifier:
        """Return the quoted name of a table or function of the state."""
        return sql.Identifier(self.schema, name)

    def _read(self, owner: TableOwner, values: Sequence[Any]) -> TableRow:
        schema, name, relation, mode, key, columns, epoch, lsn, storage = values
        return TableRow(
            owner,
            QualifiedTable(schema, name),
            relation,
            TableMode(mode),
            tuple(key),
            Layout.from_json(columns),
            epoch,
            read_lsn(lsn),
            None if storage is None else Storage.from_json(storage),
        )

    def _written(self, row: TableRow) -> Sequence[Any]:
        lsn, storage = None if row.lsn is None else str(row.lsn), row.storage
        place, made = (row.place.schema, row.place.name, row.relation), (row.mode.value, list(row.key))
        stored = None if storage is None else storage.to_json()
        return *place, *made, row.layout.to_json(), row.epoch, lsn, stored


def guarding(state: State, place: QualifiedTable) -> Sequence[sql.Composed]:
    """Return the statements that make a table read-only for every session other than Levada's."""
    create = sql.SQL(
        "CREATE OR REPLACE TRIGGER levada_guard BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON {}"
        " FOR EACH STATEMENT EXECUTE FUNCTION {}()"
    ).format(identifier(place), state.table(GUARD))
    # Also for sessions whose session_replication_role is replica, such as those of a subscription.
    return create, sql.SQL("ALTER TABLE {} ENABLE ALWAYS TRIGGER levada_guard").format(identifier(place))


def find_relations(connection: WatchedConnection, names: Sequence[QualifiedTable]) -> Mapping[QualifiedTable, int]:
    """Return the OIDs of those relations that exist."""
    found = connection.execute(_RELATIONS, [[n.schema for n in names], [n.name for n in names]])
    return {QualifiedTable(schema, name): oid for oid, schema, name in found}


def find_relation(connection: WatchedConnection, name: QualifiedTable) -> int | None:
    """Return the OID of the relation of this name, or None."""
    found = connection.execute(_RELATION, [name.schema, name.name]).fetchone()
    return None if found is None else int(found[0])


def end_writers(connection: WatchedConnection, table: QualifiedTable) -> None:
    """End the sessions that write a shadow copy, before it is dropped. A stopped process holds its lock."""
    found = connection.execute(
        f"{_HOLDERS} WHERE l.locktype = 'relation' AND l.mode = 'RowExclusiveLock' AND l.relation = %s"
        " AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())",
        [find_relation(connection, table)],
    )
    end_sessions(connection, [pid for (pid,) in found.fetchall()])


def _check_server(connection: WatchedConnection) -> None:
    found = connection.execute("SELECT current_setting('server_encoding')").fetchone()
    encoding = "" if found is None else found[0]
    if connection.info.server_version < _OLDEST or encoding != "UTF8":
        raise NeedsOperator(
            "destination_unsupported",
            f"the destination's database has the encoding {encoding} on PostgreSQL"
            f" {connection.info.server_version // 10_000}, but Levada needs UTF8 and 14 or later",
            hint="set database in the destination's settings to one of: CREATE DATABASE … ENCODING 'UTF8' TEMPLATE"
            " template0",
        )
