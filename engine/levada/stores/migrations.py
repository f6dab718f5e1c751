"""The tables of `PostgresStore`, as versioned migrations that are never edited after their release.

A table of the same schema records the applied migrations. They are applied under an advisory lock, so that drivers that
start simultaneously do not conflict. A schema that a newer Levada has migrated is refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.sessions import courtesy_lock
from levada.stores.schema_owner import require_own_schema

MIGRATIONS: Final[tuple[LiteralString, ...]] = (
    """
    create table epochs (
        pipeline text primary key,
        epoch bigint not null default 0,
        created_at timestamptz not null default now()
    );

    create table documents (
        pipeline text not null references epochs,
        kind text not null,
        -- 0 for a document of the whole pipeline.
        table_id oid not null,
        name text not null,
        -- json, not jsonb: an error's reason may contain characters that jsonb rejects.
        content json not null,
        updated_at timestamptz not null default now(),
        primary key (pipeline, kind, table_id, name)
    );

    -- The Pipeline that owns the state, NULL once it is released, with the slot and the publication of that state, and
    -- the full names of former owners.
    create view pipelines as
    select e.pipeline as name, e.epoch, e.created_at,
        o.content->>'uid' as owner_uid, o.content->>'name' as owner_name,
        o.content->>'slot' as slot, o.content->>'publication' as publication,
        array(select json_array_elements_text(o.content->'former')) as former_names
    from epochs e left join documents o on o.pipeline = e.pipeline and o.kind = 'owner';
    """,
)

TABLES: Final = ("store_migrations", *re.findall(r"create (?:table|view) (\w+)", "".join(MIGRATIONS)))
"""The names of all tables and views that the migrations create or drop."""

_Connection = psycopg.Connection[tuple[Any, ...]]


def migrate(connection: _Connection, schema: str, migrations: Sequence[LiteralString] = MIGRATIONS) -> None:
    """Create or migrate the schema's tables, and put the schema on the connection's search path.

    A current schema is only read. Raise NeedsOperator ``store_newer`` if a newer Levada has migrated it, and
    ``store_schema_foreign`` if another role may own objects in it.
    """
    if use_current(connection, schema, migrations):
        return
    with connection.transaction():
        courtesy_lock(connection, f"levada store {schema}")
        # CREATE SCHEMA IF NOT EXISTS requires a privilege on the database even if the schema exists.
        if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchall():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        _search(connection, schema)
        version = store_version(connection, schema, migrations)
        if version == 0:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS store_migrations"
                " (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            )
        for number, step in enumerate(migrations[version:], start=version + 1):
            connection.execute(step)
            connection.execute("INSERT INTO store_migrations (version) VALUES (%s)", [number])


def use_current(connection: _Connection, schema: str, migrations: Sequence[LiteralString] = MIGRATIONS) -> bool:
    """Put the schema on the connection's search path if it is current. Return False if it is not. Nothing is created.

    Raise as `store_version` does.
    """
    if store_version(connection, schema, migrations) != len(migrations):
        return False
    _search(connection, schema)
    return True


def store_version(connection: _Connection, schema: str, migrations: Sequence[LiteralString] = MIGRATIONS) -> int:
    """Return the number of migrations that were applied to the schema, 0 if it has no store.

    Raise NeedsOperator ``store_newer`` if that is more than this release has, and ``store_schema_foreign`` if another
    role may own objects in the schema.
    """
    # First, because reading another role's view runs its functions.
    if not require_own_schema(connection, schema, TABLES):
        return 0
    ledger = connection.execute(
        "SELECT FROM pg_tables WHERE schemaname = %s AND tablename = 'store_migrations'", [schema]
    ).fetchall()
    if not ledger:
        return 0
    query = sql.SQL("SELECT coalesce(max(version), 0) FROM {}").format(sql.Identifier(schema, "store_migrations"))
    (version,) = connection.execute(query).fetchone() or (0,)
    if version > len(migrations):
        raise NeedsOperator(
            "store_newer",
            f"schema {schema} was migrated to version {version}, but this Levada has version {len(migrations)}",
            hint="run the Levada release that migrated it, or a later one",
        )
    return int(version)


def _search(connection: _Connection, schema: str) -> None:
    connection.execute("SELECT set_config('search_path', quote_ident(%s) || ', pg_temp', false)", [schema])
