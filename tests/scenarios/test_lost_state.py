"""The ways on after a loss: of the store, of the slot, and of the place of staged changes. Each by the commands.

They run in pytest's process, where each opens everything again. `test_without_spark` starts each as a process.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.command_line import levada
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.manifests import suspended
from tests.rigs.replica_server import differences, server, target, write_manifest

__all__ = ["server", "target"]


@pytest.fixture
def copied(engine: Engine, db: Database, target: Database) -> Engine:
    """A stopped engine that has copied the tables ``a`` and ``b`` in its sixth epoch."""
    for name in "ab":
        db.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)", f"INSERT INTO {name} VALUES (0, 'copied')")
    write_manifest(engine, target, schema="public")
    caught_up(engine)
    db.execute("UPDATE levada.epochs SET epoch = epoch + 5")
    db.execute("INSERT INTO a VALUES (1, 'streamed')")
    caught_up(engine)
    return engine


def caught_up(engine: Engine) -> None:
    """Run until every table has caught up."""
    code, text = said(engine, "run", "--until", "caught-up")
    assert code == 0, text


def said(engine: Engine, command: str, *arguments: str) -> tuple[int, str]:
    """Run a command. Return its exit code, and its output without line breaks."""
    done = levada(command, *engine.options(), *arguments)
    return done.exit_code, " ".join(done.output.split())


@pytest.mark.parametrize(
    "work_folder",
    [
        pytest.param(False, id="a staging area"),
        pytest.param(True, id="the work folder", marks=pytest.mark.nightly),
    ],
)
def test_a_lost_store(copied: Engine, db: Database, target: Database, work_folder: bool) -> None:
    """`check` has the commands of the recovery, and each works at the first try. Every table is equal afterwards.

    Its message has no UID that exists nowhere. The order of the commands cannot be missed: a resync before the takeover
    is refused as the start is.
    """
    if work_folder:
        copied.spec["staging"] = {}
        write_manifest(copied, target, schema="public")
        caught_up(copied)
    db.execute("DROP SCHEMA levada CASCADE", "INSERT INTO b VALUES (2, 'unread')", "UPDATE a SET v = 'unread'")
    code, text = said(copied, "check")
    assert (code, "[not_the_owner]" in text) == (3, True)
    [former] = set(re.findall(r"UID (local-[0-9a-f-]+)", text))
    assert "and this is Pipeline shop, which has no state in its store" in text
    assert f"--from {former}" in text
    assert "resync" in text
    for command in (("resync", "--all"), ("run", "--until", "caught-up")):
        code, text = said(copied, *command)
        assert (code != 0, former in text, "[not_the_owner]" in text) == (True, True, True)
    code, text = said(copied, "takeover", "--from", former, "--yes")
    assert (code, "which has no state" in text) == (0, False)
    code, text = said(copied, "run", "--until", "caught-up")
    assert (code, "[store_empty]" in text) == (3, True), "nothing is copied before it is requested"
    code, text = said(copied, "resync", "--all")
    assert (code, text.count("will be copied again")) == (0, 2)
    assert said(copied, "check")[0] == 0
    caught_up(copied)
    assert differences(db, target, "a", "b") == []
    db.execute("INSERT INTO a VALUES (3, 'streamed')")
    caught_up(copied)
    assert differences(db, target, "a", "b") == []


@pytest.mark.nightly
def test_a_lost_store_of_a_pipeline_object(
    copied: Engine, db: Database, target: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Pipeline with a UID needs no takeover, also if its publication was lost with the store."""
    owner = "SELECT owner_uid FROM levada.pipelines"
    [(former,)] = db.query(owner)
    monkeypatch.setenv("LEVADA_PIPELINE_UID", "0b6c")
    assert said(copied, "takeover", "--from", former, "--yes")[0] == 0
    caught_up(copied)
    db.execute("DROP SCHEMA levada CASCADE", f"DROP PUBLICATION levada_{db.name}", "INSERT INTO b VALUES (2, 'unread')")
    code, text = said(copied, "run", "--until", "caught-up")
    assert (code, "[store_empty]" in text) == (3, True)
    code, text = said(copied, "resync", "--all")
    assert (code, text.count("will be copied again")) == (0, 2)
    caught_up(copied)
    assert db.query(owner) == [("0b6c",)]
    assert differences(db, target, "a", "b") == []


@pytest.mark.nightly
def test_a_lost_slot(copied: Engine, db: Database, target: Database) -> None:
    """`check` ends as the start does, and no longer once a resync of each table was requested. `plan` has them then."""
    db.query("SELECT pg_drop_replication_slot(%s)", f"levada_{db.name}")
    for command in (("check",), ("plan",), ("run", "--until", "caught-up")):
        code, text = said(copied, *command)
        assert (code, "[slot_missing]" in text) == (3, True)
    said(copied, "resync", "a")
    assert said(copied, "check")[0] == 3, "b needs the slot still"
    said(copied, "resync", "b")
    code, text = said(copied, "check")
    assert (code, "slot_missing" in text) == (0, False)
    found = json.loads(levada("plan", *copied.options(), "-o", "json").stdout)
    assert {table["name"]: table["copiedAgain"] for table in found["plan"]["tables"]} == {
        "a": "requested",
        "b": "requested",
    }
    caught_up(copied)
    assert differences(db, target, "a", "b") == []


def test_a_store_that_vanishes_under_a_running_engine(copied: Engine, db: Database, target: Database) -> None:
    """The engine waits, names it, and puts no empty store in its place. Once it is back, nothing is copied again."""
    copied.start()
    copied.wait_caught_up()
    db.execute("ALTER SCHEMA levada RENAME TO away", "INSERT INTO b VALUES (2, 'meanwhile')")
    copied.wait_log("[store_empty]")
    copied.until(lambda: "[store_empty]" in said(copied, "status")[1])
    assert "waits for its store" in said(copied, "status")[1]
    assert db.query("SELECT FROM pg_namespace WHERE nspname = 'levada'") == []
    db.execute("ALTER SCHEMA away RENAME TO levada")
    copied.wait_caught_up()
    assert differences(db, target, "a", "b") == []
    assert copied.stop() == 0
    assert "copied" not in copied.log.partition("[store_empty]")[2]


def move(engine: Engine, target: Database, place: Path, *table_syncs: dict[str, Any]) -> None:
    """Name another place of staged changes."""
    engine.spec["staging"] = {"uri": f"file://{place}"}
    write_manifest(engine, target, *table_syncs, schema="public")


def stage_and_stop(engine: Engine, db: Database, target: Database) -> list[str]:
    """Stage changes of the suspended table ``a``, stop, and return the files."""
    write_manifest(engine, target, suspended("a"), schema="public")
    engine.start()
    engine.wait_for(lambda p: any(t["suspended"] for t in p["tables"]))
    db.execute("INSERT INTO a SELECT i, 'staged' FROM generate_series(10, 19) i")
    [(end,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    engine.wait_for(lambda p: lsn(p["capture"]["acknowledgedLsn"]) >= lsn(end))
    assert engine.stop() == 0
    return staged(engine)


def staged(engine: Engine) -> list[str]:
    """Return the files of the first place."""
    return sorted(file.name for file in (engine.folder / "staging" / "shop").iterdir())


@pytest.mark.nightly
def test_staged_changes_hold_their_place(copied: Engine, db: Database, target: Database) -> None:
    """Another URI is refused while changes wait, and nothing is written. Back at the former one, they are applied."""
    files = stage_and_stop(copied, db, target)
    assert len(files) > 1
    epoch = db.query("SELECT epoch FROM levada.epochs")
    other = copied.folder / "other"
    move(copied, target, other)
    for command in (("check",), ("plan",), ("run", "--until", "caught-up")):
        code, text = said(copied, *command)
        assert (code != 0, "[immutable_field_changed]" in text) == (True, True), text
        assert f"from file://{copied.folder}/staging to file://{other}" in text
        assert "staged changes of 1 table wait in the former place" in text
    assert (staged(copied), other.exists(), db.query("SELECT epoch FROM levada.epochs")) == (files, False, epoch)
    move(copied, target, copied.folder / "staging")
    caught_up(copied)
    assert differences(db, target, "a", "b") == []
    move(copied, target, other)
    assert said(copied, "check")[0] == 0
    db.execute("INSERT INTO a VALUES (30, 'elsewhere')")
    caught_up(copied)
    assert differences(db, target, "a", "b") == []
    assert (other / "shop" / "owner").exists()


@pytest.mark.nightly
def test_a_requested_copy_needs_no_staged_changes(copied: Engine, db: Database, target: Database) -> None:
    """A staging area that is lost for good can be replaced by another once its tables have requested resyncs."""
    stage_and_stop(copied, db, target)
    move(copied, target, copied.folder / "other")
    assert said(copied, "resync", "a")[0] == 0
    caught_up(copied)
    assert differences(db, target, "a", "b") == []


@pytest.mark.nightly
def test_a_parked_table_that_no_retry_repairs(copied: Engine, db: Database, target: Database) -> None:
    """`retry` says that only a copy repairs a table whose staged changes are lost, with its command."""
    stage_and_stop(copied, db, target)
    for file in (copied.folder / "staging" / "shop").iterdir():
        if file.name != "owner":
            file.unlink()
    said(copied, "run", "--until", "caught-up")
    code, text = said(copied, "retry", "a")
    assert (code, "will be retried" in text) == (0, False)
    assert "public.a: cannot be retried, only copied again: levada resync" in text
    assert said(copied, "resync", "a")[0] == 0
    write_manifest(copied, target, schema="public")
    caught_up(copied)
    assert differences(db, target, "a", "b") == []
