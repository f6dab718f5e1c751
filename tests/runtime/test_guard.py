"""The guard of a running pipeline: the copies that wait, and the evidence of a slot that it dropped."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig
from tests.rigs.recording import Recording
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import SlotLost, Transient
from levada.postgres.slots import copy_slot_name
from levada.runtime.config import GuardLimit, RetryLimits
from levada.status import GuardMeasure, GuardPolicy, Progress
from levada.values import TableId

PAUSE, RELEASE = GuardPolicy.PAUSE_COPIES, GuardPolicy.RELEASE_SLOT
SLOW_SAMPLES = """
CREATE FUNCTION slow_samples() RETURNS event_trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('application_name') LIKE '%lag' THEN PERFORM pg_sleep(5); END IF;
END $$;
CREATE EVENT TRIGGER slow_samples ON login EXECUTE FUNCTION slow_samples();
ALTER EVENT TRIGGER slow_samples ENABLE ALWAYS;
"""


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of two small tables, not started."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT generate_series(1, 10)",
    )
    made = Rig(db, tmp_path)
    yield made
    made.stop()


def phases(progress: Progress) -> dict[str, str]:
    """Return each table's phase."""
    return {t.name: str(t.phase) for t in progress.tables}


def dropped(progress: Progress) -> bool:
    """Return True if the guard's actions name the slot that it dropped."""
    return any(a.policy == RELEASE and a.message.endswith("is dropped") for a in progress.guard.actions)


@pytest.mark.since(17)  # event triggers of logins
def test_no_copy_begins_before_the_first_sample(rig: Rig, db: Database) -> None:
    """After a restart copies that were paused for the WAL stay paused, also while the slot is not sampled yet."""
    db.execute(SLOW_SAMPLES)
    rig.change(guard=(GuardLimit(GuardMeasure.RETAINED_WAL, PAUSE, 1),))
    for _ in range(2):
        rig.start()
        progress = rig.wait(lambda p: p.guard.policy == PAUSE)
        assert phases(progress) == {"orders": "Init", "items": "Init"}
        assert not rig.destination.copies
        rig.stop()
    rig.change(guard=())
    rig.start()
    rig.wait_caught_up()


@pytest.mark.nightly
def test_a_slot_that_is_being_created_keeps_within_the_limit(
    rig: Rig, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """The transaction that held the WAL of the dropped slot delays the next one, which must not fill the disk."""
    rig.config = replace(
        rig.config,
        slot=replace(rig.config.slot, resync_when_lost=True),
        guard=(GuardLimit(GuardMeasure.RETAINED_WAL, RELEASE, 4 << 20),),
        guard_patience_s=0.0,
        retries=RetryLimits(delay_s=1, max_delay_s=1),
    )
    rig.start()
    rig.wait_caught_up()
    db.execute("CREATE TABLE other (v text)")
    writes = "INSERT INTO other SELECT repeat(md5(i::text), 30) FROM generate_series(1, 8000) i"
    slot = "SELECT FROM pg_replication_slots WHERE slot_name = %s"
    with db.connect() as opened, opened.transaction():
        opened.execute("INSERT INTO orders VALUES (11)")
        db.execute(writes)
        until(lambda: bool(db.query(slot + " AND confirmed_flush_lsn IS NULL", rig.config.slot.name)))
        db.execute(writes)
        until(lambda: not db.query(slot, rig.config.slot.name))
    progress = rig.wait_caught_up()
    assert dropped(progress)
    assert rig.destination.copies_of("orders") >= 2
    ended = next(r.getMessage() for r in caplog.records if "[slot_creation_ended]" in r.getMessage())
    assert f"ended the creation of slot {rig.config.slot.name}, which waits for open transactions" in ended
    assert "backend_xid IS NOT NULL" in ended


def release_slot(rig: Rig) -> None:
    """Let the guard drop the slot at once."""
    rig.change(guard=(GuardLimit(GuardMeasure.RETAINED_WAL, RELEASE, 1),), guard_patience_s=0.0)


@pytest.mark.nightly
def test_a_dropped_slot_is_explained_after_the_resync(rig: Rig) -> None:
    """The status names the policy that dropped the slot when all tables are Ready again, and after a restart."""
    rig.config = replace(rig.config, slot=replace(rig.config.slot, resync_when_lost=True))
    rig.start()
    rig.wait_caught_up()
    release_slot(rig)
    rig.wait(lambda p: dropped(p) and phases(p)["orders"] == "Init")
    rig.change(guard=())
    assert dropped(rig.wait_caught_up())
    rig.stop()
    rig.start()
    assert dropped(rig.wait_caught_up())


WRITES = "INSERT INTO other SELECT repeat(md5(i::text), 30) FROM generate_series(1, 2000) i"


def test_an_engine_that_restarts_again_and_again_drops_the_slot(rig: Rig, db: Database) -> None:
    """Each process ends before the guard's patience does, and the WAL grows from one to the next."""
    db.execute("CREATE TABLE other (v text)")
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    rig.change(guard=(GuardLimit(GuardMeasure.RETAINED_WAL, RELEASE, 1),), guard_patience_s=3600.0)
    with db.connect() as opened, opened.transaction():
        opened.execute("INSERT INTO orders VALUES (11)")
        for _ in range(3):
            db.execute(WRITES)
            rig.start()
            assert not dropped(rig.wait(lambda p: p.guard.policy == RELEASE))
            rig.stop()
        db.execute(WRITES)
        rig.start()
        assert rig.running is not None
        with pytest.raises(SlotLost, match="the guard drops slot"):
            rig.running.wait(LIMIT_S)
    assert not slots(rig)


class Away(Recording):
    """Cannot be opened until it is set to be there."""

    def __init__(self) -> None:
        super().__init__()
        self.there = False

    def startup(self) -> None:
        if not self.there:
            raise Transient("lake_away", "the lake does not answer")


@pytest.mark.nightly
def test_the_slot_is_dropped_while_a_start_waits_for_the_destination(rig: Rig, db: Database) -> None:
    """A slot that an earlier start left, without a copied table, keeps WAL for as long as the lake is away."""
    rig.config = replace(rig.config, guard=(GuardLimit(GuardMeasure.RETAINED_WAL, PAUSE, 1),))
    rig.start()
    rig.wait(lambda p: p.guard.policy == PAUSE)
    rig.stop()
    assert slots(rig)
    away = rig.destination = Away()
    rig.config = replace(
        rig.config,
        guard=(GuardLimit(GuardMeasure.RETAINED_WAL, RELEASE, 1 << 20),),
        guard_patience_s=0.0,
        retries=RetryLimits(delay_s=0.1, max_delay_s=0.1, max_attempts=1_000),
    )
    start = threading.Thread(target=rig.start)
    start.start()
    try:
        db.execute("CREATE TABLE other (v text)", WRITES)
        until(lambda: not slots(rig))
        db.execute("INSERT INTO orders VALUES (11)")
    finally:
        away.there = True
        start.join()
    progress = rig.wait_caught_up()
    assert dropped(progress)
    assert [rows for name, _, _, rows in away.copies if name == "orders"] == [11]


def test_a_killed_copy_keeps_no_wal_after_the_next_start(rig: Rig, db: Database) -> None:
    """The server creates the slot of its snapshot until open transactions end, or until the next start ends that."""
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    kept = "SELECT slot_name FROM pg_replication_slots WHERE temporary"
    # A walsender that waits for a transaction does not see that its client went away; a moment earlier it would.
    waiting = (
        "SELECT slot_name FROM pg_replication_slots JOIN pg_stat_activity ON pid = active_pid"
        " WHERE temporary AND wait_event_type = 'Lock'"
    )
    mine, other = copy_slot_name("shop", TableId(1)), copy_slot_name("other", TableId(1))
    with db.connect() as opened, opened.transaction():
        opened.execute("INSERT INTO orders VALUES (11)")
        for name in (mine, other):
            killed = db.connection.connect_replication(application="killed")
            killed.send_query(f"CREATE_REPLICATION_SLOT {name} TEMPORARY LOGICAL pgoutput EXPORT_SNAPSHOT".encode())
            until(lambda name=name: (name,) in db.query(waiting))  # type: ignore[misc] # bound
            killed.finish()
        rig.start()
        # Other databases of the server may have slots too.
        until(lambda: (mine,) not in db.query(kept))
        assert (other,) in db.query(kept)
    rig.wait_caught_up()


def slots(rig: Rig) -> list[tuple[object, ...]]:
    """Return the pipeline's slot, if there is one."""
    return rig.db.query("SELECT slot_name FROM pg_replication_slots WHERE slot_name = %s", rig.config.slot.name)


def test_a_start_without_the_slot_names_the_guard(rig: Rig, db: Database) -> None:
    """Each start says that the guard dropped the slot, until a new one exists. A slot that a user drops is missing."""
    rig.start()
    rig.wait_caught_up()
    release_slot(rig)
    assert rig.running is not None
    with pytest.raises(SlotLost, match="the guard drops slot"):
        rig.running.wait(LIMIT_S)
    rig.stop()
    rig.change(guard=())
    for _ in range(2):
        with pytest.raises(SlotLost, match=r"the guard dropped slot .* the WAL that the slot keeps is") as raised:
            rig.start()
        assert raised.value.code == "slot_released"
        rig.running = None
    slot = rig.config.slot
    rig.config = replace(rig.config, slot=replace(slot, resync_when_lost=True))
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    db.execute(f"SELECT pg_drop_replication_slot('{slot.name}')")
    rig.config = replace(rig.config, slot=slot)
    with pytest.raises(SlotLost) as raised:
        rig.start()
    assert raised.value.code == "slot_missing"
    rig.running = None
