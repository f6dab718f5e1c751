"""The rights in docs/security.md are enough, and without any one of them the check says what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

import psycopg
import pytest
from tests.rigs.database import Database

from levada import WalChangeCapture
from levada.errors import NeedsOperator
from levada.pgoutput.events import Insert
from levada.postgres.connection import PostgresConnection
from levada.postgres.preflight import PreflightRequest, preflight
from levada.postgres.problems import Severity
from levada.stores import PostgresStore
from levada.stores.readiness import check_postgres_store
from levada.values import QualifiedTable

ORDERS = QualifiedTable("public", "orders")
BLOCK = re.compile(r"<!-- rights: (?P<name>\w+) -->\n```sql\n(?P<sql>.*?)```", re.DOTALL)
SETUPS = {
    m["name"]: [s.strip() for s in m["sql"].split(";") if s.strip()]
    for m in BLOCK.finditer((Path(__file__).parents[2] / "docs" / "security.md").read_text())
}
MANAGED, WITH_STORE = {"managed"}, {"managed", "store"}

MISSING = {
    "LOGIN REPLICATION": "replication_privilege_missing",
    "GRANT USAGE ON SCHEMA": "select_privilege_missing",
    "GRANT SELECT ON ALL TABLES": "select_privilege_missing",
    "CREATE PUBLICATION": "publication_missing",
    "CREATE SCHEMA": "store_privilege_missing",
    "GRANT CREATE ON DATABASE": "store_privilege_missing",
    "GRANT shop_owner": "select_privilege_missing",
}
"""The code that the check reports without the statement that begins so, or has these words."""
CASES = [
    (name, statement, code)
    for name, statements in SETUPS.items()
    for statement in statements
    for words, code in MISSING.items()
    if words in statement
]


@pytest.fixture
def shop(db: Database) -> Iterator[Database]:
    """The database of the document: its owner has one table in it. PUBLIC may not even use the schema."""
    db.execute(
        "CREATE ROLE shop_owner",
        "REVOKE ALL ON SCHEMA public FROM PUBLIC",
        "GRANT USAGE, CREATE ON SCHEMA public TO shop_owner",
        "SET ROLE shop_owner; CREATE TABLE public.orders (id int PRIMARY KEY)",
        "INSERT INTO public.orders VALUES (1), (2)",
    )
    yield db
    for role in ("levada", "shop_owner"):
        with db.connect() as connection:
            if connection.execute("SELECT FROM pg_roles WHERE rolname = %s", [role]).fetchone() is not None:
                connection.execute(f"DROP OWNED BY {role} CASCADE".encode())
                connection.execute(f"DROP ROLE {role}".encode())


def run(shop: Database, statements: list[str]) -> PostgresConnection:
    """Run the statements as a superuser and return how the role connects."""
    with shop.connect() as connection:
        for statement in statements:
            here = statement.replace("ON DATABASE shop ", f"ON DATABASE {shop.name} ")
            connection.execute(here.encode())
    return replace(shop.connection, user="levada")


def found(connection: PostgresConnection, setup: str) -> dict[str, str]:
    """Return the codes of the errors that `levada check` would report, with their hints."""
    request = PreflightRequest("levada_shop", "levada_shop", setup in MANAGED, lambda t: t.schema == "public", 1)
    errors = {p.code: p.hint for p in preflight(connection, request) if p.severity is Severity.ERROR}
    if setup in WITH_STORE:
        try:
            check_postgres_store(connection, "shop", "levada")
        except NeedsOperator as error:
            errors[error.code] = error.hint
    return errors


def test_the_document_has_three_setups() -> None:
    """The blocks are found, and each statement but the default privileges has a case of its own."""
    assert set(SETUPS) == {"external", "store", "managed"}
    tried = {(name, statement) for name, statement, _ in CASES}
    left = {s for name, statements in SETUPS.items() for s in statements if (name, s) not in tried}
    assert all(s.startswith("ALTER DEFAULT PRIVILEGES") for s in left)


@pytest.mark.parametrize("setup", SETUPS)
def test_setup_is_enough(shop: Database, setup: str) -> None:
    """The check is silent, and a copy, a stream and the store work with the role."""
    role = run(shop, SETUPS[setup])
    assert found(role, setup) == {}
    if setup in WITH_STORE:
        store = PostgresStore(role, "shop")
        assert store.next_epoch() == 1
        store.close()
    capture = WalChangeCapture(role, slot=f"s_{shop.name}", publication="levada_shop")
    if setup in MANAGED:
        capture = capture.with_publication_management({ORDERS}, manage=True)
    capture.prepare()
    with capture.snapshot([ORDERS]) as rows:
        assert len(list(rows)) == 2
    with capture.live() as changes:
        shop.execute("INSERT INTO public.orders VALUES (3)")
        (change,) = islice((c for c in changes if isinstance(c.event, Insert)), 1)
        assert isinstance(change.event, Insert)


@pytest.mark.parametrize(("setup", "statement", "code"), CASES, ids=[f"{s}: {t[:40]}" for s, t, _ in CASES])
def test_check_names_a_right_that_is_missing(shop: Database, setup: str, statement: str, code: str) -> None:
    """Without one statement of a setup the check reports it, with a hint."""
    kept = [s for s in SETUPS[setup] if s != statement]
    if statement.startswith("CREATE ROLE"):
        kept.insert(0, statement.replace(" REPLICATION", ""))
    role = run(shop, kept)
    errors = found(role, setup)
    assert code in errors
    assert errors[code]


@pytest.mark.parametrize("setup", ["external", "store"])
def test_new_tables_can_be_read(shop: Database, setup: str) -> None:
    """The default privileges hold for tables that the owner makes later."""
    role = run(shop, SETUPS[setup])
    shop.execute("SET ROLE shop_owner; CREATE TABLE public.later (id int PRIMARY KEY)")
    shop.execute("ALTER PUBLICATION levada_shop ADD TABLE public.later")
    assert found(role, setup) == {}


def test_least_role_cannot_write(shop: Database) -> None:
    """The role of the first setup changes no table and creates none."""
    role = run(shop, SETUPS["external"])
    with role.connect(application="test") as connection:
        for statement in ("INSERT INTO public.orders VALUES (9)", "CREATE TABLE public.mine ()", "CREATE SCHEMA mine"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(statement.encode())
