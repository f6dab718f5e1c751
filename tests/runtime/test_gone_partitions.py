"""Partitions with rows that are detached or dropped: their rows leave the destination, and nothing is copied."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table, wait_for
from tests.servers.ducklake import DuckLake

from levada.apply.removal import RemovalBatch
from levada.destinations import Destination, DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings
from levada.errors import Transient
from levada.runtime.config import RetryLimits
from levada.segments.batch import EventBatch
from levada.values import Durability, Watermark

Rows = set[tuple[Any, ...]]
_COLUMNS = "id, extract(epoch FROM ts)::bigint, kind, note"


class Partitioned:
    """A pipeline of the partitioned table ``t`` into a lake, and what both sides have."""

    def __init__(self, db: Database, rig: Rig, read: Callable[[], Rows]) -> None:
        self.db = db
        self.rig = rig
        self.read = read
        self.logged = 0

    def source(self) -> Rows:
        return set(self.db.query(f"SELECT {_COLUMNS} FROM t"))  # type: ignore[arg-type]

    def start(self) -> None:
        """Start the pipeline, and log the statements at the source once the table is copied."""
        self.rig.start()
        self.rig.wait_caught_up()
        self.settle()
        self.db.execute(f"ALTER DATABASE {self.db.name} SET log_statement = 'all'")  # type: ignore[arg-type]
        self.logged = len(self.db.server.log.read_text())

    def settle(self) -> None:
        """Wait until the lake has what the source has. Fail if the table is parked or is copied again."""
        expected = self.source()

        def equal(progress: Any) -> bool:
            state = table(progress, "t")
            assert state.error is None, state.error
            return self.read() == expected

        self.rig.wait(equal)

    def copies(self) -> list[str]:
        """Return the COPY statements that have read the source since `start`."""
        logged = self.db.server.log.read_text()[self.logged :].splitlines()
        return [line for line in logged if re.search(r'COPY .*"?public"?\."?t', line)]


@pytest.fixture(params=["ducklake", "postgres"])
def made(
    request: pytest.FixtureRequest, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Partitioned]:
    """A pipeline that is not started, into each destination."""
    monkeypatch.setenv("PGUSER", "postgres")
    context = DestinationContext("shop", tmp_path / "work")
    destination: Destination
    if request.param == "ducklake":
        lake = DuckLake(db, tmp_path / "data", context)
        destination = lake.destination()

        def read() -> Rows:
            return set(lake.sql(f"SELECT {_COLUMNS} FROM shop_public.t"))
    else:
        options = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "schema": "copy"}
        settings = Settings.model_validate({**options, "tls": {"mode": "Disable"}})
        destination = PostgresDestination.from_settings(settings, context)

        def read() -> Rows:
            return set(db.query(f"SELECT {_COLUMNS} FROM copy.t"))  # type: ignore[arg-type]

    rig = Rig(db, tmp_path)
    rig.destination = destination  # type: ignore[assignment]  # the rig only passes it on
    rig.change(selects=Only("t"), freshness_s=0.2)
    yield Partitioned(db, rig, read)
    rig.stop()


_MONTHS = (
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


def test_rows_leave_with_their_partition(made: Partitioned) -> None:
    """DETACH and DROP of leaves, of sub-trees and of DEFAULT ones remove their rows. The source is not read."""
    db = made.db
    db.execute(*_MONTHS)
    made.start()
    for statement in (
        "DROP TABLE t_1",
        "ALTER TABLE t_2 DETACH PARTITION t_2d",
        "DROP TABLE t_2a; CREATE TABLE t_2a PARTITION OF t_2 FOR VALUES IN ('a'); INSERT INTO t VALUES (5000,"
        " '2026-02-03', 'a', 'again')",
        "ALTER TABLE t DETACH PARTITION t_0",
        "DROP TABLE t_2",
        "INSERT INTO t VALUES (6000, '2026-03-03', 'a', 'before'); UPDATE t SET id = id + 10000 WHERE id < 225;"
        " ALTER TABLE t DETACH PARTITION t_3; CREATE TABLE t_4 PARTITION OF t FOR VALUES FROM ('2026-03-02') TO"
        " ('2026-03-09'); INSERT INTO t SELECT * FROM (SELECT id, ts, kind, 'back' FROM t_3) r"
        " WHERE ts >= '2026-03-02' AND ts < '2026-03-09'",
    ):
        with db.connect() as connection, connection.transaction():
            for part in statement.split("; "):
                connection.execute(part)  # type: ignore[arg-type]
        made.settle()
    assert len(made.source()) > 5
    assert made.copies() == []


@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_bounds_that_do_not_show_the_rows(made: Partitioned) -> None:
    """A table partitioned by HASH is copied again. The error says why."""
    made.db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, ts timestamptz, kind text, note text) PARTITION BY HASH (id)",
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 0)",
        "CREATE TABLE t_2 PARTITION OF t FOR VALUES WITH (MODULUS 2, REMAINDER 1)",
        "INSERT INTO t SELECT i, now(), 'a', 'n' FROM generate_series(1, 20) i",
    )
    made.start()
    made.db.execute("ALTER TABLE t DETACH PARTITION t_1")
    error = table(made.rig.wait(lambda p: table(p, "t").error), "t").error
    assert error is not None
    assert (error.code, "bounds" in error.reason) == ("partition_changed", True)
    made.rig.copy_again()
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.copies()


@pytest.mark.parametrize("written", [False, True], ids=["before the commit", "after the commit"])
@pytest.mark.parametrize("made", ["postgres"], indirect=True)
def test_rows_leave_exactly_once(made: Partitioned, monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    """Rows of a new partition with the bounds of the former stay, wherever the engine ended before."""
    made.db.execute(*_MONTHS)
    made.rig.change(retries=RetryLimits(delay_s=0.2, max_delay_s=0.2))
    made.start()
    ended = threading.Event()
    write = made.rig.destination.write_events

    def end(events: EventBatch, mark: Watermark) -> Durability:
        if isinstance(events, RemovalBatch):
            if written:
                write(events, mark)
            ended.set()
            raise Transient("ended", "the engine ends")
        return write(events, mark)

    monkeypatch.setattr(made.rig.destination, "write_events", end)
    made.db.execute("DROP TABLE t_1")
    wait_for(ended)
    made.rig.stop()
    monkeypatch.undo()
    monkeypatch.setenv("PGUSER", "postgres")
    made.db.execute(
        "CREATE TABLE t_1 PARTITION OF t FOR VALUES FROM ('2026-01-01') TO ('2026-02-01')",
        "INSERT INTO t VALUES (7000, '2026-01-05', 'a', 'new')",
    )
    made.rig.start()
    made.rig.wait(lambda p: made.read() == made.source())
    assert made.copies() == []
