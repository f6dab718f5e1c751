"""State in the database of a second server."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.engine import Engine

from levada.local.postgres import EmbeddedPostgres


@pytest.fixture(scope="module")
def second(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """Another server than the source's."""
    with start_postgres() as server:
        yield server


@pytest.fixture
def state(second: EmbeddedPostgres, engine: Engine) -> Database:
    """A database of the second server, which the engine's manifest names for its state."""
    with psycopg.connect(second.uri(), autocommit=True) as admin:
        admin.execute("DROP DATABASE IF EXISTS states WITH (FORCE)")
        admin.execute("CREATE DATABASE states")
    connection = {
        "host": "127.0.0.1",
        "port": second.port,
        "database": "states",
        "credentialsSecretRef": {"name": "state"},
        "tls": {"mode": "Disable"},
    }
    engine.spec["store"] = {"postgres": {"schema": "pipelines", "connection": connection}}
    engine.write_secret("state", {"username": "postgres", "password": "unused"})
    return Database(second, "states")


def test_kill_and_restart(engine: Engine, db: Database, state: Database) -> None:
    """A killed engine resumes from its state at the second server. Commands read it there, and a clean-up removes it."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, v int)",
        "INSERT INTO orders SELECT i, i FROM generate_series(1, 1000) i",
    )
    engine.spec["deletionPolicy"] = {"publication": "Delete"}
    engine.write_manifest()
    engine.levada("check", *engine.options())
    assert state.query("SELECT FROM pg_namespace WHERE nspname = 'pipelines'") == [], "a check creates nothing"
    engine.start()
    engine.wait_caught_up()
    db.execute("UPDATE orders SET v = -v WHERE id <= 500", "DELETE FROM orders WHERE id > 900")
    engine.kill()
    db.execute("INSERT INTO orders VALUES (2000, 1)", "UPDATE orders SET v = 7 WHERE id = 1")
    assert "Ready" in engine.levada("status", *engine.options()).stdout
    engine.start()
    engine.wait_caught_up()
    engine.assert_equal("orders")
    [(epoch,)] = state.query("SELECT epoch FROM pipelines.pipelines")
    assert epoch == 2
    assert len(state.query("SELECT FROM pipelines.documents WHERE kind = 'phases'")) == 1
    assert db.query("SELECT FROM pg_namespace WHERE nspname IN ('pipelines', 'levada')") == []
    assert engine.stop() == 0
    engine.levada("cleanup", *engine.options(), "--yes")
    assert db.query("SELECT FROM pg_replication_slots WHERE database = %s", db.name) == []
    assert db.query("SELECT FROM pg_publication") == []
    assert state.query("SELECT FROM pipelines.documents") == []


def test_a_second_server_that_is_away(engine: Engine, db: Database, second: EmbeddedPostgres, state: Database) -> None:
    """The check names the store's server and its fields. A running engine waits for it and continues."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    second.stop("immediate")
    try:
        db.execute("INSERT INTO orders VALUES (2)")
        done = engine.levada("check", *engine.options(), check=False)
        assert done.returncode
        assert "store_unreachable" in done.stdout + done.stderr
    finally:
        second.start()
    engine.wait_caught_up()
    engine.assert_equal("orders")


def test_a_store_that_lost_its_state(
    engine: Engine, db: Database, state: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A start over an empty store does not take the pipeline for a new one, because its slot exists."""
    monkeypatch.setenv("LEVADA_PIPELINE_UID", "0b6c")
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    engine.write_manifest()
    engine.levada("run", *engine.options(), "--until", "caught-up")
    state.execute("DROP SCHEMA pipelines CASCADE")
    done = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
    assert done.returncode
    assert "store_empty" in done.stdout + done.stderr


def test_a_wrong_password_names_the_stores_secret(engine: Engine, db: Database, state: Database) -> None:
    """The code is the store's, so nothing takes the source for unreachable."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    state.execute("DROP ROLE IF EXISTS secret_store", "CREATE ROLE secret_store LOGIN PASSWORD 'right'")
    engine.write_manifest()
    engine.write_secret("state", {"username": "secret_store", "password": "wrong"})
    done = engine.levada("check", *engine.options(), check=False)
    text = " ".join((done.stdout + done.stderr).split())
    assert "store_login_failed" in text
    assert "Secret state" in text
    assert "source_auth_failed" not in text


def test_a_connection_to_the_source_itself(engine: Engine, db: Database) -> None:
    """State that the manifest puts into the source by another address is not replicated, so no write causes another."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    connection = {"host": "localhost", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    connection["credentialsSecretRef"] = {"name": "pg"}
    engine.spec["store"] = {"postgres": {"connection": connection}}
    engine.spec["tables"] = {"include": [{"schema": "*", "name": "*"}]}
    engine.write_manifest()
    for _ in range(2):
        engine.levada("run", *engine.options(), "--until", "caught-up")
        db.execute("INSERT INTO orders SELECT count(*) + 1 FROM orders")
    assert db.query("SELECT schemaname, tablename FROM pg_publication_tables") == [("public", "orders")]
    assert len(db.query("SELECT FROM levada.documents WHERE kind = 'phases'")) == 1
