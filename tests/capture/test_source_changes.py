"""Changes to the slot and the server between two sessions of a running capture, on real servers."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.capture import PUBLICATION, Capture
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import LIMIT_S

from levada.errors import SlotLost, StaleEpoch
from levada.postgres.slots import inspect_slot

CONSUME = (
    "SELECT count(*) FROM pg_logical_slot_get_binary_changes("
    "%s, NULL, NULL, 'proto_version', '1', 'publication_names', %s)"
)


@pytest.fixture(params=[16, 18])
def own(start_postgres: StartPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of the test's own, which may be stopped, killed and put back."""
    with start_postgres(version=request.param) as server:
        yield Database(server, "postgres")


def started(own: Database, folder: Path) -> Capture:
    """Return a capture of a table that has a row staged."""
    own.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture = Capture(own, folder / "staging")
    capture.prepare()
    return capture


def refused(capture: Capture) -> SlotLost:
    """Run the worker until it ends by itself, and return what it raised."""
    with capture.running():
        capture.until(lambda: not capture.alive)
    assert isinstance(capture.error, SlotLost)
    return capture.error


def copy_folder(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another, owners included."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def test_another_consumer_between_two_sessions(capture: Capture, db: Database) -> None:
    """Changes that another consumer took from the slot are missed, not passed over."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    db.execute("INSERT INTO a VALUES (2)")
    capture.until(lambda: db.query(CONSUME, capture.slot, PUBLICATION)[0][0] > 0)
    assert refused(capture).code == "slot_lost"
    assert capture.column("a", "id") == [1]


def test_another_consumer_advances_the_slot_by_nothing(capture: Capture, db: Database) -> None:
    """A slot that another consumer moved no further than the engine had staged has lost nothing."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    db.query("SELECT pg_replication_slot_advance(%s, %s)", capture.slot, str(capture.worker.position.staged_lsn))
    with capture.running():
        db.execute("INSERT INTO a VALUES (2)")
        capture.catch_up()
    assert capture.column("a", "id") == [1, 2]


def test_the_newest_segments_are_lost(capture: Capture, db: Database) -> None:
    """Segments that are lost while the engine is stopped accuse no other consumer: their position is kept as well."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    capture.new_worker(idle_s=1000.0)
    with capture.running():
        for n in range(3):
            db.execute("INSERT INTO a SELECT coalesce(max(id), 0) + 1 FROM a")
            capture.until(lambda n=n: len(capture.segments) > n)  # type: ignore[misc]  # bound
    for manifest in capture.log.list()[1:]:
        capture.log.remove(manifest)
    capture.new_worker(idle_s=1000.0)
    with capture.running():
        db.execute("INSERT INTO a VALUES (4)")
        capture.catch_up()
    assert capture.error is None
    assert capture.column("a", "id") == [1, 4]


def test_a_store_that_is_away_keeps_no_change_waiting(capture: Capture, db: Database) -> None:
    """Changes are staged while a position cannot be kept. It is acknowledged later, as the segments show it too."""
    away = threading.Event()

    def wait() -> None:
        if threading.current_thread().name == "levada-position":
            away.wait(LIMIT_S)

    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    capture.new_worker(idle_s=1000.0)
    with capture.running():
        capture.persisting = wait
        for n in range(3):
            db.execute("INSERT INTO a SELECT coalesce(max(id), 0) + 1 FROM a")
            capture.until(lambda n=n: len(capture.segments) > n)  # type: ignore[misc]  # bound
        away.set()
    assert capture.error is None
    assert capture.confirmed() >= capture.segments[-1].end_lsn
    assert capture.known.staged >= capture.segments[-1].end_lsn


def test_a_paused_engine_that_was_superseded_stages_nothing(capture: Capture, db: Database) -> None:
    """After a pause the engine asks whether it still has the pipeline, before it makes a segment."""

    def refuse() -> None:
        raise StaleEpoch(1, 2)

    seconds = 0.0
    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    capture.new_worker(check=refuse, clock=lambda: time.monotonic() + seconds)
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
        seconds = 3600.0
        capture.until(lambda: not capture.alive)
    assert isinstance(capture.error, StaleEpoch)
    db.execute("INSERT INTO a VALUES (2)")
    assert capture.column("a", "id") == [1]


def test_a_slot_that_was_made_again(capture: Capture, db: Database) -> None:
    """A slot that was dropped and made again under its name is not the slot that was read before."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    db.query("SELECT pg_drop_replication_slot(%s)", capture.slot)
    assert refused(capture).code == "slot_missing"
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", capture.slot)
    assert refused(capture).code == "slot_lost"


@pytest.mark.since(17)
def test_a_failover_slot(capture: Capture, db: Database) -> None:
    """A slot that exists becomes a failover slot where that is asked for."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    capture.new_worker(failover=True)
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    assert db.query("SELECT failover FROM pg_replication_slots WHERE slot_name = %s", capture.slot) == [(True,)]


@pytest.mark.sampled
def test_an_invalidated_slot(own: Database, tmp_path: Path) -> None:
    """A slot whose WAL was removed is lost, whatever the server's version says at START_REPLICATION."""
    capture = started(own, tmp_path)
    with capture.running():
        own.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    own.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    for _ in range(3):
        own.execute("INSERT INTO a SELECT i, 0 FROM generate_series(2, 5) i", "DELETE FROM a WHERE id > 1")
        own.query("SELECT pg_switch_wal()")
    own.execute("CHECKPOINT")
    with own.connect() as connection:
        status = inspect_slot(connection, capture.slot)
    assert status is not None
    assert status.lost
    assert refused(capture).code == "slot_lost"


@pytest.mark.nightly
def test_a_crash_of_the_server(own: Database, tmp_path: Path) -> None:
    """A crash sets the slot back. Changes that are sent again are not staged again, and none is missed."""
    capture = started(own, tmp_path)
    with capture.running():
        for i in range(1, 6):
            own.execute(f"INSERT INTO a VALUES ({i})")  # type: ignore[arg-type]  # digits
            capture.catch_up()
        own.server.stop("immediate")
        capture.until(lambda: not capture.alive)
    own.server.start()
    assert capture.confirmed() < capture.worker.position.staged_lsn
    own.execute("INSERT INTO a VALUES (6)")
    with capture.running():
        capture.catch_up()
    assert capture.error is None
    assert capture.column("a", "id") == [1, 2, 3, 4, 5, 6]


@pytest.mark.sampled
@pytest.mark.parametrize("written", [0, 1, 400])
def test_a_restored_server(own: Database, tmp_path: Path, written: int) -> None:
    """A server that was put back to an earlier state is refused, however far its new WAL reaches."""
    capture = started(own, tmp_path)
    with capture.running():
        own.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    own.server.stop()
    saved = own.server.data.parent / "saved"
    copy_folder(own.server.data, saved)
    own.server.start()
    with capture.running():
        for i in range(2, 50):
            own.execute(f"INSERT INTO a VALUES ({i})")  # type: ignore[arg-type]  # digits
        capture.catch_up()
    own.server.stop()
    copy_folder(saved, own.server.data)
    own.server.start()
    for i in range(written):
        own.execute(f"INSERT INTO a VALUES ({1000 + i})")  # type: ignore[arg-type]  # digits
    [(head,)] = own.query("SELECT pg_current_wal_insert_lsn()::text")
    assert refused(capture).code == "source_changed"
    assert capture.column("a", "id") == list(range(1, 50)), head


@pytest.mark.sampled
def test_another_server(own: Database, tmp_path: Path) -> None:
    """Another server behind the same address is refused, though it has a slot and a publication of these names."""
    capture = started(own, tmp_path)
    with capture.running():
        own.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    own.server.stop()
    shutil.rmtree(own.server.data)
    own.server.start()
    own.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture.prepare()
    assert refused(capture).code == "source_changed"
