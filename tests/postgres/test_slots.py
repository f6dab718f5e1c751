"""Slots: names that can be parsed back, the server's figures of them, and their life."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.postgres.streams import kinds, open_stream, prepare, receive_until
from tests.rigs.database import Database, StartPostgres, connection_to
from tests.rigs.waiting import until
from tests.servers.standby import logged_snapshots, standby_of

from levada.errors import NeedsOperator, SlotLost, Transient
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.failures import source_errors
from levada.postgres.idle_connections import IdleWalsenders
from levada.postgres.lag import sample_lag
from levada.postgres.preflight import PreflightRequest, preflight
from levada.postgres.problems import Severity
from levada.postgres.replication import execute_replication
from levada.postgres.slots import (
    copy_slot_name,
    create_slot,
    drop_slot,
    export_snapshot,
    inspect_slot,
    parse_slot_name,
    validate_slot,
)
from levada.postgres.stream import ReplicationStream
from levada.values import TableId, source_object_name


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,44}[a-z0-9])?", fullmatch=True), st.integers(1, 2**32 - 1))
def test_names_read_back_or_are_refused(pipeline: str, oid: int) -> None:
    """No two pipelines or tables share a slot's name, and each name is one that PostgreSQL takes whole."""
    try:
        copy = copy_slot_name(pipeline, TableId(oid))
    except NeedsOperator:
        return
    assert parse_slot_name(source_object_name(pipeline)) == (pipeline, None)
    assert parse_slot_name(copy) == (pipeline, oid)
    assert len(copy) <= 63


def test_each_attempt_of_a_copy_has_a_slot_of_its_own() -> None:
    """Two attempts to copy one table never share a slot's name, so neither waits for the other's slot to go."""
    assert len({copy_slot_name("shop", TableId(7)) for _ in range(20)}) > 1
    assert copy_slot_name("shop-copy-production", TableId(7)).startswith("levada_shop_copy_production_copy_0000007")


@pytest.mark.parametrize("pipeline", ["Shop", "a_b", "a.b", "shop-copy-000000a1b2", "x" * 41, "", "-a"])
def test_names_that_could_not_be_read_back_are_refused(pipeline: str) -> None:
    """A name that PostgreSQL refuses, or that another pipeline's slot could have, is an error at once."""
    with pytest.raises(NeedsOperator) as raised:
        copy_slot_name(pipeline, TableId(7))
    assert raised.value.code == "invalid_pipeline_name"


def test_foreign_names_are_not_ours() -> None:
    """A slot of a foreign name is never taken for Levada's."""
    assert parse_slot_name("debezium") is None


def test_slot_is_created_seen_and_dropped(versions: Database) -> None:
    """The server's words about a slot are typed values. A value that its version lacks is None."""
    start = prepare(versions)
    with versions.connection.connect() as c:
        status = inspect_slot(c, "s")
        assert status is not None
        assert (status.plugin, status.database, status.active) == ("pgoutput", versions.name, False)
        assert status.confirmed_flush_lsn == start
        assert status.restart_lsn is not None
        assert status.restart_lsn <= start
        assert (status.wal_status, status.lost) == ("reserved", False)
        modern = c.info.server_version >= 170000
        assert (status.failover is not None) == modern
        validate_slot(status, versions.name)
        with pytest.raises(Transient) as taken:
            create_slot(c, "s")
        assert taken.value.code == "slot_exists"
        assert drop_slot(c, "s")
        assert not drop_slot(c, "s")
        assert inspect_slot(c, "s") is None


def test_failover_is_asked_of_servers_that_have_it(versions: Database) -> None:
    """A failover slot is one on 17 and later, and refused with a hint before."""
    with versions.connection.connect() as c:
        if c.info.server_version < 170000:
            with pytest.raises(NeedsOperator) as raised:
                create_slot(c, "f", failover=True)
            assert raised.value.code == "failover_unsupported"
            return
        create_slot(c, "f", failover=True)
        status = inspect_slot(c, "f")
        assert status is not None
        assert status.failover is True


def test_foreign_slots_are_refused_and_left_alone(db: Database) -> None:
    """Another plugin, another database or a physical slot cannot serve, and stays."""
    prepare(db)
    with db.connection.connect() as c:
        status = inspect_slot(c, "s")
        assert status is not None
        for wrong in (replace(status, plugin="test_decoding"), replace(status, plugin=None, database=None)):
            with pytest.raises(NeedsOperator) as raised:
                validate_slot(wrong, db.name)
            assert raised.value.code == "slot_foreign"
        with pytest.raises(NeedsOperator):
            validate_slot(status, "elsewhere")
        assert inspect_slot(c, "s") == status


def test_a_slot_of_another_database_is_neither_sampled_nor_dropped(db: Database, postgres: EmbeddedPostgres) -> None:
    """All databases of a server share the names of slots. PostgreSQL would drop the slot, and end its stream."""
    prepare(db)
    admin = connection_to(postgres)
    with open_stream(db) as stream, admin.connect() as c:
        for refused in (lambda: sample_lag(admin, "s"), lambda: drop_slot(c, "s", wait_s=0, terminate=True)):
            with pytest.raises(NeedsOperator) as raised:
                refused()
            assert raised.value.code == "slot_foreign"
            assert f"in database {db.name}, not" in raised.value.message
        db.execute("INSERT INTO t VALUES (1, 'a')")
        receive_until(stream, lambda messages: "I" in kinds(messages))
    with admin.connect() as c, pytest.raises(NeedsOperator):
        drop_slot(c, "s", wait_s=0)
    with db.connection.connect() as c:
        assert inspect_slot(c, "s") is not None


def test_lost_slot_is_told(start_postgres: StartPostgres) -> None:
    """A slot that the server invalidated is lost for an inspection and for a stream."""
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB", "max_wal_size": "32MB"}
    with start_postgres(settings=settings) as server:
        db = Database(server, "postgres")
        prepare(db)
        with db.connection.connect() as c:
            for _ in range(4):
                c.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)), pg_switch_wal()")
            c.execute("CHECKPOINT")
            status = inspect_slot(c, "s")
            assert status is not None
            assert status.lost
            with pytest.raises(SlotLost) as raised:
                validate_slot(status, "postgres")
            assert raised.value.code == "slot_lost"
            assert "pg_drop_replication_slot('s')" in raised.value.hint
        with pytest.raises(SlotLost) as raised:
            open_stream(db)
        assert raised.value.code == "slot_lost"
        assert sample_lag(db.connection, "s") is not None
        db.execute("CREATE DATABASE another")
        request = PreflightRequest("s", "p", managed=True, selects=lambda table: True, copy_tables=0)
        found = {p.code: p.severity for p in preflight(Database(server, "another").connection, request)}
        assert found["slot_foreign"] is Severity.ERROR, "and no warning: a start neither uses nor replaces it"


def test_physical_server_has_no_logical_slots(physical: EmbeddedPostgres) -> None:
    """Without wal_level=logical, creating a slot names the setting."""
    connection = connection_to(physical)
    with connection.connect() as c, pytest.raises(Transient) as raised:
        create_slot(c, "s")
    assert raised.value.code == "wal_level_not_logical"
    with pytest.raises(Transient) as raised, export_snapshot(connection, "x"):
        pass
    assert raised.value.code == "wal_level_not_logical"


def test_active_slot_is_waited_for(db: Database) -> None:
    """A slot in use is dropped once it is free. If that takes too long, the error names the PID that holds it."""
    prepare(db)
    stream = open_stream(db)
    with db.connection.connect() as c:
        status = inspect_slot(c, "s")
        assert status is not None
        with pytest.raises(Transient) as raised:
            drop_slot(c, "s", wait_s=0)
        assert raised.value.code == "slot_active"
        assert str(status.active_pid) in raised.value.message
        closing = threading.Timer(0.3, stream.close)
        closing.start()
        assert drop_slot(c, "s")
        closing.join()


def test_holder_of_a_slot_can_be_ended(db: Database) -> None:
    """With termination asked for, the slot goes and its stream fails with a transient error."""
    prepare(db)
    with open_stream(db) as stream, db.connection.connect() as c:
        assert drop_slot(c, "s", terminate=True)
        with pytest.raises(Transient):
            receive_until(stream, lambda _: False)


def test_a_holder_is_ended_where_sessions_continue_as_another_role(db: Database, role: str) -> None:
    """The login may end its own sessions, and the role that a setting makes of them may not."""
    prepare(db)
    db.execute(
        f"ALTER ROLE {role} REPLICATION",  # type: ignore[arg-type]  # names of the test
        "CREATE ROLE replicator LOGIN REPLICATION",
        f"GRANT {role} TO replicator",  # type: ignore[arg-type]
        f"ALTER ROLE replicator IN DATABASE {db.name} SET role = {role}",  # type: ignore[arg-type]
    )
    continued = replace(db.connection, user="replicator")
    try:
        with ReplicationStream(continued, slot="s", publication="p") as stream, continued.connect() as c:
            assert drop_slot(c, "s", terminate=True)
            with pytest.raises(Transient):
                receive_until(stream, lambda _: False)
            assert c.execute("SELECT current_user").fetchone() == (role,)
    finally:
        db.execute("DROP OWNED BY replicator", "DROP ROLE replicator")


def test_exported_snapshot_holds_what_committed_before_it(db: Database) -> None:
    """Another session sees the rows as of the snapshot's LSN, for as long as it is held and no longer."""
    prepare(db)
    db.execute("INSERT INTO t VALUES (1)")
    with export_snapshot(db.connection, copy_slot_name("shop", TableId(7))) as snapshot:
        db.execute("INSERT INTO t VALUES (2)")
        with db.connection.connect() as c, c.transaction():
            c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            c.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
            assert c.execute("SELECT id FROM public.t").fetchall() == [(1,)]
        status = db.query(
            "SELECT temporary, confirmed_flush_lsn::text FROM pg_replication_slots"
            " WHERE slot_name <> 's' AND database = current_database()"
        )
        assert status == [(True, str(snapshot.lsn))]
    with db.connection.connect() as c, c.transaction():
        c.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        with pytest.raises(Transient) as raised, source_errors("copying"):
            c.execute(f"SET TRANSACTION SNAPSHOT '{snapshot.name}'")
        assert raised.value.code == "snapshot_gone"


def test_no_slot_is_created_with_little_memory(start_postgres: StartPostgres) -> None:
    """From version 18 on it may take as much as shared_buffers, because the server crashes where it has too little."""
    with start_postgres(settings={"logical_decoding_work_mem": "64kB"}) as server:
        connection = Database(server, "postgres").connection
        idle = IdleWalsenders(connection)
        with connection.connect() as session:
            create_slot(session, "levada_main")
            assert session.execute("SHOW logical_decoding_work_mem").fetchone() == ("64kB",)
            version = session.info.server_version
        with export_snapshot(connection, copy_slot_name("shop", TableId(1)), idle=idle):
            pass
        walsender = idle.take("levada_shop")
        found = execute_replication(walsender, "SHOW logical_decoding_work_mem", "reading", connection.silence())
        assert found.get_value(0, 0) == (b"256MB" if version >= 180_000 else b"64kB")
        walsender.finish()


def test_snapshot_slot_that_is_taken_is_an_error(db: Database) -> None:
    """A second copy of the same table is retried: the slot of one that was killed goes a moment later."""
    with (
        export_snapshot(db.connection, "twice"),
        pytest.raises(Transient) as raised,
        export_snapshot(db.connection, "twice"),
    ):
        pass
    assert raised.value.code == "slot_exists"


def test_lag_is_measured_without_a_stream(versions: Database) -> None:
    """Lag grows with the WAL, is never negative, and is None without a slot."""
    assert sample_lag(versions.connection, "s") is None
    prepare(versions)
    first = sample_lag(versions.connection, "s")
    # The end of the WAL is what has been written out, which an asynchronous commit does not wait for.
    versions.execute(
        "SET synchronous_commit = on", "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 1000) g"
    )
    second = sample_lag(versions.connection, "s")
    assert first is not None
    assert second is not None
    assert first.lag_bytes is not None
    assert second.lag_bytes is not None
    assert second.retained_bytes is not None
    assert 0 <= first.lag_bytes < second.lag_bytes <= second.retained_bytes
    assert second.lag_bytes > 100_000
    assert second.status.name == "s"


@pytest.mark.since(17)
def test_a_copied_slot_can_be_read_once_its_standby_is_promoted(start_postgres: StartPostgres) -> None:
    """PostgreSQL marks the slot as synced from then on as well, where that has no meaning."""
    with start_postgres() as primary:
        db = Database(primary, "postgres")
        db.execute("SELECT pg_create_physical_replication_slot('standby')", "CREATE PUBLICATION p FOR ALL TABLES")
        settings = {"primary_slot_name": "standby", "sync_replication_slots": "on"}
        with standby_of(primary, settings) as standby, db.connection.connect() as conn:
            create_slot(conn, "s", failover=True)
            copy = Database(standby, "postgres").connection
            with copy.connect() as there:
                with logged_snapshots(primary):
                    until(lambda: inspect_slot(there, "s"), lambda slot: slot is not None and not slot.temporary)
                request = PreflightRequest("s", "p", True, lambda table: False, 2)
                assert "source_standby" in {p.code for p in preflight(copy, request)}
                there.execute("SELECT pg_promote()")
                promoted = inspect_slot(there, "s")
            assert promoted is not None
            assert not promoted.synced
            assert "source_standby" not in {p.code for p in preflight(copy, request)}
