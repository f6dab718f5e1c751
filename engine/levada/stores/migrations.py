"""The tables of `PostgresStore`, as versioned migrations that are never edited after their release.

A table of the same schema records the applied migrations. They are applied under an advisory lock, so that drivers that
start simultaneously do not conflict. A schema that a newer Levada has migrated is refused.
"""

from __future__ import annotations

import re
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from levada.errors import NeedsOperator
from levada.postgres.locks import courtesy_lock
from levada.stores.schema_owner import require_own_schema

MIGRATIONS: Final[tuple[LiteralString, ...]] = (
    """
    create table pipelines (
        name text primary key,
        epoch bigint not null default 0,
        created_at timestamptz not null default now()
    );

    -- A chain per table: the current row, the previous current row, and so on.
    create table table_phases (
        id bigint generated always as identity primary key,
        pipeline text not null references pipelines,
        table_id oid not null,
        -- json, not jsonb: an error's reason may contain characters that jsonb rejects.
        phase json not null,
        previous_id bigint references table_phases on delete set null,
        is_current boolean not null default true,
        epoch bigint not null,
        created_at timestamptz not null default now()
    );
    create unique index table_phases_current on table_phases (pipeline, table_id) where is_current;
    create index table_phases_chain on table_phases (pipeline, table_id, id);
    create index table_phases_previous on table_phases (previous_id);

    create table table_schemas (
        pipeline text not null references pipelines,
        table_id oid not null,
        snapshot_id pg_lsn not null,
        definition jsonb not null,
        created_at timestamptz not null default now(),
        primary key (pipeline, table_id, snapshot_id)
    );

    create table destination_tables (
        pipeline text not null references pipelines,
        table_id oid not null,
        destination_table text not null,
        snapshot_id pg_lsn not null,
        primary key (pipeline, table_id)
    );

    create table progress (
        pipeline text not null references pipelines,
        worker text not null,
        lsn pg_lsn not null,
        updated_at timestamptz not null default now(),
        primary key (pipeline, worker)
    );

    create table table_actions (
        pipeline text not null references pipelines,
        table_id oid not null,
        action text not null,
        requested_at timestamptz not null default now(),
        primary key (pipeline, table_id)
    );
    """,
    """
    create table table_controls (
        pipeline text not null references pipelines,
        table_id oid not null,
        retry_nonce bigint not null,
        resync_nonce bigint not null,
        made_as text not null,
        primary key (pipeline, table_id)
    );
    """,
    """
    create table copy_orders (
        pipeline text not null references pipelines,
        table_id oid not null,
        token text not null,
        epoch bigint not null,
        worker text not null,
        answer text not null,
        primary key (pipeline, table_id)
    );
    """,
    """
    create table fingerprints (
        pipeline text not null references pipelines,
        subject text not null,
        fingerprint text not null,
        primary key (pipeline, subject)
    );
    """,
    """
    -- The Pipeline that owns the state, NULL once it is released, with the slot and the publication of that state, and
    -- the full names of former owners.
    alter table pipelines
        add column owner_uid text,
        add column owner_name text,
        add column slot text,
        add column publication text,
        add column former_names text[] not null default '{}';
    """,
    """
    -- Never read: a destination names its tables itself.
    drop table destination_tables;
    """,
)

TABLES: Final = ("store_migrations", *re.findall(r"create table (\w+)", "".join(MIGRATIONS)))
"""The names of all tables that the migrations create or drop."""

_Connection = psycopg.Connection[tuple[Any, ...]]


def migrate(connection: _Connection, schema: str) -> None:
    """Create or migrate the schema's tables, and put the schema on the connection's search path.

    A current schema is only read. Raise NeedsOperator ``store_newer`` if a newer Levada has migrated it, and
    ``store_schema_foreign`` if another role may own objects in it.
    """
    if store_version(connection, schema) == len(MIGRATIONS):
        _search(connection, schema)
        return
    with connection.transaction():
        courtesy_lock(connection, f"levada store {schema}")
        # CREATE SCHEMA IF NOT EXISTS requires a privilege on the database even if the schema exists.
        if not connection.execute("SELECT FROM pg_namespace WHERE nspname = %s", [schema]).fetchall():
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(schema)))
        _search(connection, schema)
        version = store_version(connection, schema)
        if version == 0:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS store_migrations"
                " (version int PRIMARY KEY, applied_at timestamptz NOT NULL DEFAULT now())"
            )
        for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
            connection.execute(step)
            connection.execute("INSERT INTO store_migrations (version) VALUES (%s)", [number])


def store_version(connection: _Connection, schema: str) -> int:
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
    if version > len(MIGRATIONS):
        raise NeedsOperator(
            "store_newer",
            f"schema {schema!r} was migrated to version {version}, but this Levada has version {len(MIGRATIONS)}",
            hint="run the Levada release that migrated it, or a later one",
        )
    return int(version)


def _search(connection: _Connection, schema: str) -> None:
    connection.execute("SELECT set_config('search_path', quote_ident(%s) || ', pg_temp', false)", [schema])
