"""The guard of a table that is copied or compared: a change of the table that no lock keeps out ends both."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from typing import LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada.copy.guard import GUARDS, READERS, LockLimits, hold_table
from levada.errors import Transient
from levada.postgres.catalog import published_tables, read_table_description
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.slots import copy_slot_name, export_snapshot

LEVELS: tuple[LiteralString, ...] = ("read committed", "repeatable read", "serializable")


@pytest.mark.parametrize("level", LEVELS)
def test_a_partition_that_is_attached_meanwhile_is_noticed(db: Database, level: LiteralString) -> None:
    """Also if the role's transactions keep their first snapshot by default, in which the partition is not attached."""
    db.execute(
        f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{level}'",  # type: ignore[arg-type]  # a name of the test
        "CREATE TABLE t (id int) PARTITION BY RANGE (id)",
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t2 (id int)",
        "INSERT INTO t2 VALUES (100)",
        "CREATE PUBLICATION pub FOR TABLE t WITH (publish_via_partition_root = true)",
    )
    with db.connection.connect() as connection:
        [published] = published_tables(connection, "pub")
        description = read_table_description(connection, published.id)
    with (
        IdleReaders(db.connection, GUARDS) as guards,
        hold_table(guards, published, description.schema(), description) as guard,
    ):
        db.execute("ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (100) TO (200)")
        with pytest.raises(Transient) as changed:
            guard.release()
    assert changed.value.code == "table_changed"


@pytest.fixture
def continued(db: Database, role: str) -> Iterator[str]:
    """A role as which all sessions in the database continue."""
    db.execute(f"ALTER ROLE postgres IN DATABASE {db.name} SET role = {role}")  # type: ignore[arg-type]  # names
    yield role
    with db.connect(options="-c role=none") as c:
        c.execute(f"ALTER ROLE postgres IN DATABASE {db.name} RESET role".encode())


@pytest.mark.parametrize("also", [None, "continued"])
def test_a_reader_that_is_slow_holds_up_no_statement(
    db: Database, also: str | None, request: pytest.FixtureRequest
) -> None:
    """Its session ends with the guard's, because it keeps its lock while the destination writes. Others' stay.

    So it does if sessions continue as a role that may not end them.
    """
    db.execute("CREATE TABLE t (id int)", "CREATE TABLE other (id int)", "CREATE PUBLICATION pub FOR TABLE t")
    db.execute("GRANT SELECT ON t, other TO PUBLIC")
    administrator = db.connect()
    if also is not None:
        request.getfixturevalue(also)
    with db.connection.connect() as connection:
        [published] = published_tables(connection, "pub")
        description = read_table_description(connection, published.id)
    altered = threading.Thread(target=administrator.execute, args=("ALTER TABLE t ADD v int",))
    limits = LockLimits(blocked_s=0.1)
    with (
        administrator,
        closing(db.connection.connect(application=READERS)) as reader,
        db.connection.connect(application=READERS) as of_other,
        IdleReaders(db.connection, GUARDS) as guards,
        hold_table(guards, published, description.schema(), description, limits) as guard,
    ):
        reader.execute("BEGIN; SELECT FROM public.t")
        of_other.execute("BEGIN; SELECT FROM public.other")
        altered.start()
        altered.join()
        ended = guard.ended()
        assert ended is not None
        assert ended.code == "copy_yielded"
        of_other.execute("SELECT FROM public.other")


@pytest.mark.parametrize("held", ["snapshot", "reader", "guard"])
@pytest.mark.parametrize(
    "statement",
    ["CREATE INDEX CONCURRENTLY made ON other (id)", "DROP INDEX CONCURRENTLY t_id", "REINDEX INDEX CONCURRENTLY t_id"],
)
def test_a_statement_that_waits_for_older_transactions(db: Database, statement: LiteralString, held: str) -> None:
    """A copy gives way to it, also where the statement concerns another table and waits for the snapshot alone."""
    if (held == "guard") != ("t_id" in statement) and held != "reader":
        pytest.skip("the statement does not wait for this session")
    db.execute("CREATE TABLE t (id int)", "CREATE INDEX t_id ON t (id)", "CREATE TABLE other (id int)")
    db.execute("CREATE PUBLICATION pub FOR TABLE t")
    with db.connection.connect() as connection:
        [published] = published_tables(connection, "pub")
        description = read_table_description(connection, published.id)
    limits = LockLimits(blocked_s=0.1)
    with ExitStack() as opened, db.connect() as administrator:
        snapshot = opened.enter_context(export_snapshot(db.connection, copy_slot_name("shop", published.id)))
        if held == "guard":
            opened.close()
        guards = opened.enter_context(IdleReaders(db.connection, GUARDS))
        guard = opened.enter_context(hold_table(guards, published, description.schema(), description, limits))
        if held == "reader":
            reader = opened.enter_context(closing(db.connection.connect(application=READERS)))
            reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            reader.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'".encode())
            reader.execute("SELECT FROM public.t")
        waits = threading.Thread(target=administrator.execute, args=(statement,))
        waits.start()
        ended = until(guard.ended)
        assert ended is not None
        assert ended.code == "copy_yielded"
        assert f"PID {administrator.info.backend_pid}, which waits for older transactions to end" in ended.message
        assert "CONCURRENTLY" in ended.hint
        with suppress(psycopg.Error):
            opened.close()
        waits.join()
