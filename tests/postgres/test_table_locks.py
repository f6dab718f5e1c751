"""An error for a locked table names the table and the session that holds the lock."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import LiteralString

import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import until

from levada.errors import LevadaError, Transient
from levada.postgres.preflight import PreflightRequest, preflight
from levada.postgres.problems import Severity
from levada.postgres.publication_owners import mark_publication
from levada.postgres.publications import drop_publication, ensure_coverage
from levada.postgres.table_locks import locks_named, read_table_locks
from levada.values import PipelineOwner, QualifiedTable

ORDERS = QualifiedTable("public", "orders")


@pytest.fixture
def orders(db: Database) -> Database:
    """A database with a table."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    return db


def publish(db: Database, selects: Callable[[QualifiedTable], bool] = lambda table: True) -> LevadaError:
    """Return the error with which a start ends that must publish the table."""
    with db.connection.connect() as c, pytest.raises(Transient) as refused, locks_named(c, selects):
        ensure_coverage(c, "p", {ORDERS}, manage=True, lock_timeout_s=0.05)
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
        session = r"\(application report, idle in transaction since \d{4}-\d\d-\d\dT[\d:]{8}Z, ShareLock\)"
        assert re.search(rf"table public\.orders is locked by PID {other.info.backend_pid} {session}", error.message)
        assert publish(orders, lambda table: False).code == "lock_timeout"
        orders.execute(error.hint.partition(": ")[2])
        other.close()
    with orders.connection.connect() as c:
        assert ensure_coverage(c, "p", {ORDERS}, manage=True).missing == (ORDERS,)


def test_a_prepared_transaction_is_named(start_postgres: StartPostgres) -> None:
    """It has no session that could be ended. The hint finds the name that ROLLBACK PREPARED needs."""
    with start_postgres(settings={"max_prepared_transactions": "1"}) as server:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        with db.connect() as other:
            other.execute("BEGIN")
            other.execute("LOCK TABLE orders IN SHARE MODE")
            other.execute("PREPARE TRANSACTION 'kept'")
        with db.connection.connect() as c:
            [lock] = read_table_locks(c)
        assert str(lock) == "table public.orders is locked by a prepared transaction (ShareLock)"
        assert db.query(lock.release) == [("kept",)]


def test_a_partition_belongs_to_its_root(orders: Database) -> None:
    """A lock of a partition is named as such where its root is selected."""
    orders.execute(
        "CREATE TABLE sales (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE sales1 PARTITION OF sales FOR VALUES FROM (0) TO (10)",
    )
    with orders.connect() as other, orders.connection.connect() as c:
        other.execute("BEGIN")
        other.execute("LOCK TABLE sales1 IN SHARE MODE")
        [lock] = read_table_locks(c)
    assert (lock.table, lock.root) == (QualifiedTable("public", "sales1"), QualifiedTable("public", "sales"))


def test_check_names_the_holder(orders: Database) -> None:
    """A check and a start do not wait for a table that cannot be read. A warning has the same code."""
    orders.execute("CREATE PUBLICATION p FOR TABLE orders")
    options = orders.connection.session_options.replace("lock_timeout=1s", "lock_timeout=50ms")
    request = PreflightRequest(slot="s", publication="p", managed=True, selects=lambda table: True, copy_tables=1)
    with orders.connect() as other:
        other.execute("BEGIN")
        other.execute("ALTER TABLE orders ADD COLUMN note text")
        problems = preflight(replace(orders.connection, session_options=options), request)
        assert [(p.code, p.severity) for p in problems] == [("table_locked", Severity.WARNING)]
        assert f"locked by PID {other.info.backend_pid}" in problems[0].message


@pytest.mark.parametrize("statement", ["COMMENT ON PUBLICATION p IS 'x'", "ALTER PUBLICATION p ADD TABLE orders"])
@pytest.mark.since(15)
def test_the_holder_of_a_publication_is_named(orders: Database, statement: LiteralString) -> None:
    """Each change of a publication that waits for another session's change names that session, and ends in a second."""
    orders.execute("CREATE PUBLICATION p")
    options = orders.connection.session_options.replace("lock_timeout=1s", "lock_timeout=50ms")
    with replace(orders.connection, session_options=options).connect() as c, orders.connect() as other:
        other.execute("BEGIN")
        other.execute(statement)
        changes: list[Callable[[], object]] = [
            lambda: mark_publication(c, "p", PipelineOwner("uid", "shop")),
            lambda: drop_publication(c, "p"),
        ]
        for change in changes:
            with pytest.raises(Transient) as refused:
                change()
            assert refused.value.code == "table_locked"
            assert f"it is being changed by PID {other.info.backend_pid}" in refused.value.message
            assert f"pg_terminate_backend({other.info.backend_pid})" in refused.value.hint
        other.execute("ROLLBACK")
        assert drop_publication(c, "p")


@pytest.mark.nightly
def test_an_autovacuum_makes_room(start_postgres: StartPostgres) -> None:
    """A vacuum of hours keeps no table from being published: PostgreSQL cancels it, as for any change of a table."""
    settings = {
        "autovacuum_naptime": "1s",
        "autovacuum_vacuum_cost_delay": "100ms",
        "autovacuum_vacuum_cost_limit": "1",
    }
    with start_postgres(settings=settings) as server:
        db = Database(server, "postgres")
        db.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, v text)",
            "INSERT INTO orders SELECT g, repeat('v', 200) FROM generate_series(1, 100000) g",
            "UPDATE orders SET v = v || 'w'",
        )
        vacuums = "SELECT count(*) FROM pg_stat_progress_vacuum WHERE relid = 'orders'::regclass"
        until(lambda: db.query(vacuums), lambda found: found == [(1,)])
        with db.connection.connect() as c:
            assert ensure_coverage(c, "p", {ORDERS}, manage=True).missing == (ORDERS,)
            assert ensure_coverage(c, "p", {ORDERS}, manage=True).missing == ()
        db.close()
