"""Every change of a real PostgreSQL lands once, in order, and the slot follows."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.capture import Capture
from tests.rigs.database import Database

from levada.errors import SlotLost, Transient
from levada.segments import SegmentWriter, Staging
from levada.values import Lsn

TABLES = (
    "CREATE TABLE a (id int PRIMARY KEY, n int, note text)",
    "CREATE TABLE b (id int PRIMARY KEY, n int)",
)


def test_every_kind_of_change_lands(capture: Capture, db: Database) -> None:
    """Inserts, updates, changes of key, deletes, truncates, of several tables in one transaction, in order."""
    db.execute(*TABLES, "CREATE TABLE skipped (id int PRIMARY KEY)")
    capture.prepare()
    db.execute("ALTER TABLE a ALTER note SET STORAGE EXTERNAL")
    with capture.running():
        db.execute(
            "INSERT INTO a SELECT i, i, repeat('x', 5000) FROM generate_series(1, 5) i",
            "UPDATE a SET n = -n WHERE id < 4",
            "UPDATE a SET id = 10 WHERE id = 5",
            "DELETE FROM a WHERE id = 2",
            "INSERT INTO skipped VALUES (1)",
            "WITH x AS (INSERT INTO a VALUES (20, 1, 'y') RETURNING id) INSERT INTO b SELECT id, 0 FROM x",
            "INSERT INTO b VALUES (1, 1)",
            "TRUNCATE b",
            "INSERT INTO b VALUES (2, 2)",
        )
        capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")
    assert capture.replayed("b") == capture.source("b")
    assert capture.rows("skipped") == []
    unchanged = [r for r in capture.rows("a") if r["_levada_unchanged"]]
    assert len(unchanged) == 4
    assert capture.log.list() == tuple(capture.segments)


def test_what_is_rolled_back_does_not_land(capture: Capture, db: Database) -> None:
    """Aborted transactions and subtransactions leave nothing. Committed subtransactions are part of the whole."""
    db.execute(*TABLES)
    capture.prepare()
    with capture.running(), db.connect() as c:
        with c.transaction(force_rollback=True):
            c.execute("INSERT INTO a VALUES (1)")
        with c.transaction():
            c.execute("INSERT INTO a VALUES (2)")
            with c.transaction(force_rollback=True):
                c.execute("INSERT INTO a VALUES (3)")
            with c.transaction():
                c.execute("INSERT INTO a VALUES (4)")
        capture.catch_up()
    rows = capture.rows("a")
    assert [r["id"] for r in rows] == [2, 4]
    assert [r["_levada_ordinal"] for r in rows] == [0, 1]
    assert len({r["_levada_commit_lsn"] for r in rows}) == 1


def test_the_slot_follows_what_is_durable(capture: Capture, db: Database) -> None:
    """On durable staging a segment is acknowledged when its manifest is there, and an idle slot moves on."""
    db.execute(*TABLES)
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        head = capture.catch_up()
        capture.until(lambda: capture.confirmed() >= head)
        segments = len(capture.segments)
        db.execute("CREATE TABLE skipped AS SELECT generate_series(1, 1000) AS id")
        later = capture.catch_up()
        capture.until(lambda: capture.confirmed() >= later)
    assert len(capture.segments) == segments == 1
    assert capture.worker.position.acknowledged_lsn is not None


def test_scratch_waits_for_apply(db: Database, tmp_path: Path) -> None:
    """On scratch staging, the slot stays until every table has applied.

    Then it moves that far, and further when idle.
    """
    capture = Capture(db, tmp_path / "staging", durable=False)
    db.execute(*TABLES)
    capture.prepare()
    before = capture.confirmed()
    with capture.running() as worker:
        db.execute("INSERT INTO a VALUES (1)")
        capture.catch_up()
        assert worker.position.staged_lsn > before
        assert worker.position.acknowledged_lsn == before
        worker.applied(Lsn(before + 1))
        assert worker.position.acknowledged_lsn is not None
        assert capture.segments[-1].end_lsn > before + 1
        worker.applied(capture.segments[-1].end_lsn)
        head = capture.catch_up()
        capture.until(lambda: capture.confirmed() >= head)
    assert capture.confirmed() >= capture.segments[-1].end_lsn


def test_scratch_that_is_lost_is_captured_again(db: Database, tmp_path: Path) -> None:
    """A restart without its scratch begins at what was applied."""
    capture = Capture(db, tmp_path / "one", durable=False)
    db.execute(*TABLES)
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)", "INSERT INTO a VALUES (2)")
        capture.catch_up()
    again = Capture(db, tmp_path / "two", durable=False)
    with again.running():
        again.catch_up()
    assert [r["id"] for r in again.rows("a")] == [1, 2]


def test_a_restart_goes_on_where_it_was(capture: Capture, db: Database) -> None:
    """Stopped and started again at any time, with writers at work: every change is there once."""
    db.execute(*TABLES)
    capture.prepare()

    def write(base: int) -> None:
        with db.connect() as c:
            for i in range(300):
                with c.transaction():
                    c.execute("INSERT INTO a VALUES (%s, 0)", [base + i])
                    c.execute("UPDATE a SET n = n + 1 WHERE id = %s", [base + i // 2])

    writers = [threading.Thread(target=write, args=(base,)) for base in (0, 1000)]
    for w in writers:
        w.start()
    while any(w.is_alive() for w in writers):
        capture.new_worker()
        with capture.running():
            capture.until(lambda: capture.worker.position.rows > 50 or not any(w.is_alive() for w in writers))
        assert capture.error is None
    capture.new_worker()
    with capture.running():
        capture.catch_up()
    assert capture.replayed("a") == capture.source("a")
    assert len(capture.rows("a")) == 1200


def test_a_killed_connection_loses_nothing(capture: Capture, db: Database) -> None:
    """A walsender that dies in the middle of a transaction: Transient, no half of it staged, and it comes again."""
    db.execute(*TABLES)
    capture.prepare()
    capture.new_worker(fill_s=30.0)
    with capture.running():
        db.execute("INSERT INTO b VALUES (1, 1)", "INSERT INTO a SELECT i, 0 FROM generate_series(1, 80000) i")
        capture.wait(lambda p: p.open_rows > 20_000)
        db.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
        capture.until(lambda: not capture.alive)
    assert isinstance(capture.error, Transient)
    assert [f for m in capture.log.list() for f in m.files if f.table == capture.table("a")] == []
    assert {m.name for m in capture.log.list()} == {m.name for m in capture.segments}
    capture.new_worker()
    with capture.running():
        capture.catch_up()
    assert capture.column("a", "id") == list(range(1, 80_001))
    assert capture.rows("b") == capture.rows("b")[:1]


def test_a_large_transaction_needs_little_memory(capture: Capture, db: Database) -> None:
    """The memory held for a transaction has a bound, however large it is. It is a segment of its own."""
    db.execute(*TABLES)
    capture.prepare()
    held: list[int] = []
    original = SegmentWriter.add

    def add(self: SegmentWriter, batch: object) -> None:
        original(self, batch)  # type: ignore[arg-type]  # handed on as it came
        held.append(self.buffered_bytes)

    SegmentWriter.add = add  # type: ignore[method-assign]  # watched, not replaced
    try:
        db.execute(
            "INSERT INTO b VALUES (1, 1)",
            "INSERT INTO a SELECT i, i, repeat('x', 200) FROM generate_series(1, 200000) i",
        )
        with capture.running():
            capture.catch_up()
    finally:
        SegmentWriter.add = original  # type: ignore[method-assign]  # as it was
    assert max(held) < 8 << 20
    assert len(held) > 10
    [large] = [m for m in capture.segments if capture.table("a") in m.tables]
    assert (large.transactions, large.total_rows) == (1, 200_000)
    assert capture.column("a", "id") == list(range(1, 200_001))


def test_a_stop_in_a_transaction_keeps_what_was_before(capture: Capture, db: Database) -> None:
    """Stopped inside of a large transaction, capture lands all before it, and nothing of it."""
    db.execute(*TABLES)
    capture.prepare()
    capture.new_worker(fill_s=60.0, batch_bytes=1 << 40)
    with capture.running():
        db.execute("INSERT INTO b VALUES (1, 1)", "INSERT INTO a SELECT i, 0 FROM generate_series(1, 80000) i")
        capture.wait(lambda p: p.open_rows > 10_000)
    assert capture.error is None
    assert [r["id"] for r in capture.rows("b")] == [1]
    assert len(capture.column("a", "id")) in (0, 80_000)
    assert capture.log.collect_garbage() == 0
    capture.new_worker()
    with capture.running():
        capture.catch_up()
    assert capture.column("a", "id") == list(range(1, 80_001))


def test_a_heartbeat_moves_a_quiet_slot(capture: Capture, db: Database) -> None:
    """With nothing but heartbeats in the WAL, the slot follows them."""
    db.execute(*TABLES)
    capture.prepare()
    capture.new_worker(heartbeat_s=0.1)
    before = capture.confirmed()
    with capture.running():
        capture.until(lambda: capture.confirmed() > before + 500)
    assert capture.segments == []


def test_a_busy_slot_is_transient(capture: Capture, db: Database) -> None:
    """The worker raises Transient for a slot that another process holds, and its caller retries."""
    db.execute(*TABLES)
    capture.prepare()
    with capture.running():
        capture.until(lambda: capture.worker.position.received_lsn is not None)
        other = Capture(db, Path(capture.staging.uri))
        with other.running():
            other.until(lambda: not other.alive)
    assert isinstance(other.error, Transient)


def test_reopening_is_seamless(capture: Capture, db: Database) -> None:
    """A session that is reopened on request continues after the staged changes."""
    db.execute(*TABLES)
    capture.prepare()
    with capture.running() as worker:
        for i in range(3):
            db.execute("INSERT INTO b SELECT coalesce(max(id), 0) + 1, 0 FROM b")
            capture.catch_up()
            worker.reopen()
            capture.wait(lambda p, i=i: p.segments == i + 1)  # type: ignore[misc]  # bound here
        capture.catch_up()
    assert [r["id"] for r in capture.rows("b")] == [1, 2, 3]


def test_a_segment_whose_end_is_not_known_is_handed_on(
    capture: Capture, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A publish that fails after the manifest became visible: the segment is neither lost nor written twice."""
    db.execute(*TABLES)
    capture.prepare()
    original = Staging.publish
    failures = iter([True])

    def publish(self: Staging, path: str, content: bytes, **more: Any) -> None:
        original(self, path, content, **more)
        if next(failures, False):
            raise Transient("staging_unavailable", "no answer")

    monkeypatch.setattr(Staging, "publish", publish)
    with capture.running():
        db.execute("INSERT INTO a VALUES (1)")
        capture.until(lambda: not capture.alive)
    assert isinstance(capture.error, Transient)
    assert capture.segments == []
    with capture.running():
        db.execute("INSERT INTO a VALUES (2)")
        capture.catch_up()
    assert capture.column("a", "id") == [1, 2]
    assert capture.log.list() == tuple(capture.segments)


def test_a_lost_slot_is_told(capture: Capture, db: Database) -> None:
    """Without its slot capture does not begin anywhere else."""
    db.execute(*TABLES)
    with pytest.raises(SlotLost):
        capture.worker.run(threading.Event())


def test_tables_are_verified_before_each_session(capture: Capture) -> None:
    """Nothing is staged in a session whose tables could not be verified, and each session verifies them again."""
    capture.db.execute("CREATE TABLE t (id int PRIMARY KEY)")
    capture.prepare()
    away = True
    verified: list[int] = []

    def verify() -> None:
        if away:
            raise Transient("source_unreachable", "the catalog cannot be read")
        verified.append(len(capture.segments))

    worker = capture.new_worker(verify)
    capture.db.execute("INSERT INTO t VALUES (1)")
    with capture.running():
        capture.until(lambda: capture.error is not None)
    assert capture.segments == []
    away = False
    with capture.running():
        capture.catch_up()
        worker.reopen()
        capture.until(lambda: len(verified) == 2)
    assert verified == [0, 1]
