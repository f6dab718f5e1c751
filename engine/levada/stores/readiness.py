"""The check of a PostgreSQL store before a start: its privileges and its content. It changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.stores.codecs import PHASES
from levada.stores.migrations import MIGRATIONS, TABLES, store_version
from levada.stores.phases import DataSync, Init
from levada.stores.schema_owner import require_own_schema
from levada.stores.storage import decoded

_RIGHTS: Final = """
SELECT current_user::text, current_database()::text, n.oid IS NOT NULL,
    has_database_privilege(current_database(), 'CREATE'),
    n.oid IS NOT NULL AND has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE'),
    NOT EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relkind = 'r'
        AND NOT has_table_privilege(c.oid, 'SELECT, INSERT, UPDATE, DELETE'))
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s
"""


@dataclass(frozen=True, slots=True)
class FoundStore:
    """The state of an existing or missing store.

    ``current`` is True if it can be opened without a migration. ``has_copies`` is True if a table of the pipeline was
    copied.
    """

    current: bool
    has_copies: bool


def check_postgres_store(connection: PostgresConnection, pipeline: str, schema: str) -> FoundStore:
    """Return the state of the store.

    Raise NeedsOperator ``store_privilege_missing`` if the role may neither use nor create the schema,
    ``store_schema_foreign`` if another role may own objects in it, and ``store_newer`` if a newer release of Levada has
    migrated it.
    """
    with connection.connect(application="check") as conn, source_errors(f"checking the store in schema {schema}"):
        require_own_schema(conn, schema, TABLES)
        row = conn.execute(_RIGHTS, [schema]).fetchone()
        assert row is not None
        role, database, exists, may_create, may_use, may_write = row
        if not exists and not may_create:
            raise _refused(
                f"role {role} has no privilege to create the store's schema {schema} in database {database}",
                "GRANT CREATE ON DATABASE {} TO {}",
                database,
                role,
            )
        if exists and not may_use:
            raise _refused(
                f"role {role} has no privilege to use the store's schema {schema}",
                "GRANT USAGE, CREATE ON SCHEMA {} TO {}",
                schema,
                role,
            )
        if exists and not may_write:
            raise _refused(
                f"role {role} has no privilege to write the tables of the store's schema {schema}",
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {}",
                schema,
                role,
            )
        version = store_version(conn, schema) if exists else 0
        return FoundStore(version == len(MIGRATIONS), version > 0 and _has_copies(conn, pipeline, schema))


def postgres_store_exists(connection: PostgresConnection, schema: str) -> bool:
    """Return True if the schema has a store. Unlike opening a store, this creates none."""
    with connection.connect(application="status") as conn, source_errors(f"looking for the store in schema {schema}"):
        return store_version(conn, schema) > 0


def _has_copies(conn: psycopg.Connection[Any], pipeline: str, schema: str) -> bool:
    query = sql.SQL("SELECT content FROM {} WHERE pipeline = %s AND kind = %s").format(
        sql.Identifier(schema, "documents")
    )
    where = f"pipeline {pipeline}: the stored {PHASES.name} of a table in schema {schema}"
    phases = (decoded(PHASES, content, where) for (content,) in conn.execute(query, [pipeline, PHASES.name]))
    return any(not isinstance(phase, Init | DataSync) for phase in phases)


def _refused(message: str, grant: LiteralString, *names: str) -> NeedsOperator:
    hint = sql.SQL(grant).format(*map(sql.Identifier, names)).as_string(None)
    return NeedsOperator("store_privilege_missing", message, hint=hint)
