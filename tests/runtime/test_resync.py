"""A table that is copied again while it streams: what goes on meanwhile, what it comes to, and what ends it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table
from tests.rigs.waiting import LIMIT_S
from tests.runtime.replacing import Replacing

from levada.destinations import DestinationContext
from levada.destinations.postgres import PostgresDestination
from levada.destinations.postgres.settings import Settings
from levada.errors import NeedsOperator, Transient
from levada.runtime.config import RetryLimits
from levada.runtime.report.liveness import hung
from levada.status import Progress
from levada.stores.codecs import ACTION
from levada.stores.interface import TableAction
from levada.values import TableId, Watermark


class Gate:
    """Holds a step of a new copy until it is opened."""

    def __init__(self, step: str) -> None:
        self.step = step
        self.reached, self.opened = threading.Event(), threading.Event()

    def __call__(self, step: str) -> None:
        if step == self.step:
            self.reached.set()
            assert self.opened.wait(LIMIT_S)


class ResyncRig(Rig):
    """A pipeline of one table to copy again, and another."""

    def __init__(self, db: Database, folder: Path) -> None:
        super().__init__(db, folder)
        self.lake = Replacing()
        self.destination = self.lake
        self.change(retries=RetryLimits(max_attempts=3, delay_s=0.1, max_delay_s=0.1))
        self.nonce = 0

    def gate(self, step: str) -> Gate:
        made = Gate(step)
        self.lake.meanwhile = made
        return made

    def resync(self) -> None:
        self.nonce += 1
        self.say("orders", resync_nonce=self.nonce)

    def wait_swapped(self, times: int = 1) -> Progress:
        """Wait for this number of swaps, and until no table has a shadow copy."""
        return self.wait(
            lambda p: self.lake.steps.count("swap") >= times and all(t.resync is None for t in p.tables) and p.ready
        )

    def assert_equal(self) -> None:
        self.wait_caught_up()
        [(rows,)] = self.db.query("SELECT count(*) FROM orders")
        assert self.lake.held["orders"] == rows


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[ResyncRig]:
    """The pipeline, started, with two small tables whose changes are inserts alone."""
    db.execute(
        "CREATE TABLE orders (id serial PRIMARY KEY, note text, secret text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO orders (note) SELECT 'n' FROM generate_series(1, 10) i",
    )
    made = ResyncRig(db, tmp_path)
    made.start()
    made.wait_caught_up()
    yield made
    made.lake.meanwhile = lambda step: None
    made.stop()


def test_a_table_streams_while_it_is_copied_again(rig: ResyncRig, db: Database) -> None:
    """The table and its shadow copy get their changes, and the table stays Ready.

    A complete shadow copy replaces it.
    """
    gate = rig.gate("copied")
    rig.resync()
    assert gate.reached.wait(LIMIT_S)
    db.execute("INSERT INTO orders (note) VALUES ('while copying')", "INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.lake.held["orders"] == 11 and rig.lake.held["items"] == 1)
    seen = rig.wait_caught_up()
    assert {t.phase for t in seen.tables} == {"Ready"}
    resync = table(seen, "orders").resync
    assert resync is not None
    assert (resync.step, resync.pending_rows) == ("Copying", 1)
    assert resync.copy is not None
    assert resync.copy.rows == 10
    assert seen.staging.segments > 0, "what the new copy needs is kept"
    gate.opened.set()
    rig.wait_swapped()
    assert sorted(d[0] for d in rig.lake.dropped) == ["items", "orders"], "only before the first copies"
    assert "follow" in rig.lake.steps
    db.execute("INSERT INTO orders (note) VALUES ('afterwards')")
    rig.assert_equal()
    done = rig.wait(lambda p: p.staging.segments == 0)
    assert table(done, "orders").phase == "Ready"
    assert rig.lake.copies_of("orders") == 2


def test_a_swap_that_does_not_end_is_death(rig: ResyncRig, db: Database) -> None:
    """The time of a swap, as that of a batch, counts from its begin, and changes that wait for it are noticed."""
    gate = rig.gate("swap")
    rig.resync()
    assert gate.reached.wait(LIMIT_S)
    db.execute("INSERT INTO orders (note) VALUES ('while it hangs')")
    rig.wait(lambda p: "swap of table public.orders" in hung(p, 0.5))
    gate.opened.set()
    rig.wait_swapped()


@pytest.mark.nightly
def test_a_restart_begins_a_new_copy_again(rig: ResyncRig, db: Database) -> None:
    """The next process discards an unfinished copy. The request is stored until the swap."""
    gate, copying = rig.gate("follow"), rig.gate("copied")
    rig.resync()
    assert copying.reached.wait(LIMIT_S)
    db_insert(db)
    rig.wait_caught_up()
    rig.lake.meanwhile = gate
    copying.opened.set()
    assert gate.reached.wait(LIMIT_S)
    ends = threading.Thread(target=rig.stop)
    assert rig.running is not None
    assert rig.running._replication is not None
    capture = rig.running._replication.capture
    ends.start()
    # Ended only once nothing is decided any more.
    capture._thread.join(LIMIT_S)
    gate.opened.set()
    ends.join(LIMIT_S)
    assert "swap" not in rig.lake.steps
    db_insert(db)
    rig.start()
    rig.wait_swapped()
    rig.assert_equal()
    rig.stop()
    rig.start()
    rig.wait_caught_up()
    assert rig.lake.steps.count("swap") == 1


def test_a_change_of_columns_begins_it_again(rig: ResyncRig, db: Database) -> None:
    """A copy whose columns are outdated ends immediately, and restarts with the new columns."""
    gate = rig.gate("copied")
    rig.resync()
    assert gate.reached.wait(LIMIT_S)
    db.execute("ALTER TABLE orders ADD COLUMN extra int", "INSERT INTO orders (extra) VALUES (5)")
    rig.wait(lambda p: rig.lake.held["orders"] == 11)
    rig.lake.meanwhile = lambda step: None
    gate.opened.set()
    rig.wait_swapped()
    rig.assert_equal()
    assert rig.lake.copies[-1][2] == ("id", "note", "secret", "extra")
    assert "follow" not in rig.lake.steps


def test_a_new_copy_that_fails_is_no_matter_of_the_table(rig: ResyncRig, db: Database) -> None:
    """Transient errors are retried. Any other error ends the new copy, and the table streams on."""
    failures = iter([Transient("busy", "later"), Transient("busy", "later"), NeedsOperator("full", "no room")])

    def fail(step: str) -> None:
        error = next(failures, None) if step in ("copy", "swap") else None
        if error is not None:
            raise error

    rig.lake.meanwhile = fail
    rig.resync()
    given_up = rig.wait(lambda p: getattr(table(p, "orders").resync, "step", "") == "GivenUp")
    resync = table(given_up, "orders").resync
    assert resync is not None
    assert resync.error is not None
    assert resync.error.code == "full"
    # A retry is for an errored table, and this one is Ready.
    assert resync.error.solution.endswith("levada resync MANIFEST public.orders")
    assert table(given_up, "orders").phase == "Ready"
    assert rig.lake.steps.count("copy") == 3
    rig.wait(lambda p: rig.lake.steps[-1] == "drop")
    rig.assert_equal()
    rig.stop()
    rig.start()
    rig.wait_caught_up()
    assert rig.lake.steps.count("copy") == 3
    rig.resync()
    rig.wait_swapped()
    rig.assert_equal()


def test_an_errored_table_is_mended_by_its_new_copy(rig: ResyncRig, db: Database) -> None:
    """A table that fails during a resync recovers by the swap. One that failed before stays readable meanwhile."""
    refusing = True

    def refuse(name: str) -> None:
        if name == "orders" and refusing:
            raise NeedsOperator("refused", "no room")

    gate = rig.gate("copied")
    rig.resync()
    assert gate.reached.wait(LIMIT_S)
    rig.lake.before_apply = refuse
    db_insert(db)
    rig.wait(lambda p: table(p, "orders").phase == "Errored")
    refusing = False
    gate.opened.set()
    rig.wait_swapped()
    rig.assert_equal()
    refusing = True
    db_insert(db)
    rig.wait(lambda p: table(p, "orders").phase == "Errored")
    refusing = False
    rig.resync()
    rig.wait_swapped(2)
    rig.assert_equal()
    assert [d[0] for d in rig.lake.dropped].count("orders") == 1, "only before the first copy"


@pytest.mark.nightly
def test_a_table_that_leaves_takes_its_new_copy_along(rig: ResyncRig, db: Database) -> None:
    """The copy ends, and its remains are removed. A table that is selected again is not copied twice."""
    gate = rig.gate("copied")
    rig.resync()
    assert gate.reached.wait(LIMIT_S)
    rig.change(selects=Only("items"))
    rig.wait(lambda p: table(p, "orders").suspended)
    rig.lake.meanwhile = lambda step: None
    gate.opened.set()
    rig.wait(lambda p: [t.table.name for t in p.tables] == ["items"])
    assert "drop" in rig.lake.steps
    assert "swap" not in rig.lake.steps
    db_insert(db)
    rig.change(selects=Only("items", "orders"))
    rig.wait(lambda p: len(p.tables) == 2 and p.ready)
    rig.assert_equal()


def test_asking_again_begins_again(rig: ResyncRig, db: Database) -> None:
    """A request that comes while a copy is made, by nonce or by command, is answered by a copy that began later."""
    gate = rig.gate("copied")
    rig.resync()
    assert gate.reached.wait(LIMIT_S)
    assert rig.running is not None
    [orders] = [t.id for t in rig.wait(lambda p: p.tables).tables if t.table.name == "orders"]
    rig.running._store.request_table_action(orders, TableAction.RESYNC)
    rig.wait(lambda p: rig.running is not None and not rig.storage.scan(ACTION))
    rig.lake.meanwhile = lambda step: None
    gate.opened.set()
    rig.wait_swapped()
    assert rig.lake.steps.count("copy") == 2
    rig.assert_equal()


def db_insert(db: Database) -> None:
    """Insert an order."""
    db.execute("INSERT INTO orders (note) VALUES ('later')")


class Meddled(PostgresDestination):
    """Another session removes the state of the first shadow copy before it replaces the table."""

    meddle: Callable[[], None]

    def swap_replacement(self, table: TableId, mark: Watermark) -> bool:
        self.meddle()
        return super().swap_replacement(table, mark)


@pytest.mark.nightly
def test_a_replacement_that_another_session_removed(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The table stays as it was, and is copied again. The error says that something else has changed it."""
    monkeypatch.setenv("PGUSER", "postgres")
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, note text)", "INSERT INTO orders VALUES (1, 'n')")
    server = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    settings = Settings.model_validate({**server, "schema": "replica"})
    rig, swaps = Rig(db, tmp_path), list[int]()
    lake = Meddled.from_settings(settings, DestinationContext("shop", tmp_path))

    def meddle() -> None:
        if not swaps:
            db.execute("DELETE FROM levada.destination_copies")
        swaps.append(1)

    lake.meddle = meddle
    rig.destination = lake  # type: ignore[assignment]  # any destination
    rig.config = replace(rig.config, selects=Only("orders"), retries=RetryLimits(delay_s=0.1, max_delay_s=0.1))
    rig.start()
    try:
        rig.wait_caught_up()
        rig.say("orders", excluded_columns=frozenset({"note"}))
        rig.wait(lambda p: len(swaps) >= 2)
        rig.wait_caught_up()
    finally:
        rig.stop()
    assert db.query("SELECT * FROM replica.orders") == [(1,)]
    assert "the new copy of public.orders cannot replace the table at the destination" in caplog.text
    assert "[replacement_lost]" in caplog.text
