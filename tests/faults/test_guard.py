"""The guard under ``levada run``: copies are paused, tables parked and the slot dropped before a disk is full."""

from __future__ import annotations

import contextlib

import psycopg
import pytest
from tests.faults.guarded import ROWS, actions, phases, source, suspended, table
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S


@pytest.mark.parametrize("policy", ["Hold", "Resync"])
def test_the_table_with_the_most_staged_changes_is_parked(engine: Engine, db: Database, policy: str) -> None:
    """The others go on, the staged files are removed, and the table is whole again after its copy."""
    for name in ("held", "goes"):
        table(db, name, 50)
    engine.spec = {
        "guard": {"staged": {"warn": "1Mi", "parkSlowest": "2Mi"}},
        "tables": {"include": [{"schema": "public", "name": "*"}], "onUnstreamable": policy},
    }
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    engine.write_manifest(suspended("held"))
    engine.wait_for(lambda p: all(t["suspended"] for t in p["tables"] if t["name"] == "held"))
    db.execute("UPDATE held SET v = v || random()", ROWS.format("held", 100, 20_000), "UPDATE goes SET v = 'new'")
    engine.wait_for(lambda p: p["guard"]["policy"] == "ParkSlowest" and p["guard"]["pausesCopies"])
    progress = engine.wait_for(lambda p: any("are parked: public.held" in a for a in actions(p)))
    assert phases(progress)["goes"] == "Ready"
    if policy == "Hold":
        engine.wait_for(lambda p: [t["error"] and t["error"]["code"] for t in p["tables"]] == [None, "parked_by_guard"])
    # Within its limits again: the staged files are gone.
    progress = engine.wait_for(lambda p: not p["guard"]["policy"] and p["staging"]["bytes"] < 2**20)
    engine.write_manifest()
    if policy == "Hold":
        engine.wait_for(lambda p: not any(t["suspended"] for t in p["tables"]))
        engine.levada("resync", *engine.options(), "public.held")
    engine.wait_caught_up()
    engine.assert_equal("held", "goes")


def test_no_copy_begins_while_copies_are_paused(engine: Engine, db: Database) -> None:
    """A new table waits at Init, without holding changes, until the pipeline is within its limits."""
    table(db, "old", 50)
    engine.spec = {"guard": {"staged": {"pauseCopies": "1Mi"}}}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    engine.write_manifest(suspended("old"))
    engine.wait_for(lambda p: p["tables"][0]["suspended"])
    db.execute(ROWS.format("old", 100, 20_000))
    engine.wait_for(lambda p: p["guard"]["policy"] == "PauseCopies")
    table(db, "fresh", 50)
    engine.wait_for(lambda p: phases(p).get("fresh") == "Init")
    db.execute(ROWS.format("fresh", 100, 200))
    engine.wait_for(lambda p: p["guard"]["policy"] == "PauseCopies" and phases(p)["fresh"] == "Init")
    engine.write_manifest()
    engine.wait_caught_up()
    engine.assert_equal("old", "fresh")
    assert "guard: the size of the staged changes is" in engine.log


def test_the_slowest_table_releases_the_wal_on_scratch_staging(engine: Engine, db: Database) -> None:
    """Without durable staging the slowest table holds the slot. Once it is parked, the slot moves on."""
    for name in ("held", "goes"):
        table(db, name, 50)
    engine.spec = {"staging": {"scratch": True}, "guard": {"retainedWal": {"parkSlowest": "16Mi"}}}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    engine.write_manifest(suspended("held"))
    engine.wait_for(lambda p: any(t["suspended"] for t in p["tables"]))
    db.execute(ROWS.format("held", 100, 20_000))
    progress = engine.wait_for(lambda p: any("are parked" in a for a in actions(p)))
    assert not any("goes" in a for a in actions(progress))
    db.execute("UPDATE goes SET v = 'new'")
    engine.wait_for(lambda p: not p["guard"]["policy"])
    assert phases(engine.wait_for(lambda p: True)) == {"goes": "Ready", "held": "Errored"}
    engine.write_manifest()
    engine.levada("resync", *engine.options(), "public.held")
    engine.wait_caught_up()
    engine.assert_equal("held", "goes")


@pytest.mark.parametrize("on_lost", ["Hold", "Resync"])
def test_the_slot_is_dropped_before_it_fills_the_disk(engine: Engine, db: Database, on_lost: str) -> None:
    """WAL that an open transaction holds is released by the slot's end alone. Every table is copied again after it."""
    table(db, "t", 50)
    engine.spec = {
        "guard": {"retainedWal": {"warn": "4Mi", "parkSlowest": "8Mi", "releaseSlot": "16Mi"}},
        "source": {**source(engine), "slot": {"name": f"levada_{db.name}", "onLost": on_lost}},
    }
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    with contextlib.ExitStack() as stack:
        opened = stack.enter_context(db.connect())
        opened.autocommit = False
        opened.execute("INSERT INTO t VALUES (-1, 'open')")
        db.execute(ROWS.format("t", 100, 20_000))
        engine.wait_log("slot levada_" + db.name + " is dropped")
        with contextlib.suppress(psycopg.Error):
            opened.commit()
    assert "parking tables would release nothing" in engine.log
    assert "are parked" not in engine.log
    if on_lost == "Hold":
        assert engine.process is not None
        assert engine.process.wait(LIMIT_S) != 0
        assert "slot_released" in engine.log
        assert db.query("SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", f"levada_{db.name}") == [(0,)]
        engine.levada("resync", *engine.options(), "--all")
        engine.start()
    engine.wait_caught_up()
    engine.assert_equal("t")
