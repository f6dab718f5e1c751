"""A second server as the destination of `levada run`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg import sql
from tests.rigs.database import Database, StartPostgres
from tests.rigs.engine import Engine


@pytest.fixture(scope="module")
def server(start_postgres: StartPostgres) -> Iterator[Database]:
    """A server of its own for the destination."""
    with start_postgres() as started:
        yield Database(started, "postgres")


@pytest.fixture
def target(server: Database) -> Iterator[Database]:
    """A database on it."""
    server.execute("DROP DATABASE IF EXISTS replica", "CREATE DATABASE replica")
    made = Database(server.server, "replica")
    yield made
    made.close()


def write_manifest(engine: Engine, target: Database, *table_syncs: dict[str, Any], **options: Any) -> None:
    """Write a manifest with the target as its destination."""
    options = {"host": "127.0.0.1", "port": target.server.port, "database": target.name} | options
    engine.write_secret("target", {"username": "postgres", "password": "unused"})
    engine.spec["destination"] = {
        "postgres": {"tls": {"mode": "Disable"}, "credentialsSecretRef": {"name": "target"}, **options}
    }
    engine.write_manifest(*table_syncs)


def differences(source: Database, target: Database, *tables: str) -> list[str]:
    """Return the tables whose columns or rows, as the servers print them, are not the same on both sides."""
    wrong = []
    for table in tables:
        expected = _printed(source, table)
        assert len(expected[1]) > 1, f"{table} is empty, which shows nothing"
        if expected != _printed(target, table):
            wrong.append(table)
    return wrong


def _printed(db: Database, table: str) -> tuple[list[str], list[bytes]]:
    with db.connect(options="-c timezone=UTC -c extra_float_digits=3 -c intervalstyle=postgres") as connection:
        names = [
            n
            for (n,) in connection.execute(
                "SELECT attname::text FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0"
                " AND NOT attisdropped AND attgenerated = '' ORDER BY attname",
                [f'public."{table}"'],
            )
        ]
        query = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, names)), sql.Identifier("public", table)
        )
        with connection.cursor().copy(query) as copy:
            return names, sorted(b"".join(bytes(part) for part in copy).split(b"\n"))
