"""An error for a locked table names the table and the session that holds the lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import LiteralString

import pytest
from tests.conftest import Database

from levada.errors import LevadaError, Transient
from levada.postgres import connection
from levada.postgres.preflight import PreflightRequest, preflight
from levada.postgres.publications import ensure_coverage
from levada.postgres.table_locks import locks_named
from levada.values import QualifiedTable

ORDERS = QualifiedTable("public", "orders")


@pytest.fixture
def orders(db: Database, monkeypatch: pytest.MonkeyPatch) -> Database:
    """A database with a table, where a change of a publication waits for a moment only."""
    monkeypatch.setattr("levada.postgres.publications._LOCK_TIMEOUT", "50ms")
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    return db


def publish(db: Database, selects: Callable[[QualifiedTable], bool] = lambda table: True) -> LevadaError:
    """Return the error with which a start ends that must publish the table."""
    with db.connection.connect() as c, pytest.raises(Transient) as refused, locks_named(c, selects):
        ensure_coverage(c, "p", {ORDERS}, manage=True)
    return refused.value


def test_the_holder_is_named(orders: Database) -> None:
    """The message has the table, the PID, the application and the session's state, and the hint ends the session."""
    with orders.connect(application_name="report") as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE orders IN SHARE MODE")
        error = publish(orders)
        assert (error.code, error.hint.partition(": ")[2]) == (
            "table_locked",
            f"SELECT pg_terminate_backend({other.info.backend_pid})",
        )
        for words in (
            f"table public.orders is locked by PID {other.info.backend_pid} (application report",
            "idle in transaction for 0 s",
            "ShareLock",
        ):
            assert words in error.message
        assert publish(orders, lambda table: False).code == "lock_timeout"
        orders.execute(hinted(error))
    with orders.connection.connect() as c:
        assert ensure_coverage(c, "p", {ORDERS}, manage=True).missing == (ORDERS,)


def hinted(error: LevadaError) -> LiteralString:
    """Return the SQL of a hint."""
    return error.hint.partition(": ")[2]  # type: ignore[return-value]  # its text is not known before


def test_a_prepared_transaction_is_named(orders: Database) -> None:
    """It has no session that could be ended. The hint finds the name that ROLLBACK PREPARED needs."""
    with orders.connect() as other:
        if other.execute("SHOW max_prepared_transactions").fetchone() == ("0",):
            pytest.skip("the server allows no prepared transactions")
        other.execute("BEGIN")
        other.execute("LOCK TABLE orders IN SHARE MODE")
        other.execute("PREPARE TRANSACTION 'kept'")
    error = publish(orders)
    assert "table public.orders is locked by a prepared transaction (ShareLock)" in error.message
    assert orders.query(hinted(error)) == [("kept",)]
    with orders.connect() as other:
        other.execute("ROLLBACK PREPARED 'kept'")


def test_check_names_the_holder(orders: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A table that cannot even be read is a problem with the same code, at a check and at a start."""
    orders.execute("CREATE PUBLICATION p FOR TABLE orders")
    options = connection._OPTIONS.replace("lock_timeout=60s", "lock_timeout=50ms")
    monkeypatch.setattr(connection, "_OPTIONS", options)
    request = PreflightRequest(slot="s", publication="p", managed=True, selects=lambda table: True)
    with orders.connect() as other:
        other.execute("BEGIN")
        other.execute("ALTER TABLE orders ADD COLUMN note text")
        problems = preflight(orders.connection, request)
        assert [p.code for p in problems] == ["table_locked"]
        assert f"locked by PID {other.info.backend_pid}" in problems[0].message
