"""``kill -9`` at each step of the drop of the slot by the guard, and of the copies after it."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults import killed_release
from tests.faults.guarded import ROWS, actions, source
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.replica_server import differences, server, target, write_manifest
from tests.rigs.waiting import LIMIT_S, until

__all__ = ["server", "target"]

SLOT = "SELECT active FROM pg_replication_slots WHERE slot_name = %s AND confirmed_flush_lsn IS NOT NULL"


@contextlib.contextmanager
def open_until_dropped(db: Database, slot: str) -> Iterator[None]:
    """Keep a transaction open until the slot is dropped. Then write, so that only a copy has these rows."""
    ended = threading.Event()

    def hold() -> None:
        with db.connect() as opened, opened.transaction():
            opened.execute("INSERT INTO a VALUES (-1, 'open')")
            until(lambda: ended.is_set() or not db.query(SLOT, slot))
            opened.execute("INSERT INTO a VALUES (-2, 'dropped')")
            db.execute("UPDATE b SET v = 'while there is no slot'", "DELETE FROM b WHERE id % 5 = 0")

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.parametrize("on_lost", ["Resync", "Hold", "Compare"])
@pytest.mark.parametrize("point", killed_release.POINTS)
def test_nothing_is_lost(engine: Engine, db: Database, target: Database, point: str, on_lost: str) -> None:
    """After a kill at any step, the next engines drop the slot and copy or compare all tables, or go on as before."""
    if on_lost == "Hold" and point not in ("recorded", "dropping", "dropped"):
        pytest.skip("the engine has ended by then")
    if on_lost != "Compare" and point in ("repaired", "accepted"):
        pytest.skip("nothing is repaired")
    db.execute(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)" for name in "ab"))
    db.execute(*(ROWS.format(name, 1, 200) for name in "ab"))
    slot = f"levada_{db.name}"
    engine.spec = {
        "guard": {"retainedWal": {"releaseSlot": "8Mi"}},
        "source": {**source(engine), "slot": {"name": slot, "onLost": on_lost}},
    }
    write_manifest(engine, target)
    wrapper = (sys.executable, str(Path(killed_release.__file__)))
    engine.start(*wrapper)
    engine.wait_caught_up()
    assert engine.stop() == 0
    with open_until_dropped(db, slot):
        db.execute(ROWS.format("a", 1_000, 12_000), "UPDATE b SET v = 'last of the old slot'")
        engine.start(*wrapper, KILL_AT=point)
        assert engine.process is not None
        assert engine.process.wait(LIMIT_S) == -9, engine.log[-4000:]
        dropped = not db.query(SLOT, slot)
        engine.start(*wrapper)
        if on_lost == "Hold":
            assert engine.process.wait(LIMIT_S) != 0
            assert "slot_released" in engine.log
            assert not db.query(SLOT, slot)
            engine.levada("resync", *engine.options(), "--all")
            engine.start(*wrapper)
        if not dropped:
            engine.wait_for(lambda p: any(a.endswith("is dropped") for a in actions(p)))
    progress = engine.wait_caught_up()
    assert any(a.endswith(f"so slot {slot} is dropped") for a in actions(progress))
    engine.assert_verified("a", "b")
    assert differences(db, target, "a", "b") == []
    assert engine.stop() == 0
