"""The source goes back in time, crashes, fails over or loses its slot: the lake equals it, or says that it does not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine

from levada.local.postgres import temporary_postgres


@pytest.fixture(params=[16, 18])
def own(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of the test's own."""
    with temporary_postgres(version=request.param) as server:
        yield Database(server, "postgres")


@pytest.fixture(params=["durable", "scratch"])
def alone(request: pytest.FixtureRequest, own: Database, tmp_path: Path) -> Iterator[Engine]:
    """An engine over that database, ended with it."""
    made = Engine(own, tmp_path, spec={"staging": {"scratch": True}} if request.param == "scratch" else {})
    try:
        yield made
    finally:
        made.kill()


def copy_folder(source: Path, target: Path) -> None:
    """Replace a folder by a copy of another, owners included."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", str(source), str(target)], check=True)


def fill(db: Database, first: int, last: int) -> None:
    """Insert rows, one transaction each."""
    with db.connect() as connection:
        for i in range(first, last + 1):
            connection.execute("INSERT INTO t VALUES (%s, 'v')", [i])


def save(own: Database) -> Path:
    """Return a copy of the data folder, as a volume's snapshot is one."""
    own.server.stop()
    saved = own.server.data.parent / "saved"
    copy_folder(own.server.data, saved)
    own.server.start()
    return saved


def restore(own: Database, saved: Path) -> None:
    """Put the copy back, and let its WAL go further than it had been."""
    own.server.stop()
    copy_folder(saved, own.server.data)
    own.server.start()
    fill(own, 10_001, 12_000)


def test_a_restored_source_parks_the_tables(alone: Engine, own: Database) -> None:
    """A source, and the store in it, put back under a stopped engine: the tables wait for a new copy."""
    own.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    fill(own, 1, 100)
    alone.write_manifest()
    alone.start()
    alone.wait_caught_up()
    assert alone.stop() == 0
    saved = save(own)
    alone.start()
    alone.wait_for(lambda p: p["ready"])
    fill(own, 101, 500)
    alone.wait_caught_up()
    assert alone.stop() == 0
    restore(own, saved)
    done = alone.levada("run", *alone.options(), "--until", "caught-up", check=False)
    assert done.returncode != 0, done.stdout + done.stderr
    assert "source_changed" in done.stdout + done.stderr + alone.levada("status", *alone.options(), check=False).stdout
    alone.levada("resync", *alone.options(), "--all")
    alone.levada("run", *alone.options(), "--until", "caught-up")
    alone.assert_equal("t")


def test_a_restored_source_is_copied_again_by_policy(alone: Engine, own: Database) -> None:
    """A source put back under a running engine: under Resync the lake equals it again without a person."""
    own.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    fill(own, 1, 100)
    alone.write_manifest()
    document = alone.manifest.read_text().replace("slot:\n", "slot:\n      onLost: Resync\n")
    alone.manifest.write_text(document)
    assert "onLost: Resync" in document
    alone.start()
    alone.wait_caught_up()
    saved = save(own)
    fill(own, 101, 500)
    alone.wait_caught_up()
    restore(own, saved)
    alone.wait_log("source_changed")
    alone.wait_caught_up()
    alone.assert_equal("t")


def test_a_crash_of_the_source_changes_nothing(alone: Engine, own: Database) -> None:
    """A server that crashes again and again, its slot's position lagging: nothing is copied again, lost or doubled."""
    own.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    fill(own, 1, 100)
    alone.write_manifest()
    alone.start()
    alone.wait_caught_up()
    for first in (101, 201, 301):
        fill(own, first, first + 99)
        own.server.stop("immediate")
        own.server.start()
    fill(own, 401, 500)
    alone.wait_caught_up()
    alone.assert_equal("t")
    assert alone.log.count("Init -> DataSync") == 1
    assert alone.stop() == 0
    own.server.stop("immediate")
    own.server.start()
    fill(own, 501, 600)
    alone.levada("run", *alone.options(), "--until", "caught-up")
    alone.assert_equal("t")


def test_a_slot_invalidated_under_the_engine(alone: Engine, own: Database) -> None:
    """A slot whose WAL the server removes is made again by policy, and every table copied again."""
    own.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    fill(own, 1, 100)
    alone.write_manifest()
    alone.manifest.write_text(alone.manifest.read_text().replace("slot:\n", "slot:\n      onLost: Resync\n"))
    alone.start()
    alone.wait_caught_up()
    own.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    with own.connect() as connection:
        # An open transaction keeps the slot's WAL.
        connection.execute("BEGIN")
        connection.execute("INSERT INTO t VALUES (1001, 'v')")
        for _ in range(4):
            own.query("SELECT pg_logical_emit_message(false, 'x', repeat('x', 1000000)), pg_switch_wal()")
            own.execute("CHECKPOINT")
        connection.execute("COMMIT")
    fill(own, 101, 200)
    alone.wait_log("slot_lost")
    own.execute("ALTER SYSTEM RESET max_slot_wal_keep_size", "SELECT pg_reload_conf()")
    alone.wait_caught_up()
    alone.assert_equal("t")


def test_another_consumer_while_the_engine_is_stopped(engine: Engine, db: Database) -> None:
    """Changes that another consumer took are not passed over: the engine refuses, and its hint brings all back."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    fill(db, 1, 100)
    with db.connect() as connection:
        slot = f"levada_{db.name}"
        connection.execute("SELECT pg_switch_wal()")
        connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", [slot])
    done = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
    assert done.returncode != 0
    assert "slot_lost" in done.stdout + done.stderr
    hint = " ".join((done.stdout + done.stderr).split())
    assert f"levada resync {engine.manifest} " in hint
    assert " --all " in hint
    engine.levada("resync", *engine.options(), "--all")
    engine.levada("run", *engine.options(), "--until", "caught-up")
    engine.assert_equal("t")
