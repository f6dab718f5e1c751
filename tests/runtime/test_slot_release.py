"""The guard's last policy, which drops the slot before it fills the source's disk."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig, wait_for
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import SlotLost
from levada.runtime.config import GuardLimit
from levada.status import GuardMeasure, GuardPolicy


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline over a table, not started yet."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    made = Rig(db, tmp_path)
    yield made
    made.stop()


def test_no_batch_delays_the_end_of_the_slot(rig: Rig, db: Database) -> None:
    """The slot is dropped while a destination does not answer, although the pipeline waits for its batch."""
    rig.start()
    rig.wait_caught_up()
    begun, goes_on = threading.Event(), threading.Event()

    def stall(_: str) -> None:
        begun.set()
        wait_for(goes_on)

    rig.destination.before_apply = stall
    try:
        db.execute("INSERT INTO orders SELECT generate_series(1, 1000)")
        assert begun.wait(LIMIT_S)
        rig.change(guard=(GuardLimit(GuardMeasure.RETAINED_WAL, GuardPolicy.RELEASE_SLOT, 1),), guard_patience_s=0.0)
        slot = "SELECT FROM pg_replication_slots WHERE slot_name = %s"
        until(lambda: not db.query(slot, rig.config.slot.name))
        assert rig.running is not None
        assert not rig.running.wait(0)
    finally:
        goes_on.set()
    with pytest.raises(SlotLost, match="the guard drops slot"):
        rig.running.wait(LIMIT_S)
