"""A standby as the source of ``levada run``: copies, the stream, a comparison, a cut, and the guard."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.guarded import ROWS, actions, phases, suspended, table
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.waiting import LIMIT_S
from tests.servers.standby import logged_snapshots, standby_of

from levada.local.postgres import temporary_postgres


@pytest.fixture
def primary(tmp_path: Path) -> Iterator[Database]:
    """A primary of its own."""
    with temporary_postgres() as started:
        db = Database(started, "shop")
        Database(started, "postgres").execute("CREATE DATABASE shop")
        yield db


@pytest.fixture
def standby(primary: Database) -> Iterator[Database]:
    """Its standby, which can create slots at any time."""
    with standby_of(primary.server) as started, logged_snapshots(primary.server):
        yield Database(started, "shop")


@pytest.mark.timeout(1800)
def test_a_standby_as_the_source(primary: Database, standby: Database, tmp_path: Path) -> None:
    """Through kills and the guard, every table is equal to the primary's."""
    for name in ("held", "goes"):
        table(primary, name, 2_000)
    primary.execute("CREATE PUBLICATION levada_shop FOR TABLE held, goes")
    engine = Engine(standby, tmp_path)
    engine.spec = {
        "source": {
            "host": "127.0.0.1",
            "port": standby.server.port,
            "database": "shop",
            "credentialsSecretRef": {"name": "pg"},
            "tls": {"mode": "Disable"},
            "slot": {"name": "levada_shop", "onLost": "Resync"},
            "publication": {"name": "levada_shop", "management": "External"},
        },
        "store": {
            "postgres": {
                "connection": {
                    "host": "127.0.0.1",
                    "port": primary.server.port,
                    "database": "shop",
                    "tls": {"mode": "Disable"},
                    "credentialsSecretRef": {"name": "pg"},
                }
            }
        },
        "guard": {"staged": {"pauseCopies": "2Mi", "parkSlowest": "8Mi"}, "retainedWal": {"releaseSlot": "64Mi"}},
    }
    engine.write_manifest()
    try:
        engine.start()
        caught_up(engine, primary)
        primary.execute("UPDATE held SET v = 'u' WHERE id % 3 = 0", "DELETE FROM goes WHERE id % 7 = 0")
        primary.execute(ROWS.format("held", 3_000, 4_000))
        caught_up(engine, primary)
        engine.assert_verified("held", "goes")
        assert "complete at" in engine.levada("cut", *engine.options(), "month_end").stdout
        engine.kill()
        primary.execute("UPDATE goes SET v = 'while it was dead'")
        engine.start()
        caught_up(engine, primary)
        engine.write_manifest(suspended("held"))
        engine.wait_for(lambda p: any(t["suspended"] for t in p["tables"]))
        primary.execute(ROWS.format("held", 10_000, 30_000))
        engine.wait_for(lambda p: any("are parked: public.held" in a for a in actions(p)))
        engine.write_manifest()
        caught_up(engine, primary)
        with primary.connect() as opened:
            opened.autocommit = False
            opened.execute("INSERT INTO goes VALUES (-1, 'open')")
            primary.execute(ROWS.format("held", 50_000, 120_000), "DELETE FROM held WHERE id > 60_000")
            engine.wait_for(lambda p: any(a.endswith("is dropped") for a in actions(p)))
            primary.execute("UPDATE held SET v = 'no slot' WHERE id % 5 = 0")
            opened.commit()
        engine.wait_for(lambda p: set(phases(p).values()) == {"Ready"}, 2 * LIMIT_S)
        caught_up(engine, primary)
        done = engine.levada("verify", *engine.options(), "-o", "json")
        assert all(t["equal"] for t in json.loads(done.stdout)["tables"])
        engine.assert_equal("held", "goes")
        assert engine.stop() == 0
    finally:
        engine.kill()


def caught_up(engine: Engine, primary: Database) -> None:
    """Wait until the standby has replayed, and the engine has applied, all that is committed at the primary now."""
    [(end,)] = primary.query("SELECT pg_current_wal_insert_lsn()::text")

    primary.execute("SELECT pg_logical_emit_message(true, 'test', '')")
    engine.wait_for(
        lambda p: (
            bool(p["tables"]) and all(t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(end) for t in p["tables"])
        )
    )
