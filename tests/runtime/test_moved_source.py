"""A source that goes to another host of a list, or to another name: the pipeline goes on there, without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from tests.rigs.database import Database, StartPostgres
from tests.rigs.pipeline import Only, Rig
from tests.rigs.waiting import until
from tests.servers.standby import logged_snapshots, standby_of

from levada.errors import SlotLost
from levada.local.postgres import EmbeddedPostgres

OTHER = "127.0.0.2"
"""The address of the second member of a cluster. The first one has 127.0.0.1, at the same port."""


def rig_of(db: Database, folder: Path, **source: Any) -> Rig:
    """Return the pipeline of the one table orders."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders SELECT generate_series(1, 10)")
    rig = Rig(db, folder)
    rig.config = replace(rig.config, source=replace(db.connection, **source), selects=Only("orders"))
    return rig


def at_other(primary: EmbeddedPostgres) -> psycopg.Connection[Any]:
    """Return a session with the second member."""
    return psycopg.connect(primary.uri().replace("127.0.0.1", OTHER), autocommit=True)


@pytest.fixture
def cluster(start_postgres: StartPostgres, request: pytest.FixtureRequest) -> Iterator[EmbeddedPostgres]:
    """A primary whose standby is the second member. The standby synchronises slots if the parameter says so."""
    synced = {"sync_replication_slots": "on", "primary_slot_name": "standby"} if request.param else {}
    with start_postgres() as primary:
        with psycopg.connect(primary.uri(), autocommit=True) as session:
            session.execute("SELECT pg_create_physical_replication_slot('standby')")
        with standby_of(primary, synced, OTHER):
            yield primary


def fail_over(primary: EmbeddedPostgres) -> None:
    """Let the primary crash once the standby has all of its WAL, and promote the standby."""
    with psycopg.connect(primary.uri(), autocommit=True) as session, at_other(primary) as standby:
        [end] = session.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or [None]
        until(lambda: standby.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", [end]).fetchone() == (True,))
        primary.stop("immediate")
        standby.execute("SELECT pg_promote()")


@pytest.mark.nightly
@pytest.mark.since(17)
@pytest.mark.parametrize("cluster", [True], indirect=True)
def test_the_next_host_of_the_list_takes_over(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    """With a synchronised slot the running pipeline goes on at the promoted standby, with each change once."""
    db = Database(cluster, "postgres")
    rig = rig_of(db, tmp_path, other_hosts=(OTHER,), session_attrs="primary")
    rig.config = replace(rig.config, slot=replace(rig.config.slot, failover=True))
    try:
        rig.start()
        rig.wait_caught_up()
        db.execute("INSERT INTO orders VALUES (11)")
        rig.wait_caught_up()
        with logged_snapshots(cluster), at_other(cluster) as standby:
            ready = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary"
            until(lambda: standby.execute(ready).fetchone() == (1,))
        fail_over(cluster)
        with at_other(cluster) as promoted:
            promoted.execute("INSERT INTO orders VALUES (12)")
        rig.wait_caught_up()
        assert rig.destination.copies_of("orders") == 1
        assert rig.destination.applied_rows == {"orders": 2}
    finally:
        rig.stop()


@pytest.mark.nightly
@pytest.mark.since(16)
@pytest.mark.parametrize("cluster", [False], indirect=True)
def test_a_host_without_the_slot(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    """Without a synchronised slot the pipeline ends with an error that names the slot, and applies nothing."""
    db = Database(cluster, "postgres")
    rig = rig_of(db, tmp_path, other_hosts=(OTHER,), session_attrs="primary")
    try:
        rig.start()
        rig.wait_caught_up()
        fail_over(cluster)
        with at_other(cluster) as promoted:
            promoted.execute("INSERT INTO orders VALUES (12)")
        assert rig.running is not None
        with pytest.raises(SlotLost) as lost:
            rig.wait(lambda p: False)
        assert lost.value.code == "slot_missing"
        assert f"levada_{db.name}" in lost.value.message
        assert "levada resync" in lost.value.hint
        assert rig.destination.applied_rows == {}
    finally:
        rig.running = None


def test_a_renamed_database(db: Database, tmp_path: Path) -> None:
    """The running pipeline waits for its database. Once the manifest has the new name it goes on, without a copy."""
    rig, new = rig_of(db, tmp_path), f"{db.name}_new"
    names = {"old": sql.Identifier(db.name), "new": sql.Identifier(new)}
    with psycopg.connect(db.server.uri(), autocommit=True) as admin:
        rig.start()
        rig.wait_caught_up()
        db.close()
        rename = sql.SQL("ALTER DATABASE {old} RENAME TO {new}").format(**names)
        until(lambda: _renamed(admin, rename, db.name))
        try:
            rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == "source_database_missing")
            rig.stop()
            rig.config = replace(rig.config, source=replace(rig.config.source, database=new))
            Database(db.server, new).execute("INSERT INTO orders VALUES (11)")
            rig.start()
            rig.wait_caught_up()
            rig.stop()
        finally:
            rig.stop()
            until(lambda: _renamed(admin, sql.SQL("ALTER DATABASE {new} RENAME TO {old}").format(**names), new))
    assert rig.destination.copies_of("orders") == 1
    assert rig.destination.applied_rows == {"orders": 1}


def _renamed(admin: psycopg.Connection[Any], rename: sql.Composed, database: str) -> bool:
    """Return True once the database was renamed, for which no session may be in it."""
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
    try:
        admin.execute(rename)
    except psycopg.errors.ObjectInUse:
        return False
    return True


@pytest.mark.nightly
def test_a_renamed_role(start_postgres: StartPostgres, tmp_path: Path) -> None:
    """A role loses its MD5 password with its name. The running pipeline waits, and goes on with the new login."""
    login = tmp_path / "login"
    login.mkdir()
    (login / "username").write_text("md5_old")
    (login / "password").write_text("first")
    with start_postgres() as server:
        hba = server.data / "pg_hba.conf"
        hba.write_text("host all /^md5_ 127.0.0.1/32 md5\n" + hba.read_text())
        db = Database(server, "postgres")
        db.execute(
            "SELECT pg_reload_conf()",
            "SET password_encryption = 'md5'; CREATE ROLE md5_old SUPERUSER REPLICATION LOGIN PASSWORD 'first'",
        )
        rig = rig_of(db, tmp_path, user=None, credentials=login)
        try:
            rig.start()
            rig.wait_caught_up()
            db.execute("ALTER ROLE md5_old RENAME TO md5_new")
            db.execute("INSERT INTO orders VALUES (11)")
            db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'md5_new'")
            rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == "source_auth_failed")
            db.execute("SET password_encryption = 'md5'; ALTER ROLE md5_new PASSWORD 'second'")
            (login / "username").write_text("md5_new")
            (login / "password").write_text("second")
            rig.wait_caught_up()
            assert rig.destination.copies_of("orders") == 1
            assert rig.destination.applied_rows == {"orders": 1}
        finally:
            rig.stop()


@pytest.mark.nightly
@pytest.mark.since(17)
@pytest.mark.parametrize("cluster", [True], indirect=True)
def test_an_identity_that_is_lent_while_the_next_host_takes_over(cluster: EmbeddedPostgres, tmp_path: Path) -> None:
    """Its UPDATEs work at the promoted standby too, where the engine gives the table its own identity back."""
    db = Database(cluster, "postgres")
    rig = rig_of(db, tmp_path, other_hosts=(OTHER,), session_attrs="primary")
    rig.config = replace(rig.config, slot=replace(rig.config.slot, failover=True), discovery_s=0.2)
    rig.config = replace(rig.config, selects=Only("orders", "items"))
    db.execute("CREATE TABLE other (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    publication = rig.config.publication.name
    try:
        rig.start()
        rig.wait_caught_up()
        with logged_snapshots(cluster), at_other(cluster) as standby:
            ready = "SELECT count(*) FROM pg_replication_slots WHERE synced AND NOT temporary"
            until(lambda: standby.execute(ready).fetchone() == (1,))
        with suppress(psycopg.OperationalError), db.connect() as holder:
            holder.execute("BEGIN")
            holder.execute(f"ALTER PUBLICATION {publication} ADD TABLE other")  # type: ignore[arg-type]  # a name
            db.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey", "UPDATE orders SET id = id + 1000")
            identity = "SELECT relreplident::text FROM pg_class WHERE relname = 'orders'"
            assert db.query(identity) == [("f",)]
            fail_over(cluster)
        with at_other(cluster) as promoted:
            promoted.execute("UPDATE orders SET id = id + 1000")
            until(lambda: promoted.execute(identity).fetchone() == ("d",))
            promoted.execute("UPDATE orders SET id = id - 1000")
            assert promoted.execute("SELECT FROM levada_ddl.lent").fetchall() == []
            promoted.execute("INSERT INTO items VALUES (1)")
        rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)
    finally:
        rig.stop()
