"""A pipeline of a partitioned table into a lake, and what both sides have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg import Connection
from tests.rigs.database import Database, log_of
from tests.rigs.pipeline import Only, Rig, table
from tests.servers.ducklake import DuckLake

import levada.runtime.stages.storage_poller
from levada.destinations import Destination, DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings
from levada.values import Lsn

Rows = set[tuple[Any, ...]]
COLUMNS = "id, extract(epoch FROM ts)::bigint, kind, note"


class Partitioned:
    """A pipeline of the partitioned table ``t`` into a lake, and what both sides have."""

    def __init__(self, db: Database, rig: Rig, read: Callable[[], Rows]) -> None:
        self.db = db
        self.rig = rig
        self.read = read
        self.logged = 0

    def source(self) -> Rows:
        return set(self.db.query(f"SELECT {COLUMNS} FROM t"))  # type: ignore[arg-type]

    def source_in(self, connection: Connection[Any]) -> Rows:
        """Return the rows that a transaction sees."""
        return set(connection.execute(f"SELECT {COLUMNS} FROM t").fetchall())  # type: ignore[arg-type]

    def start(self) -> None:
        """Start the pipeline with a log of its statements at the source. Those after the copy of the table count."""
        # First, because sessions are kept.
        self.db.execute(f"ALTER DATABASE {self.db.name} SET log_statement = 'all'")  # type: ignore[arg-type]
        self.rig.start()
        self.rig.wait_caught_up()
        self.settle()
        self.logged = len(log_of(self.db.server))

    def settle(self, kept: Rows | None = None) -> None:
        """Wait until the lake has what the source has, and ``kept``. Fail if the table is parked or is copied again."""
        expected = self.source() | (kept or set())
        ((text,),) = self.db.query("SELECT pg_current_wal_insert_lsn()::text")
        lsn = Lsn.parse(text)

        def equal(progress: Any) -> bool:
            state = table(progress, "t")
            assert state.error is None, state.error
            return (progress.verified_lsn or 0) >= lsn and self.read() == expected

        self.rig.wait(equal)

    def copies(self) -> list[str]:
        """Return the COPY statements that have read the source since `start`."""
        logged = log_of(self.db.server)[self.logged :].splitlines()
        return [line for line in logged if re.search(r'COPY .*"?public"?\."?t', line)]

    def read_leaves(self) -> set[str]:
        """Return the names of the relations that `copies` has read."""
        found = [re.search(r'FROM ONLY "public"\."(\w+)"', line) for line in self.copies()]
        names = [match[1] for match in found if match]
        return set(names)


@pytest.fixture(params=["ducklake", "postgres"])
def made(
    request: pytest.FixtureRequest, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Partitioned]:
    """A pipeline that is not started, into each destination."""
    monkeypatch.setenv("PGUSER", "postgres")
    monkeypatch.setattr(levada.runtime.stages.storage_poller, "poll_interval_s", lambda tables: 0.5)
    context = DestinationContext("shop", tmp_path / "work")
    destination: Destination
    if request.param == "ducklake":
        lake = DuckLake(db, tmp_path / "data", context)
        destination = lake.destination()

        def read() -> Rows:
            return set(lake.sql(f"SELECT {COLUMNS} FROM shop_public.t"))
    else:
        options = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "schema": "copy"}
        settings = Settings.model_validate({**options, "tls": {"mode": "Disable"}})
        destination = PostgresDestination.from_settings(settings, context)

        def read() -> Rows:
            return set(db.query(f"SELECT {COLUMNS} FROM copy.t"))  # type: ignore[arg-type]

    rig = Rig(db, tmp_path)
    rig.destination = destination  # type: ignore[assignment]  # the rig only passes it on
    rig.change(selects=Only("t"), freshness_s=0.2)
    yield Partitioned(db, rig, read)
    rig.stop()


MONTHS = (
    "CREATE TABLE t (id bigint, ts timestamptz, kind text, note text, PRIMARY KEY (id, ts, kind))"
    " PARTITION BY RANGE (ts)",
    "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
    "CREATE TABLE t_2 PARTITION OF t FOR VALUES FROM ('2026-02-01') TO ('2026-03-01') PARTITION BY LIST (kind)",
    "CREATE TABLE t_2a PARTITION OF t_2 FOR VALUES IN ('a', 'it''s')",
    "CREATE TABLE t_2d PARTITION OF t_2 DEFAULT",
    "CREATE TABLE t_3 (note text, dropped int, kind text NOT NULL, ts timestamptz NOT NULL, id bigint NOT NULL,"
    " PRIMARY KEY (id, ts, kind))",
    "ALTER TABLE t_3 DROP dropped",
    "ALTER TABLE t ATTACH PARTITION t_3 FOR VALUES FROM ('2026-03-01') TO ('2026-04-01')",
    "CREATE TABLE t_0 PARTITION OF t DEFAULT",
    "INSERT INTO t SELECT i, '2026-01-01'::timestamptz + i * interval '7 hours',"
    " (ARRAY['a', 'it''s', 'c'])[i % 3 + 1], 'n' FROM generate_series(0, 500) i",
)
