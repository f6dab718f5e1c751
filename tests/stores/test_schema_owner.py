"""The owner of a store's schema: a role without rights can neither read nor steer the engine's state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import LiteralString

import pytest
from tests.rigs.database import Database

from levada.errors import NeedsOperator
from levada.postgres.connection import PostgresConnection
from levada.stores import PostgresStore
from levada.stores.readiness import check_postgres_store, postgres_store_exists

# Levada's own role is no superuser here: what a superuser may do hides who owns what.
OWN, OTHER = "engine_role", "squatter"
SQUATTED: dict[str, tuple[LiteralString, ...]] = {
    "an empty schema": ("CREATE SCHEMA levada AUTHORIZATION squatter",),
    "tables with a trigger": (
        "CREATE SCHEMA levada AUTHORIZATION squatter",
        "GRANT USAGE, CREATE ON SCHEMA levada TO PUBLIC",
        "SET ROLE squatter",
        "CREATE TABLE levada.store_migrations (version int, applied_at timestamptz DEFAULT now())",
        "INSERT INTO levada.store_migrations VALUES (1)",
        "CREATE FUNCTION levada.spy() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''ran with rights of %'', current_user; END'",
        "CREATE TABLE levada.epochs (pipeline text PRIMARY KEY, epoch bigint DEFAULT 0)",
        "CREATE TRIGGER spy BEFORE INSERT OR UPDATE ON levada.epochs EXECUTE FUNCTION levada.spy()",
        "GRANT ALL ON ALL TABLES IN SCHEMA levada TO PUBLIC",
        "RESET ROLE",
    ),
    "a view in place of a table": (
        "CREATE SCHEMA levada AUTHORIZATION squatter",
        "GRANT USAGE, CREATE ON SCHEMA levada TO PUBLIC",
        "SET ROLE squatter",
        "CREATE FUNCTION levada.spy() RETURNS int LANGUAGE plpgsql AS"
        " 'BEGIN RAISE EXCEPTION ''ran with rights of %'', current_user; END'",
        "CREATE TABLE levada.store_migrations AS SELECT 1 AS version",
        "CREATE VIEW levada.documents AS SELECT levada.spy() AS content",
        "GRANT ALL ON ALL TABLES IN SCHEMA levada TO PUBLIC",
        "RESET ROLE",
    ),
    "a schema in which every role may create": (
        "CREATE SCHEMA levada AUTHORIZATION engine_role",
        "GRANT USAGE, CREATE ON SCHEMA levada TO PUBLIC",
    ),
    "a table from the time when every role might create": (
        "CREATE SCHEMA levada AUTHORIZATION engine_role",
        "GRANT USAGE, CREATE ON SCHEMA levada TO PUBLIC",
        "SET ROLE squatter",
        "CREATE TABLE levada.store_migrations AS SELECT 1 AS version",
        "GRANT ALL ON ALL TABLES IN SCHEMA levada TO PUBLIC",
        "RESET ROLE",
        "REVOKE CREATE ON SCHEMA levada FROM PUBLIC",
    ),
}


@pytest.fixture
def own(db: Database) -> PostgresConnection:
    """The source as Levada's role reaches it, in a database in which another role may create schemas."""
    roles: tuple[LiteralString, ...] = ("CREATE ROLE engine_role LOGIN", "CREATE ROLE squatter LOGIN")
    existing = {name for (name,) in db.query("SELECT rolname FROM pg_roles")}
    db.execute(*(r for r in roles if r.split()[2] not in existing))
    with db.connect() as admin:
        admin.execute(f'GRANT CREATE ON DATABASE "{db.name}" TO {OWN}, {OTHER}')
    return replace(db.connection, user=OWN)


def open_store(own: PostgresConnection) -> None:
    """Open the store and write to it."""
    store = PostgresStore(own, "shop")
    try:
        store.next_epoch()
    finally:
        store.close()


@pytest.mark.parametrize("squatted", SQUATTED)
def test_a_squatted_schema_is_left_alone(db: Database, own: PostgresConnection, squatted: str) -> None:
    """No code of the other role runs, and nothing is written into tables of another owner."""
    with db.connect() as c:
        for statement in SQUATTED[squatted]:
            c.execute(statement)
    listing: LiteralString = (
        "SELECT relname FROM pg_class WHERE relnamespace = 'levada'::regnamespace AND relkind IN ('r', 'v') ORDER BY 1"
    )
    before = db.query(listing)
    uses: tuple[Callable[[], object], ...] = (
        lambda: open_store(own),
        lambda: check_postgres_store(own, "shop", "levada"),
        lambda: postgres_store_exists(own, "levada"),
    )
    for use in uses:
        with pytest.raises(NeedsOperator) as raised:
            use()
        assert raised.value.code == "store_schema_foreign"
        assert "spec.store.postgres.schema" in raised.value.hint
    assert db.query(listing) == before


def test_a_hint_makes_the_schema_usable(db: Database, own: PostgresConnection) -> None:
    """The statement of each hint, run as printed, leads to the next hint or to a store that works."""
    for statement in SQUATTED["a table from the time when every role might create"]:
        with db.connect() as c:
            c.execute("SET ROLE squatter") if "CREATE TABLE" in statement else None
            c.execute(statement)
    db.execute("ALTER SCHEMA levada OWNER TO squatter", "GRANT CREATE ON SCHEMA levada TO PUBLIC")
    for _ in range(3):
        with pytest.raises(NeedsOperator) as raised:
            open_store(own)
        command = raised.value.hint.partition(";")[0].rpartition(": ")[2]
        with db.connect() as admin:
            admin.execute(command)
    open_store(own)


@pytest.mark.parametrize("owner", ["postgres", "the owner of the database"])
def test_a_schema_of_the_administrators_is_used(db: Database, own: PostgresConnection, owner: str) -> None:
    """A superuser or the database's owner may create the schema, and let several roles share it."""
    db.execute("CREATE SCHEMA levada", "GRANT USAGE, CREATE ON SCHEMA levada TO engine_role, squatter")
    if owner != "postgres":
        with db.connect() as admin:
            admin.execute(f'ALTER DATABASE "{db.name}" OWNER TO squatter')
        db.execute("ALTER SCHEMA levada OWNER TO squatter")
    open_store(replace(own, user=OTHER))
    db.execute("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA levada TO engine_role")
    open_store(own)
    assert check_postgres_store(own, "shop", "levada").current
