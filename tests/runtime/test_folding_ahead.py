"""Large transactions in progress are folded before their COMMIT, whatever becomes of them and of their tables."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.open_transactions import Client, send_immediately
from tests.rigs.pipeline import Only, Rig, table, wait_for
from tests.rigs.waiting import until
from tests.servers.ducklake import DuckLake

from levada.capture.in_progress import InProgressLimits
from levada.capture.message_stream import SliceLimits
from levada.destinations import DestinationContext
from levada.destinations.ducklake import DuckLakeDestination
from levada.runtime.limits import Limits
from levada.segments.limits import FileLimits
from levada.status import PipelineState
from levada.values import TableId

TABLES = ("a", "b")


class Lake:
    """A pipeline into DuckLake, with sizes at which a few hundred rows are folded before their COMMIT."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.lake = DuckLake(db, folder / "data", DestinationContext("shop", folder / "work"))
        self.rig = Rig(db, folder)
        small = FileLimits(row_group_bytes=1 << 14, early_rows=200)
        self.rig.change(
            staging=replace(self.rig.config.staging, limits=small),
            limits=Limits(slices=SliceLimits(messages=40), in_progress=InProgressLimits(chunk_messages=10)),
            freshness_s=0.2,
        )

    def start(self, *tables: str) -> DuckLakeDestination:
        """Start it, and return its destination."""
        destination = self.lake.destination()
        self.rig.destination = destination  # type: ignore[assignment]  # the rig only passes it on
        self.rig.change(selects=Only(*tables))
        self.rig.start()
        self.rig.wait_caught_up()
        return destination

    def files(self, table: str = "") -> int:
        """The number of data files in the lake's folder, or of one table there."""
        return sum("delete" not in p.name for p in self.lake.folder.rglob(f"{table or '*'}/*.parquet"))

    def used(self, name: str) -> int:
        """The results of tasks that the last batch of a table has used."""
        return table(self.rig.wait_caught_up(), name).last_apply_tasks

    def assert_equal(self, *tables: str) -> None:
        """Compare the rows of both sides."""
        for name in tables:
            there = self.lake.sql(f"SELECT id, v FROM shop_public.{name} ORDER BY 1")
            assert there == self.db.query(f"SELECT id, v FROM {name} ORDER BY 1"), name  # type: ignore[arg-type]  # a name


@pytest.fixture
def lake(db: Database, tmp_path: Path, own_process: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lake]:
    """A pipeline that is not started, of tables with a key."""
    monkeypatch.setenv("PGUSER", "postgres")
    with db.connect() as c:
        c.execute(f"ALTER DATABASE {db.name} SET logical_decoding_work_mem = '64kB'")  # type: ignore[arg-type]  # a name
        send_immediately(c)
    for name in TABLES:
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (0, 'copied')")  # type: ignore[arg-type]  # a name
    made = Lake(db, tmp_path)
    yield made
    made.rig.stop()


ROWS = "INSERT INTO a SELECT i, repeat(md5(i::text), 20) FROM generate_series(%s::int, %s::int) i"


def test_it_is_folded_before_the_commit_and_visible_at_it(lake: Lake, db: Database) -> None:
    """Its data files are there while it is open. What is rolled back leaves none, and the rest counts as it is."""
    lake.start(*TABLES)
    before = lake.files()
    with db.connect() as c:
        c.execute("BEGIN")
        c.execute(ROWS, (1, 900))
        until(lambda: lake.files() > before)
        c.execute("ROLLBACK")
        until(lambda: lake.files() == before)
        c.execute("BEGIN")
        c.execute(ROWS, (1, 900))
        c.execute("UPDATE a SET v = 'last' WHERE id % 7 = 0")
        c.execute("INSERT INTO b VALUES (1, 'small')")
        until(lambda: lake.files() > before)
        c.execute("SAVEPOINT s")
        c.execute("DELETE FROM a")
        c.execute(ROWS, (1, 4000))
        until(lambda: lake.files() > before + 12)
        c.execute("ROLLBACK TO SAVEPOINT s")
        until(lambda: lake.files() < before + 12)
        db.execute("INSERT INTO b VALUES (2, 'between')")
        assert lake.used("a") == 0
        lake.assert_equal("a", "b")
        c.execute("COMMIT")
    assert lake.used("a") > 0
    lake.assert_equal("a", "b")


def test_a_slow_removal_stops_nothing(lake: Lake, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the data files of a transaction that was rolled back are removed, other changes become visible."""
    destination = lake.start(*TABLES)
    forget, called, go = destination.forget_ahead, threading.Event(), threading.Event()
    before = lake.files("a")

    def slowly(table: TableId, paths: Sequence[str]) -> None:
        called.set()
        wait_for(go)
        forget(table, paths)

    monkeypatch.setattr(destination, "forget_ahead", slowly)
    with db.connect() as c:
        c.execute("BEGIN")
        c.execute(ROWS, (1, 900))
        until(lambda: lake.files("a") > before)
        c.execute("ROLLBACK")
    wait_for(called)
    db.execute("INSERT INTO b VALUES (1, 'meanwhile')")
    lake.rig.wait_caught_up()
    lake.assert_equal(*TABLES)
    assert lake.files("a") > before
    go.set()
    until(lambda: lake.files("a") == before)


def test_the_end_of_the_engine(lake: Lake, db: Database) -> None:
    """It ends without an error while a transaction is open, and leaves no data file of it."""
    lake.start(*TABLES)
    before = lake.files("a")
    with db.connect() as c:
        c.execute("BEGIN")
        c.execute(ROWS, (1, 900))
        until(lambda: lake.files("a") > before)
        running = lake.rig.running
        assert running is not None
        lake.rig.stop()
    ended = until(running.progress, lambda p: p.state in (PipelineState.STOPPED, PipelineState.FAILED))
    assert ended.state is PipelineState.STOPPED
    until(lambda: lake.files("a") == before)


@pytest.mark.parametrize("seed", [1, *(pytest.param(s, marks=pytest.mark.nightly) for s in range(2, 22))])
def test_random_transactions(lake: Lake, db: Database, seed: int) -> None:
    """Savepoints, truncates, columns that come and moved keys, while the engine starts again: the rows are equal."""
    tables = [t for t in Client.create(db, 3) if t != "shared"]
    lake.start(*tables)
    r = random.Random(seed)
    clients = [Client(db, n, seed) for n in range(3)]
    for turn in range(90):
        r.choice(clients).step()
        if turn in (30, 60):
            lake.rig.stop()
            lake.start(*tables)
    for client in clients:
        client.end()
    lake.rig.wait_caught_up()
    lake.assert_equal(*tables)


def test_a_table_that_is_left_out(lake: Lake, db: Database) -> None:
    """The data files of its transaction are removed, although it was suspended and has not applied it."""
    lake.start(*TABLES)
    before = lake.files("a")
    with db.connect() as c:
        c.execute("BEGIN")
        c.execute(ROWS, (1, 900))
        until(lambda: lake.files("a") > before)
        lake.rig.say("a", suspended=True)
        c.execute("COMMIT")
    db.execute("INSERT INTO b VALUES (1, 'later')")
    until(lambda: lake.lake.sql("SELECT count(*) FROM shop_public.b") == [(2,)])
    lake.rig.change(selects=Only("b"))
    lake.rig.wait(lambda p: [t.table.name for t in p.tables] == ["b"])
    db.execute("INSERT INTO b VALUES (2, 'last')")
    until(lambda: lake.files("a") == before)


def test_a_destination_that_folds_nothing_ahead_gets_large_transactions(rig: Rig, db: Database) -> None:
    """Their files are staged while they are open too. Neither a COMMIT nor a ROLLBACK ends the engine."""
    with db.connect() as c:
        c.execute(f"ALTER DATABASE {db.name} SET logical_decoding_work_mem = '64kB'")  # type: ignore[arg-type]  # a name
        send_immediately(c)
    rig.change(
        selects=Only("orders"),
        staging=replace(rig.config.staging, limits=FileLimits(row_group_bytes=1 << 14, early_rows=200)),
        limits=Limits(slices=SliceLimits(messages=40), in_progress=InProgressLimits(chunk_messages=10)),
    )
    rig.start()
    rig.wait_caught_up()
    staged = Path(rig.config.staging.uri.removeprefix("file://"))
    files = len(list(staged.rglob("*.parquet")))
    for end in ("ROLLBACK", "COMMIT"):
        with db.connect() as c:
            c.execute("BEGIN")
            c.execute("INSERT INTO orders SELECT i, repeat(md5(i::text), 20) FROM generate_series(11, 910) i")
            until(lambda: len(list(staged.rglob("*.parquet"))) > files)
            c.execute(end)
        rig.wait_caught_up()
        until(lambda: len(list(staged.rglob("*.parquet"))) == files)
    assert rig.destination.applied_rows == {"orders": 900}
