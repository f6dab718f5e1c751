"""A running pipeline whose slot is lost: it ends with the way to recover, or copies all again, by policy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, table
from tests.rigs.waiting import LIMIT_S, until

import levada.runtime.report.catch_up
from levada.errors import SlotLost, StaleEpoch, Transient
from levada.postgres.stream import ReplicationStream
from levada.runtime.config import RetryLimits
from levada.status import ErrorProgress, Progress
from levada.stores.interface import TableAction
from levada.values import Durability, Lsn, TableId


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over two tables, not started yet."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text, secret text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT i FROM generate_series(1, 10) i",
    )
    made = Rig(db, tmp_path)
    made.config = replace(made.config, retries=RetryLimits(delay_s=1.0, max_delay_s=1.0))
    yield made
    made.stop()


def lose_slot(db: Database, *statements: LiteralString) -> None:
    """Drop the slot under the engine that streams from it, in the transaction of the statements.

    A new slot waits for the transaction, so no copy begins without what the statements write.
    """
    with db.connect() as connection, connection.transaction():
        for statement in statements:
            connection.execute(statement)
        until(lambda: _drops_slot(connection))


def _drops_slot(connection: psycopg.Connection[Any]) -> bool:
    """Drop the slot. Return False if the engine has connected to it again."""
    with suppress(psycopg.errors.ObjectInUse), connection.transaction():
        connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
            " WHERE database = current_database() AND NOT temporary"
        )
        return True
    return False


def test_a_slot_lost_while_running_is_made_again(rig: Rig, db: Database) -> None:
    """Under Resync the running pipeline makes a new slot, copies every table again, and goes on."""
    rig.config = replace(rig.config, slot=replace(rig.config.slot, resync_when_lost=True))
    rig.start()
    rig.wait_caught_up()
    lose_slot(db, "INSERT INTO orders VALUES (11)")
    rig.wait(lambda p: p.ready and all(rig.destination.copies_of(t) == 2 for t in ("orders", "items")))
    assert [rows for name, _, _, rows in rig.destination.copies if name == "orders"] == [10, 11]
    db.execute("INSERT INTO orders VALUES (12)")
    rig.wait_caught_up()
    assert rig.destination.applied_rows.get("orders") == 1


def test_a_slot_lost_while_running_ends_the_pipeline(rig: Rig, db: Database) -> None:
    """Under Hold the pipeline ends, and does not start again until a copy of every table was requested."""
    rig.start()
    rig.wait_caught_up()
    lose_slot(db)
    assert rig.running is not None
    with pytest.raises(SlotLost) as ended:
        rig.running.wait(LIMIT_S)
    assert (ended.value.code, ended.value.hint) == ("slot_missing", "levada resync MANIFEST --all")
    with pytest.raises(SlotLost) as refused:
        rig.start()
    assert "levada resync MANIFEST --all" in refused.value.hint
    store = rig.store()
    store.load_table_replication_states()
    for known in store.get_table_replication_states():
        store.request_table_action(known, TableAction.RESYNC)
    rig.start()
    rig.wait_caught_up()
    assert rig.destination.copies_of("orders") == 2


def take_slot(db: Database) -> ReplicationStream:
    """Take the slot away from the engine that streams from it."""
    name = f"levada_{db.name}"
    while True:
        db.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
        try:
            return ReplicationStream(db.connection, slot=name, publication=name)
        except Transient:
            continue


def test_an_attempt_is_reported_once(rig: Rig, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """While another process has the slot, a failed attempt is one error, with the PID, its number and its next retry.

    The number is the first again once a session has begun.
    """
    rig.config = replace(rig.config, retries=RetryLimits(delay_s=600.0, max_delay_s=600.0))
    rig.start()
    rig.wait_caught_up()
    seen: dict[int, set[ErrorProgress]] = {}

    def look(progress: Progress) -> bool:
        error = progress.capture.error
        if error is not None:
            seen.setdefault(error.attempts, set()).add(error)
        return error is not None and error.attempts >= 3

    with take_slot(db):
        rig.wait(look)
    later = [errors for attempt, errors in seen.items() if attempt > 1]
    assert {len(errors) for errors in later} == {1}
    assert {error.code for errors in later for error in errors} == {"slot_active"}
    assert all("PID" in e.reason and e.next_retry is not None for errors in later for e in errors)
    db.execute("INSERT INTO items VALUES (1)")
    rig.wait_caught_up()
    # The delay after a first attempt. The log keeps what the progress shows for half a second.
    first = "capture interrupted, next try in 0 s"
    before = caplog.text.count(first)
    db.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL")
    until(lambda: caplog.text.count(first) > before)


def put_destination_ahead(rig: Rig, db: Database) -> None:
    """Have the store know an earlier start of the server, and the destination more of orders than the source has."""
    store = rig.store()
    store.load_fingerprints()
    kept = json.loads(store.get_fingerprint("source") or "")
    store.join(store.next_epoch())
    store.store_fingerprint("source", json.dumps({**kept, "server": [*kept["server"][:3], "an earlier start"]}))
    marks = rig.destination.marks
    [(orders,)] = db.query("SELECT 'orders'::regclass::oid")
    marks[TableId(orders)] = replace(marks[TableId(orders)], lsn=Lsn(marks[TableId(orders)].lsn + (1 << 30)))


def require_another_history(rig: Rig) -> None:
    """Wait until orders is parked because the source may be another."""
    seen = rig.wait(lambda p: bool(p.tables) and getattr(table(p, "orders").error, "retry_policy", "") == "NoRetry")
    error = table(seen, "orders").error
    assert error is not None
    assert error.code == "source_changed"
    assert error.solution == "levada resync MANIFEST public.orders"


def test_a_destination_beyond_the_source(rig: Rig, db: Database) -> None:
    """After a restart of the server, a table whose destination has more than the source is known to have is parked."""
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    put_destination_ahead(rig, db)
    rig.start()
    require_another_history(rig)
    db.execute("INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)


def test_a_doubt_outlives_the_engine(rig: Rig, db: Database) -> None:
    """An engine that ends before it could read the destination leaves its doubt to the next one."""
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    put_destination_ahead(rig, db)

    def refuse() -> None:
        raise Transient("destination_unavailable", "the destination does not answer")

    rig.destination.before_look = refuse
    rig.start()
    rig.wait(lambda p: bool(p.tables) and p.capture.connected and all(t.error is not None for t in p.tables))
    rig.stop()
    rig.destination.before_look = lambda: None
    rig.start()
    require_another_history(rig)


def test_nothing_is_caught_up_with_a_server_that_was_not_verified(
    rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of the server the positions of its WAL count only once a session has verified its history."""
    rig.start()
    rig.wait_caught_up()
    assert rig.running is not None
    with take_slot(db):
        with monkeypatch.context() as patch:
            patch.setattr(levada.runtime.report.catch_up, "read_start_time", lambda connection: "a later start")
            caught_up = rig.running.caught_up()
        rig.wait(lambda p: p.capture.error is not None)
        assert not caught_up(rig.running.progress())  # paced: no session can verify meanwhile
    rig.wait(caught_up)


def test_a_store_that_is_older_than_the_destination(rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store was put back, and the destination has a later epoch: the next start goes on."""
    rig.start()
    rig.wait_caught_up()

    def refuse(*args: object) -> Durability:
        raise StaleEpoch(1, 9)

    with monkeypatch.context() as patch:
        patch.setattr(rig.destination, "write_events", refuse)
        db.execute("INSERT INTO items VALUES (1)")
        assert rig.running is not None
        with pytest.raises(StaleEpoch):
            rig.running.wait(LIMIT_S)
    rig.stop()
    assert rig.store().next_epoch() == 10
