"""The privileges that a PostgreSQL store needs in its schema, and the SQL that grants those that are missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.postgres.failures import source_errors

# What a current store executes. Of several privileges in one call, has_table_privilege requires only one.
_RIGHTS: Final = """
SELECT current_user::text, current_database()::text, n.oid IS NOT NULL,
    has_database_privilege(current_database(), 'CREATE'),
    n.oid IS NOT NULL AND has_schema_privilege(n.oid, 'USAGE') AND has_schema_privilege(n.oid, 'CREATE'),
    NOT EXISTS (SELECT FROM pg_class c JOIN (VALUES ('store_migrations', 'SELECT'),
            ('epochs', 'SELECT'), ('epochs', 'INSERT'), ('epochs', 'UPDATE'),
            ('documents', 'SELECT'), ('documents', 'INSERT'), ('documents', 'UPDATE'), ('documents', 'DELETE')
        ) AS needed (name, privilege) ON c.relname = name
        WHERE c.relnamespace = n.oid AND c.relkind = 'r' AND NOT has_table_privilege(c.oid, privilege))
FROM (SELECT) one LEFT JOIN pg_namespace n ON n.nspname = %s
"""


@dataclass(frozen=True, slots=True)
class StoreRights:
    """The privileges of a connection's role on the schema of a store.

    ``missing`` has a text and the statement that grants the privilege, for each one that the role does not have.
    """

    schema_exists: bool
    missing: tuple[tuple[str, str], ...]

    @property
    def message(self) -> str:
        """The missing privileges."""
        return "; ".join(message for message, _ in self.missing)

    @property
    def grants(self) -> str:
        """The statements that grant them."""
        return " ".join(grant for _, grant in self.missing)


def read_rights(connection: psycopg.Connection[Any], schema: str) -> StoreRights:
    """Return the privileges of the role on the schema and its tables. The schema need not exist."""
    with source_errors(f"reading the privileges on the store's schema {schema}"):
        row = connection.execute(_RIGHTS, [schema]).fetchone()
    assert row is not None
    return StoreRights(row[2], tuple(_missing(schema, *row)))


def _missing(
    schema: str, role: str, database: str, exists: bool, may_create: bool, may_use: bool, may_write: bool
) -> Iterator[tuple[str, str]]:
    lacks = f"role {role} has no privilege to"
    if not exists:
        if not may_create:
            message = f"{lacks} create the store's schema {schema} in database {database}"
            yield message, _grant("GRANT CREATE ON DATABASE {} TO {};", database, role)
        return
    if not may_use:
        message = f"{lacks} use the store's schema {schema}"
        yield message, _grant("GRANT USAGE, CREATE ON SCHEMA {} TO {};", schema, role)
    if not may_write:
        message = f"{lacks} write the tables of the store's schema {schema}"
        yield message, _grant("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {} TO {};", schema, role)


def _grant(statement: LiteralString, *names: str) -> str:
    return sql.SQL(statement).format(*map(sql.Identifier, names)).as_string(None)
