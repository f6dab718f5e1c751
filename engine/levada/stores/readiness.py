"""The check of a PostgreSQL store before a start: its privileges and its content. It changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import source_errors
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.lock_holders import store_holder_named
from levada.stores.codecs import PHASES
from levada.stores.migrations import MIGRATIONS, TABLES, store_version
from levada.stores.phases import DataSync, Init
from levada.stores.rights import read_rights
from levada.stores.schema_owner import require_own_schema
from levada.stores.storage import decoded


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

    Raise NeedsOperator ``store_privilege_missing`` with every missing privilege, ``store_schema_foreign`` if another
    role may own objects in it, and ``store_newer`` if a newer release of Levada has migrated it.
    """
    with (
        SESSIONS.session(connection, "check") as conn,
        store_holder_named(conn, schema),
        source_errors(f"checking the store in schema {schema}"),
    ):
        require_own_schema(conn, schema, TABLES)
        rights = read_rights(conn, schema)
        if rights.missing:
            raise NeedsOperator("store_privilege_missing", rights.message, hint=rights.grants)
        version = store_version(conn, schema) if rights.schema_exists else 0
        return FoundStore(version == len(MIGRATIONS), version > 0 and _has_copies(conn, pipeline, schema))


def postgres_store_exists(connection: PostgresConnection, schema: str) -> bool:
    """Return True if the schema has a store. Unlike opening a store, this creates none."""
    with (
        SESSIONS.session(connection, "status") as conn,
        store_holder_named(conn, schema),
        source_errors(f"looking for the store in schema {schema}"),
    ):
        return store_version(conn, schema) > 0


def _has_copies(conn: psycopg.Connection[Any], pipeline: str, schema: str) -> bool:
    query = sql.SQL("SELECT content FROM {} WHERE pipeline = %s AND kind = %s").format(
        sql.Identifier(schema, "documents")
    )
    where = f"pipeline {pipeline}: the stored {PHASES.name} of a table in schema {schema}"
    phases = (decoded(PHASES, content, where) for (content,) in conn.execute(query, [pipeline, PHASES.name]))
    return any(not isinstance(phase, Init | DataSync) for phase in phases)
