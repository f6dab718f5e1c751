"""A table that another session locks, as VACUUM FULL does. The other tables start and go on, and new ones come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table

from levada.cli.render import errors
from levada.postgres.lag import current_wal_lsn
from levada.postgres.problems import Severity
from levada.postgres.publications import inspect_coverage
from levada.runtime.config import RetryLimits
from levada.runtime.source.preparation import check_source
from levada.status import RetryPolicy
from levada.values import QualifiedTable

BAD: LiteralString = "CREATE TABLE bad (id int PRIMARY KEY, note text DEFAULT 'none')"
PARTITIONED: tuple[LiteralString, ...] = (
    "CREATE TABLE bad (id int PRIMARY KEY, note text DEFAULT 'none') PARTITION BY RANGE (id)",
    "CREATE TABLE bad_low PARTITION OF bad FOR VALUES FROM (0) TO (1000)",
)


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over orders, bad and later, not started. Only orders exists."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    made = Rig(db, tmp_path)
    made.config = replace(
        made.config,
        selects=Only("orders", "bad", "later"),
        discovery_s=0.2,
        retries=RetryLimits(max_attempts=2, delay_s=0.2, max_delay_s=0.2),
    )
    yield made
    made.stop()


@contextmanager
def locked(db: Database, name: str = "bad") -> Iterator[psycopg.Connection[Any]]:
    """Hold the lock of ALTER TABLE, VACUUM FULL and CLUSTER. Whatever waits for it fails before the lock ends."""
    with db.connect() as holder:
        holder.autocommit = False
        holder.execute(f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE")  # type: ignore[arg-type]
        yield holder
        holder.rollback()


@pytest.mark.sampled
@pytest.mark.parametrize("lock", ["bad", "bad_low", pytest.param("filtered", marks=pytest.mark.since(15))])
def test_a_start_does_not_wait_for_a_locked_table(rig: Rig, db: Database, lock: str) -> None:
    """Neither does a check, nor discovery. Changes of the other table are applied meanwhile."""
    db.execute(*(PARTITIONED if lock == "bad_low" else (BAD,)))
    if lock == "filtered":
        db.execute("CREATE PUBLICATION filtered FOR TABLE orders, bad WHERE (id > 0)")
        rig.config = replace(rig.config, publication=replace(rig.config.publication, name="filtered", managed=False))
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    with locked(db, "bad_low" if lock == "bad_low" else "bad"):
        found = check_source(rig.config, begun=True)
        assert [(p.code, p.severity) for p in found] == [("table_locked", Severity.WARNING)]
        with rig.config.source.connect() as connection:
            wanted = {QualifiedTable("public", name) for name in ("orders", "bad")}
            assert inspect_coverage(connection, rig.config.publication.name, wanted).satisfied
        rig.start()
        db.execute("INSERT INTO orders VALUES (1)")
        rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
        if lock != "filtered":
            db.execute("CREATE TABLE later (id int PRIMARY KEY)")
            rig.wait(lambda p: any(t.table.name == "later" for t in p.tables))
    db.execute("INSERT INTO bad VALUES (1)")
    rig.wait_caught_up()
    assert rig.destination.applied_rows["bad"] == 1
    assert rig.destination.copies_of("bad") == 1


@pytest.mark.sampled
@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while running"])
def test_a_new_table_that_is_locked_is_published_later(rig: Rig, db: Database, running: bool) -> None:
    """The status names the session that holds the lock. Other new tables do not wait, and it is copied afterwards."""
    rig.start()
    rig.wait_caught_up()
    if not running:
        rig.stop()
    with db.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(BAD)
        holder.execute("COMMIT; BEGIN; LOCK TABLE bad IN ACCESS EXCLUSIVE MODE")
        db.execute("CREATE TABLE later (id int PRIMARY KEY)")
        if not running:
            rig.start()
        seen = rig.wait(
            lambda p: p.publication.error is not None and {t.table.name for t in p.tables} == {"orders", "later"}
        )
        error = seen.publication.error
        assert error is not None
        assert error.code == "table_locked"
        assert f"table public.bad is locked by PID {holder.info.backend_pid}" in error.reason
        holder.execute("COMMIT")
    copied = ("orders", "bad", "later")
    rig.wait(lambda p: p.publication.error is None and all(rig.destination.copies_of(t) == 1 for t in copied))
    rig.wait_caught_up()


@pytest.mark.since(15)
@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while running"])
@pytest.mark.parametrize(
    "statement", ["ALTER TABLE bad DROP CONSTRAINT bad_pkey", "ALTER PUBLICATION {} DROP TABLE bad"]
)
def test_a_publication_that_an_open_transaction_changes(
    rig: Rig, db: Database, statement: LiteralString, running: bool
) -> None:
    """New tables wait for its end, and those that are streamed go on. The status names the session."""
    db.execute(BAD)
    rig.start()
    rig.wait_caught_up()
    if not running:
        rig.stop()
    with db.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(statement.format(rig.config.publication.name).encode())
        db.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
        if not running:
            rig.start()
        seen = rig.wait(lambda p: p.publication.error is not None and rig.destination.applied_rows.get("orders") == 1)
        error = seen.publication.error
        assert error is not None
        assert (error.code, error.solution.rpartition(": ")[2]) == (
            "table_locked",
            f"SELECT pg_terminate_backend({holder.info.backend_pid})",
        )
        holder.execute("ROLLBACK")
    rig.wait(lambda p: p.publication.error is None and rig.destination.copies_of("later") == 1)


def test_nothing_has_caught_up_while_a_new_table_is_locked(rig: Rig, db: Database) -> None:
    """An ANALYZE of a table at the start keeps it from the publication. It is not left out of what is waited for."""
    db.execute(BAD)
    with db.connect() as holder:
        holder.execute("BEGIN; LOCK TABLE bad IN SHARE UPDATE EXCLUSIVE MODE")
        written = current_wal_lsn(holder)
        rig.start()
        assert rig.running is not None
        caught_up = rig.running.caught_up()
        others = rig.wait(lambda p: p.has_reached(written) and (p.verified_lsn or 0) >= written)
        assert [t.table.name for t in others.tables] == ["orders"]
        assert not caught_up(others)
        holder.execute("COMMIT")
    rig.wait(caught_up)
    assert rig.destination.copies_of("bad") == 1


@pytest.mark.sampled
@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while running"])
def test_a_copy_waits_for_a_locked_table(rig: Rig, db: Database, running: bool) -> None:
    """However often it is tried, it needs no command. The error names the session, and the other table goes on."""
    db.execute(BAD, "CREATE PUBLICATION p FOR TABLE orders")
    rig.config = replace(rig.config, publication=replace(rig.config.publication, name="p", managed=False))
    rig.start()
    rig.wait_caught_up()
    if not running:
        rig.stop()
    with db.connect() as holder:
        holder.execute("BEGIN; ALTER PUBLICATION p ADD TABLE bad; COMMIT; BEGIN")
        holder.execute("LOCK TABLE bad IN ACCESS EXCLUSIVE MODE")
        if not running:
            rig.start()
        db.execute("INSERT INTO orders VALUES (1)")
        tries = set()

        def tried(seen: Any) -> bool:
            found = [t.error for t in seen.tables if t.table.name == "bad" and t.error is not None]
            tries.update(error.next_retry for error in found)
            return len(tries) > 3

        error = table(rig.wait(tried), "bad").error
        assert error is not None
        assert (error.code, error.retry_policy) == ("table_locked", RetryPolicy.TIMED_RETRY)
        assert f"PID {holder.info.backend_pid}" in error.reason
        rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
        holder.execute("COMMIT")
    rig.wait(lambda p: rig.destination.copies_of("bad") == 1)
    rig.wait_caught_up()


def test_the_status_names_identities_that_are_lent_for_long(rig: Rig, db: Database) -> None:
    """It has the table, the reason and the command, until the session that has the publication ends."""
    db.execute("CREATE TABLE aside (id int)")
    rig.config = replace(rig.config, limits=replace(rig.config.limits, lent_s=0.0))
    rig.start()
    rig.wait_caught_up()
    with db.connect() as holder, db.connect() as c:
        holder.execute(f"BEGIN; ALTER PUBLICATION levada_{db.name} ADD TABLE aside")  # type: ignore[arg-type]
        c.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
        seen = rig.wait(lambda p: p.publication.lent is not None)
        assert seen.publication.lent is not None
        assert seen.publication.lent.code == "identity_lent"
        assert "public.orders" in "".join(errors(seen))
        holder.execute("ROLLBACK")
        c.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    rig.wait(lambda p: p.publication.lent is None)
