"""A standby is promoted in the place of its primary: capture goes on if it has all WAL that was read."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.capture.conftest import Capture
from tests.conftest import Database

from levada.errors import SlotLost
from levada.local.postgres import EmbeddedPostgres, temporary_postgres

STANDBY = {"sync_replication_slots": "off", "hot_standby_feedback": "on", "primary_slot_name": "standby"}


@pytest.fixture
def primary() -> Iterator[Database]:
    """A database on a server of the test's own, of a version that synchronises slots."""
    with temporary_postgres(version=18) as server:
        yield Database(server, "postgres")


@pytest.fixture
def standby(primary: Database) -> Iterator[EmbeddedPostgres]:
    """A standby that streams from the primary."""
    primary.execute("SELECT pg_create_physical_replication_slot('standby', true)")
    made = EmbeddedPostgres(primary.server.data.parent / "standby", version=18, settings=STANDBY)
    subprocess.run(
        [made.bin / "pg_basebackup", "-R", "-X", "stream", "-D", made.data, "-d", primary.uri, "--checkpoint=fast"],
        check=True,
    )
    subprocess.run(["chown", "-R", "--reference", str(primary.server.data), str(made.data)], check=True)
    made.start()
    try:
        yield made
    finally:
        made.stop("immediate")


def begin(primary: Database, standby: EmbeddedPostgres, folder: Path) -> Capture:
    """Return a capture of a table with rows, whose slot the standby has."""
    primary.execute("CREATE TABLE a (id int PRIMARY KEY, n int)")
    capture = Capture(primary, folder / "staging")
    capture.prepare()
    capture.new_worker(failover=True)
    with capture.running():
        primary.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
    follower = Database(standby, "postgres")
    # The slot is synchronised once the standby has replayed up to its position.
    capture.until(lambda: replayed(follower) >= capture.worker.position.staged_lsn)
    primary.query("SELECT pg_log_standby_snapshot()")
    capture.until(lambda: synchronised(follower, capture.slot))
    return capture


def replayed(follower: Database) -> int:
    """Return how far the standby has replayed."""
    [(position,)] = follower.query("SELECT pg_last_wal_replay_lsn() - '0/0'::pg_lsn")
    return int(position)


def synchronised(follower: Database, slot: str) -> bool:
    """Synchronise the slots, and return True if the standby has this one for good."""
    follower.query("SELECT pg_sync_replication_slots()")
    rows = follower.query("SELECT synced AND NOT temporary FROM pg_replication_slots WHERE slot_name = %s", slot)
    return rows == [(True,)]


def promote(primary: Database, standby: EmbeddedPostgres) -> None:
    """Put the standby in the place of the primary, at its address."""
    primary.server.stop("immediate")
    standby.stop()
    standby.port = primary.server.port
    standby.start()
    Database(standby, "postgres").query("SELECT pg_promote()")


def test_a_standby_with_all_wal(primary: Database, standby: EmbeddedPostgres, tmp_path: Path) -> None:
    """A standby that has all WAL that was read is the same source; what its slot sends again is not staged again."""
    capture = begin(primary, standby, tmp_path)
    with capture.running():
        primary.execute("INSERT INTO a SELECT i, 0 FROM generate_series(2, 5) i")
        capture.catch_up()
    capture.until(lambda: replayed(Database(standby, "postgres")) >= capture.worker.position.staged_lsn)
    promote(primary, standby)
    assert capture.confirmed() < capture.worker.position.staged_lsn
    primary.execute("INSERT INTO a VALUES (6)")
    with capture.running():
        capture.catch_up()
    assert capture.error is None
    assert capture.column("a", "id") == [1, 2, 3, 4, 5, 6]


def test_a_standby_that_lost_wal(primary: Database, standby: EmbeddedPostgres, tmp_path: Path) -> None:
    """A standby without WAL that was read is refused, however much it has written since."""
    capture = begin(primary, standby, tmp_path)
    standby.stop()
    with capture.running():
        primary.execute("INSERT INTO a SELECT i, 0 FROM generate_series(2, 5) i")
        capture.catch_up()
    promote(primary, standby)
    primary.execute("INSERT INTO a SELECT i, 0 FROM generate_series(1000, 9000) i")
    with capture.running():
        capture.until(lambda: not capture.alive)
    assert isinstance(capture.error, SlotLost)
    assert capture.error.code == "source_changed"
