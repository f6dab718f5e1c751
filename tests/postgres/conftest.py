"""Servers that differ from the session's own, each started once when a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from tests.rigs.database import Database, StartPostgres
from tests.servers.postgres import older_options

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.slots import drop_slot


@pytest.fixture(scope="module")
def physical(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """A server with wal_level=replica."""
    with start_postgres(settings={"wal_level": "replica"}) as server:
        yield server


@pytest.fixture
def own_server(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that the test may stop."""
    with start_postgres() as server:
        yield server


@pytest.fixture(scope="module")
def older(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """Debian's 15 with its JIT, or 16 where that cannot be had."""
    with start_postgres(**older_options()) as server:
        yield server


@pytest.fixture(params=["session", "older"])
def versions(request: pytest.FixtureRequest, db: Database) -> Iterator[Database]:
    """A database on the session's server, and one on the oldest version at hand."""
    if request.param == "session":
        yield db
        return
    server: EmbeddedPostgres = request.getfixturevalue("older")
    with psycopg.connect(server.uri(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {db.name}")
        yield Database(server, db.name)
        for (slot,) in admin.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = %s", [db.name]
        ).fetchall():
            with Database(server, db.name).connect() as connection:
                drop_slot(connection, slot, terminate=True)
        admin.execute(f"DROP DATABASE {db.name} WITH (FORCE)")
