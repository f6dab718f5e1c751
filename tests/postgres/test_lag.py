"""The end of the server's WAL."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import until
from tests.servers.standby import logged_snapshots, standby_of

from levada.local.postgres import EmbeddedPostgres
from levada.postgres.lag import LagSample, current_wal_lsn, sample_lag, standby_safe_wal
from levada.values import Lsn


def test_the_end_of_the_wal_is_above_every_commit(start_postgres: StartPostgres) -> None:
    """Also above an asynchronous commit that the server would flush only in ten seconds, and it is flushed then."""
    settings = {"wal_writer_delay": "10s", "wal_writer_flush_after": "100MB", "synchronous_commit": "off"}
    with start_postgres(settings=settings) as server:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE t (id int)")
        with db.connection.connect() as connection:
            for _ in range(3):
                db.execute("INSERT INTO t VALUES (1)")
                [(committed,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
                end = current_wal_lsn(connection)
                [(flushed,)] = db.query("SELECT pg_current_wal_flush_lsn()::text")
                # At the end of a page the insert position is already past the next page's header.
                assert Lsn.parse(committed) - 40 <= end <= Lsn.parse(flushed)


KEEP = {"max_slot_wal_keep_size": "64MB", "wal_keep_size": "32MB", "max_wal_size": "64MB"}


def test_what_a_standby_keeps_is_computed_as_a_primary_does(start_postgres: StartPostgres) -> None:
    """The formula for a standby has the primary's own result, wherever the slot and the end of the WAL are."""
    sizes = (64 << 20, 32 << 20, 16 << 20)
    with start_postgres(settings=KEEP) as server:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE t (v text)", "SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        for _ in range(3):
            sample, end = quiet_sample(db)
            assert standby_safe_wal(end, sample.status.restart_lsn, *sizes) == sample.status.safe_wal_size
            db.execute("INSERT INTO t SELECT repeat(md5(i::text), 30) FROM generate_series(1, 15000) i")
        assert standby_safe_wal(end, sample.status.restart_lsn, -1, *sizes[1:]) is None


def quiet_sample(db: Database) -> tuple[LagSample, Lsn]:
    """Return a sample of slot ``s``, and the end of the WAL, which was the same before and after it."""
    while True:
        [(before,)] = db.query("SELECT pg_current_wal_lsn()::text")
        sample = sample_lag(db.connection, "s")
        [(after,)] = db.query("SELECT pg_current_wal_lsn()::text")
        if before == after:
            assert sample is not None
            return sample, Lsn.parse(after)


@pytest.mark.since(18)
def test_a_standby_says_how_near_a_slot_is_to_its_loss(start_postgres: StartPostgres) -> None:
    """The safe bytes fall while WAL is kept, until the slot is lost. The server's own figure does not change."""
    with ExitStack() as stack:
        primary = stack.enter_context(start_postgres())
        standby = stack.enter_context(standby_of(primary, KEEP))
        db, copy = Database(primary, "postgres"), Database(standby, "postgres")
        db.execute("CREATE TABLE t (v text)")
        with logged_snapshots(primary):
            copy.query("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
        seen: list[tuple[int, int]] = []
        for _ in range(3):
            sample = sample_lag(copy.connection, "s")
            assert sample is not None
            assert sample.retained_bytes is not None
            assert sample.status.safe_wal_size is not None
            seen.append((sample.retained_bytes, sample.status.safe_wal_size))
            db.execute("INSERT INTO t SELECT repeat(md5(i::text), 30) FROM generate_series(1, 15000) i")
            wait_replayed(db, standby)
        assert seen == sorted(seen, key=lambda figures: -figures[1])
        # The slot keeps what max_slot_wal_keep_size allows, rounded to segments of 16 MiB.
        assert {64 << 20 <= sum(figures) <= 96 << 20 for figures in seen} == {True}


def wait_replayed(db: Database, standby: EmbeddedPostgres) -> None:
    """Wait until the standby has replayed the primary's WAL."""
    [(end,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    copy = Database(standby, "postgres")
    replayed = "SELECT pg_last_wal_replay_lsn(), pg_last_wal_replay_lsn() >= %s::pg_lsn"
    until(lambda: copy.query(replayed, end)[0], lambda row: row[1])
