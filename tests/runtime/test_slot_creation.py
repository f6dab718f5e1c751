"""A start that waits for what holds up the creation of its slot."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, suppress

import psycopg
import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.pipeline import Only, Rig, rig
from tests.rigs.waiting import until
from tests.runtime.replacing import Replacing
from tests.servers.standby import standby_of

from levada.postgres.slot_waits import expected_wait, waiting_error
from levada.postgres.slots import export_snapshot
from levada.status import PipelineState

__all__ = ["rig"]


def test_the_status_and_the_log_name_the_open_transaction(
    rig: Rig, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It has its PID, its role, its application, its age and the statement that ends it, which lets the start go on."""
    with closing(db.connect(application_name="nightly")) as opened:
        opened.execute("BEGIN")
        opened.execute("INSERT INTO others VALUES (100)")
        start = threading.Thread(target=rig.start)
        start.start()
        error = until(lambda: rig.running and rig.running.progress().error)
        assert rig.running is not None
        assert error is not None
        assert rig.running.progress().state is PipelineState.STARTING  # paced: the transaction holds the start
        pid = opened.info.backend_pid
        assert error.code == "slot_creation_waits"
        holder = f"PID {pid} of role postgres, application nightly in database {db.name}"
        assert f"waits for {holder}, open for " in error.reason
        assert error.solution == f"end it, or wait for it: SELECT pg_terminate_backend({pid})"
        until(lambda: f"SELECT pg_terminate_backend({pid})" in caplog.text)
        db.execute(f"SELECT pg_terminate_backend({pid})")  # type: ignore[arg-type]  # a number
        start.join()
        assert rig.wait_caught_up().error is None


def test_a_slot_that_a_killed_process_was_creating(rig: Rig, db: Database) -> None:
    """The server goes on creating it without its client. The next start ends that, and creates the slot itself."""
    name = rig.config.slot.name
    position = "SELECT confirmed_flush_lsn, active_pid FROM pg_replication_slots WHERE slot_name = %s"

    def create() -> None:
        with suppress(psycopg.OperationalError):
            db.execute(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")  # type: ignore[arg-type]  # a name

    with closing(db.connect()) as opened:
        opened.execute("BEGIN")
        opened.execute("INSERT INTO others VALUES (100)")
        left = threading.Thread(target=create)
        left.start()
        [(_, pid)] = until(lambda: [row for row in db.query(position, name) if row[1] is not None])
        start = threading.Thread(target=rig.start)
        start.start()
        left.join()
        error = until(lambda: rig.running and rig.running.progress().error)
        assert error is not None
        assert error.code == "slot_creation_waits"
        assert db.query("SELECT FROM pg_stat_activity WHERE pid = %s", pid) == []
        opened.execute("ROLLBACK")
        start.join()
    assert rig.wait_caught_up().error is None


def test_the_log_names_what_a_copy_waits_for(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A copy has a slot of its own, which waits for each open transaction too."""
    db.execute("CREATE TABLE others (id int)")

    def copy() -> None:
        with export_snapshot(db.connection, "levada_shop_copy_00000a1b2c"):
            pass

    with db.connect() as opened, opened.transaction():
        opened.execute("INSERT INTO others VALUES (100)")
        waits = threading.Thread(target=copy)
        waits.start()
        until(lambda: f"waits for PID {opened.info.backend_pid} of role postgres" in caplog.text)
    waits.join()


@pytest.mark.sampled
@pytest.mark.parametrize("names", [("others",), ("others", "another"), ("orders",)], ids=["one", "several", "again"])
def test_a_copy_that_waits_is_cancelled(rig: Rig, db: Database, names: tuple[str, ...]) -> None:
    """A first copy, those of several small tables, and a resync. A stop does not wait for the open transaction."""
    creating = "SELECT FROM pg_stat_activity WHERE query LIKE 'CREATE_REPLICATION_SLOT %%_copy_%%' AND datname = %s"
    rig.destination = Replacing()
    db.execute("CREATE TABLE another (id int PRIMARY KEY)")
    rig.start()
    rig.wait_caught_up()
    with closing(db.connect()) as opened:
        opened.execute("BEGIN")
        opened.execute("INSERT INTO others VALUES (100)")
        if names == ("orders",):
            rig.say("orders", resync_nonce=1)
        else:
            rig.change(selects=Only("orders", "items", *names))
        until(lambda: db.query(creating, db.name))
        rig.stop()
        until(lambda: not db.query(creating, db.name))
    rig.start()
    assert all(t.error is None for t in rig.wait_caught_up().tables)


@pytest.fixture(scope="module")
def two_phases(start_postgres: StartPostgres) -> Iterator[Database]:
    """A server with prepared transactions."""
    with start_postgres(settings={"max_prepared_transactions": "5"}) as server:
        yield Database(server, "postgres")


def test_a_forgotten_prepared_transaction(two_phases: Database) -> None:
    """It belongs to no session. The hint has the statement that ends it."""
    two_phases.execute("CREATE TABLE t (id int)")
    with two_phases.connect() as left:
        left.execute("BEGIN")
        left.execute("INSERT INTO t VALUES (1)")
        left.execute("PREPARE TRANSACTION 'order 7'")
    with two_phases.connect() as look:
        error = waiting_error(look, "levada_shop")
        assert error is not None
        assert "prepared transaction order 7 of role postgres in database postgres" in error.message
        look.execute("ROLLBACK PREPARED 'order 7'")
        assert error.hint.endswith("in database postgres: ROLLBACK PREPARED 'order 7'")
        assert waiting_error(look, "levada_shop") is None


def test_a_standby_that_gets_no_wal(two_phases: Database) -> None:
    """A slot there waits for its primary. An idle primary is asked by one statement, and one that is away is named."""
    settings = {"max_prepared_transactions": "5"}
    with (
        standby_of(two_phases.server, settings) as standby,
        Database(standby, "postgres").connect() as look,
    ):
        until(lambda: look.execute("SELECT FROM pg_stat_wal_receiver").rowcount == 1)
        error = waiting_error(look, "levada_shop")
        assert error is not None
        assert "which an idle primary does not write" in error.message
        assert error.hint == "on the primary: SELECT pg_log_standby_snapshot()"
        assert expected_wait(look, "levada_shop") is None
        look.execute("ALTER SYSTEM SET primary_conninfo = 'host=127.0.0.1 port=1'")
        look.execute("SELECT pg_reload_conf()")
        until(lambda: look.execute("SELECT FROM pg_stat_wal_receiver").rowcount == 0)
        error = expected_wait(look, "levada_shop")
        assert error is not None
        assert "the standby receives none" in error.message
