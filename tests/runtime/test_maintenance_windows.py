"""A running pipeline whose source is away or refuses it for a while. It names the cause, waits, and goes on."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import yaml
from psycopg import sql
from tests.rigs.command_line import log_in_as, manifest_of
from tests.rigs.database import Database, StartPostgres
from tests.rigs.pipeline import Only, Rig
from tests.rigs.waiting import LIMIT_S, until
from tests.servers.stalling_proxy import stalling_proxy
from tests.servers.standby import standby_of

from levada import Engine, caught_up
from levada.local.postgres import EmbeddedPostgres
from levada.runtime.config import RetryLimits
from levada.runtime.host.outcomes import CaughtUp
from levada.status import Progress
from levada.stores import PostgresStore

ROLE = "window_role"
REFUSALS = (
    ("ALTER ROLE {role} NOREPLICATION", "ALTER ROLE {role} REPLICATION", "replication_privilege_missing"),
    ("ALTER ROLE {role} CONNECTION LIMIT 0", "ALTER ROLE {role} CONNECTION LIMIT -1", "too_many_connections"),
    ("ALTER ROLE {role} NOLOGIN", "ALTER ROLE {role} LOGIN", "source_auth_failed"),
    (
        "REVOKE CONNECT ON DATABASE {db} FROM PUBLIC, {role}",
        "GRANT CONNECT ON DATABASE {db} TO {role}",
        "source_access_denied",
    ),
    (
        "ALTER DATABASE {db} ALLOW_CONNECTIONS false",
        "ALTER DATABASE {db} ALLOW_CONNECTIONS true",
        "source_access_denied",
    ),
    (
        "ALTER ROLE {role} SET session_preload_libraries = 'typo'",
        "ALTER ROLE {role} RESET session_preload_libraries",
        "source_access_denied",
    ),
    ("ALTER DATABASE {db} RENAME TO window_db", "ALTER DATABASE window_db RENAME TO {db}", "source_database_missing"),
)


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A running pipeline of a role without more rights than it needs. Its store is in the source."""
    db.execute(
        f"CREATE ROLE {ROLE} LOGIN REPLICATION",  # type: ignore[arg-type]
        f"GRANT CREATE ON DATABASE {db.name} TO {ROLE}",  # type: ignore[arg-type]
        f"GRANT CREATE ON SCHEMA public TO {ROLE}",  # type: ignore[arg-type]
        f"SET ROLE {ROLE}; CREATE TABLE orders (id int PRIMARY KEY)",  # type: ignore[arg-type]
    )
    made = Rig(db, tmp_path)
    source = replace(db.connection, user=ROLE)
    made.config = replace(made.config, source=source, selects=Only("orders"))
    made.store = lambda: PostgresStore(source, "shop")
    made.start()
    made.wait_caught_up()
    yield made
    made.stop()
    db.execute(f"DROP OWNED BY {ROLE}", f"DROP ROLE {ROLE}")  # type: ignore[arg-type]


@pytest.mark.nightly
def test_a_source_that_refuses_the_role_for_a_while(rig: Rig, db: Database, postgres: EmbeddedPostgres) -> None:
    """Rights, limits and names that a person can restore never end a running pipeline."""
    names = {"role": sql.Identifier(ROLE), "db": sql.Identifier(db.name)}
    rows = 0
    with psycopg.connect(postgres.uri(), autocommit=True) as admin:
        for begin, end, code in REFUSALS:
            refused = until(lambda begin=begin: succeeded(admin, sql.SQL(begin).format(**names), db.name))
            assert refused
            end_sessions(admin)
            # While the store is written, which is at the source too, the stream is not looked at.
            rig.wait(lambda p, code=code: code in [e.code for e in (p.capture.error, p.store.error) if e is not None])
            admin.execute(sql.SQL(end).format(**names))
            rows += 1
            db.execute(f"INSERT INTO orders VALUES ({rows})")  # type: ignore[arg-type]
            rig.wait_caught_up()
    assert rig.destination.applied_rows == {"orders": len(REFUSALS)}
    assert rig.destination.copies_of("orders") == 1


def succeeded(admin: psycopg.Connection[tuple[object, ...]], statement: sql.Composed, database: str) -> bool:
    """Return True once the statement was executed. A database is renamed only without sessions."""
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [database])
    try:
        admin.execute(statement)
    except psycopg.errors.ObjectInUse:
        return False
    return True


def end_sessions(admin: psycopg.Connection[tuple[object, ...]]) -> None:
    """End all sessions of the role, as a restart does."""
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [ROLE])


def test_a_database_that_is_read_only_for_a_while(rig: Rig, db: Database) -> None:
    """Changes are staged, the store's error names the setting, and all goes on once it is undone."""
    setting = f"ALTER DATABASE {db.name} {{}} default_transaction_read_only"
    with db.connect() as admin:
        admin.execute(setting.format("SET") + " = on")
        end_sessions(admin)
        admin.execute("INSERT INTO orders VALUES (1)")
        seen = rig.wait(lambda p: p.store.error is not None and p.store.error.code == "store_read_only")
        assert seen.store.error is not None
        assert f"default_transaction_read_only of database {db.name} is on" in seen.store.error.reason
        assert seen.store.error.solution == f'ALTER DATABASE "{db.name}" RESET default_transaction_read_only'
        admin.execute(setting.format("RESET"))
    rig.wait_caught_up()
    assert rig.destination.applied_rows == {"orders": 1}


@pytest.mark.nightly
def test_a_database_that_is_moved_to_another_tablespace(start_postgres: StartPostgres, tmp_path: Path) -> None:
    """PostgreSQL cannot decode the WAL of before. The error names the statement, and its hint brings all back."""
    with start_postgres() as server, psycopg.connect(server.uri(), autocommit=True) as admin:
        for statement in (
            "CREATE DATABASE moved",
            "SET allow_in_place_tablespaces = on",
            "CREATE TABLESPACE elsewhere LOCATION ''",
        ):
            admin.execute(statement.encode())
        db = Database(server, "moved")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        rig = Rig(db, tmp_path)
        rig.config = replace(rig.config, selects=Only("orders"))
        rig.store = lambda: PostgresStore(db.connection, "shop")
        rig.start()
        rig.wait_caught_up()
        db.close()
        move = sql.SQL("ALTER DATABASE moved SET TABLESPACE {}")
        until(lambda: succeeded(admin, move.format(sql.Identifier("elsewhere")), db.name))
        db.execute("INSERT INTO orders VALUES (1)")
        seen = rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == "database_moved")
        assert seen.capture.error is not None
        assert "ALTER DATABASE ... SET TABLESPACE" in seen.capture.error.solution
        rig.stop()
        db.query("SELECT pg_drop_replication_slot(%s)", rig.config.slot.name)
        rig.config = replace(rig.config, slot=replace(rig.config.slot, resync_when_lost=True))
        rig.start()
        rig.wait_caught_up()
        rig.stop()
        assert rig.destination.copies_of("orders") == 2


def test_a_store_that_belongs_to_another_role_for_a_while(rig: Rig, db: Database) -> None:
    """`REASSIGN OWNED` takes the store's schema along. Nothing is read or written there until it is given back."""
    with db.connect() as admin:
        admin.execute("CREATE ROLE window_heir; ALTER SCHEMA levada OWNER TO window_heir")
        end_sessions(admin)
        admin.execute("INSERT INTO orders VALUES (1)")
        codes = {"store_schema_foreign"}
        rig.wait(lambda p: codes <= {e.code for e in (p.capture.error, p.store.error) if e is not None})
        admin.execute(f"ALTER SCHEMA levada OWNER TO {ROLE}; DROP ROLE window_heir")
    rig.wait_caught_up()
    assert rig.destination.applied_rows == {"orders": 1}


@pytest.mark.sampled
@pytest.mark.parametrize("running", [False, True], ids=["at the start", "while running"])
def test_no_free_slot_stops_only_copies(start_postgres: StartPostgres, tmp_path: Path, running: bool) -> None:
    """Tables that are copied stream on. A new one waits, however often it is tried, until a slot is free."""
    with start_postgres(settings={"max_replication_slots": "2", "max_wal_senders": "3"}) as server:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        rig = Rig(db, tmp_path)
        limits = RetryLimits(max_attempts=2, delay_s=0.1, max_delay_s=0.1)
        rig.config = replace(rig.config, discovery_s=0.2, copy_tables=1, retries=limits)
        rig.start()
        rig.wait_caught_up()
        if not running:
            rig.stop()
        # The server drops the copy's own slot a moment after the copy.
        until(lambda: db.query("SELECT FROM pg_replication_slots WHERE temporary") == [])
        db.execute("SELECT pg_create_physical_replication_slot('theirs')", "CREATE TABLE items (id int PRIMARY KEY)")
        if not running:
            rig.start()
        tries = set()

        def tried(progress: Progress) -> bool:
            tries.update(
                t.error.next_retry for t in progress.tables if t.error is not None and t.error.code == "no_free_slot"
            )
            return len(tries) > 3

        rig.wait(tried)
        db.execute("INSERT INTO orders VALUES (1)")
        rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
        db.execute("SELECT pg_drop_replication_slot('theirs')")
        rig.wait(lambda p: p.ready and rig.destination.copies_of("items") == 1)
        rig.stop()


@pytest.mark.nightly
def test_a_start_waits_for_a_wal_sender(
    start_postgres: StartPostgres, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An engine whose tables are copied starts as soon as one is free. It does not end before."""
    caplog.set_level("WARNING", "levada.runtime.host.run")
    with start_postgres(settings={"max_wal_senders": "2"}) as server, ExitStack() as theirs:
        db = Database(server, "postgres")
        db.execute("CREATE DATABASE replica", "CREATE TABLE orders (id int PRIMARY KEY)")
        log_in_as(tmp_path, "postgres")
        target = {"host": "127.0.0.1", "port": server.port, "database": "replica", "tls": {"mode": "Disable"}}
        target["credentialsSecretRef"] = {"name": "shop-cdc"}
        manifest = tmp_path / "pipeline.yaml"
        copy = {"maxConcurrentTables": 1}
        manifest.write_text(yaml.safe_dump(manifest_of(db, destination={"postgres": target}, copy=copy)))
        with Engine(manifest, secrets=tmp_path / "secrets") as engine:
            assert isinstance(engine.run(until=caught_up, timeout_s=LIMIT_S), CaughtUp)
            until(lambda: db.query("SELECT FROM pg_stat_replication") == [])
            for number in range(2):
                theirs.callback(db.connection.connect_replication(application=f"theirs-{number}").finish)
            with ThreadPoolExecutor() as pool:
                ended = pool.submit(engine.run, until=caught_up, timeout_s=LIMIT_S)
                until(lambda: "cannot start the pipeline yet" in caplog.text or ended.done())
                assert not ended.done()
                assert "[no_free_wal_sender]" in caplog.text
                theirs.close()
                assert isinstance(ended.result(), CaughtUp)


def test_an_address_that_leads_to_a_standby_for_a_while(start_postgres: StartPostgres, tmp_path: Path) -> None:
    """The standby without the slot is named, nothing is copied again, and the stream goes on from the primary."""
    with start_postgres() as primary, standby_of(primary) as standby, stalling_proxy(primary.port) as proxy:
        db = Database(primary, "postgres")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        rig = Rig(db, tmp_path)
        source = replace(db.connection, port=proxy.port)
        slot = replace(rig.config.slot, resync_when_lost=True)
        rig.config = replace(rig.config, source=source, slot=slot, selects=Only("orders"))
        rig.store = lambda: PostgresStore(source, "shop")
        rig.start()
        rig.wait_caught_up()
        proxy.lead_to(standby.port)
        seen = rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == "source_standby")
        assert seen.capture.error is not None
        assert "is a standby" in seen.capture.error.reason
        db.execute("INSERT INTO orders VALUES (1)")
        proxy.lead_to(primary.port)
        rig.wait_caught_up()
        rig.stop()
        assert rig.destination.applied_rows == {"orders": 1}
        assert rig.destination.copies_of("orders") == 1
