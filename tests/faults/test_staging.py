"""Staged data that is lost, damaged, or has no room: no table is Ready that lacks a change."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.servers.mounts import fill, small_file_system


def table(progress: dict[str, Any], name: str) -> dict[str, Any]:
    """Return one table of the progress. It has no phase or error while the engine starts."""
    starting: dict[str, Any] = {"phase": "", "error": None, "appliedLsn": None}
    return dict(next((t for t in progress["tables"] if t["name"] == name), starting))


def parked(progress: dict[str, Any], name: str) -> bool:
    """Return True if only a person, or a resync, brings the table back."""
    error = table(progress, name)["error"]
    return error is not None and error["retryPolicy"] != "TimedRetry"


def stage_behind_a_parked_table(engine: Engine, db: Database, *, kill: bool = False) -> list[Path]:
    """Kill an engine that has staged four segments of table ``a``, none of them applied. Return their manifests.

    Table ``b`` has applied its changes, which are in segments between those.
    """
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, 'copied' FROM generate_series(1, 10) i",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    data = engine.warehouse / "shop_public" / "a" / "data"
    saved = data.rename(data.with_name("saved"))
    data.write_text("a file where the destination's folder was")
    for n in range(4):
        before = table(engine.wait_for(lambda p: True), "a")["pendingSegments"]
        db.execute(f"INSERT INTO a SELECT i, 'v' FROM generate_series({100 * n + 100}, {100 * n + 199}) i")
        engine.wait_for(lambda p, n=before: table(p, "a")["pendingSegments"] == n + 1)  # type: ignore[misc]  # bound
        db.execute(f"INSERT INTO b VALUES ({n}, 'v')")
        [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
        engine.wait_for(lambda p, t=target: lsn(table(p, "b")["appliedLsn"]) >= lsn(t))  # type: ignore[misc]  # bound
    ids = itertools.count(1000)

    def parked_alone(progress: dict[str, Any]) -> bool:
        # Only while other tables are written is it an error of this one, and not of the whole lake.
        db.execute(f"INSERT INTO b VALUES ({next(ids)}, 'v')")
        return parked(progress, "a")

    engine.wait_for(parked_alone)
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    engine.wait_for(lambda p: lsn(table(p, "b")["appliedLsn"]) >= lsn(target))
    if kill:
        engine.kill()
    else:
        assert engine.stop() == 0
    data.unlink()
    saved.rename(data)
    folder = engine.folder / "staging" / "shop"
    return sorted(m for m in folder.glob("*.json") if any(folder.glob(f"{m.name[:16]}-*")))


def lose_manifest(manifest: Path) -> None:
    """Another hand removes a segment."""
    manifest.unlink()


def lose_all(manifest: Path) -> None:
    """The volume comes back empty."""
    for file in manifest.parent.iterdir():
        file.unlink()


def flip_manifest(manifest: Path) -> None:
    """A bit of a manifest changes on the disk."""
    flip(manifest)


def flip_data(manifest: Path) -> None:
    """A bit of a staged file changes on the disk."""
    for file in manifest.parent.glob(f"{manifest.name[:16]}-*[!n]"):
        flip(file)


def lose_data(manifest: Path) -> None:
    """Another hand removes the rows of a segment."""
    for file in manifest.parent.glob(f"{manifest.name[:16]}-*[!n]"):
        file.unlink()


def flip(path: Path) -> None:
    """Change a bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "code"),
    [
        (lose_manifest, "segment_missing"),
        (lose_all, "segment_missing"),
        (flip_manifest, "segment_missing"),
        (flip_data, "segment_damaged"),
        (lose_data, "staging_file_missing"),
    ],
)
def test_harm_to_staged_changes_parks_their_table(
    engine: Engine, db: Database, harm: Callable[[Path], None], code: str
) -> None:
    """A segment that is lost or damaged parks the tables that need it. The others go on, and a resync repairs it."""
    manifests = stage_behind_a_parked_table(engine, db)
    harm(manifests[1])
    engine.start()
    engine.wait_for(lambda p: parked(p, "a") or table(p, "a")["phase"] == "Ready")
    error = table(engine.wait_for(lambda p: True), "a")["error"]
    if error is not None and error["code"] != code:
        engine.levada("retry", *engine.options(), "public.a")
    found = table(engine.wait_for(lambda p: (table(p, "a")["error"] or {}).get("code") == code), "a")
    error = found["error"]
    assert error["retryPolicy"] == "NoRetry"
    assert (found["appliedLsn"], found["lagSeconds"]) == (None, None)
    assert error["solution"] == "levada resync MANIFEST public.a"
    db.execute("INSERT INTO b VALUES (77, 'later')")
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    engine.wait_for(lambda p: table(p, "b")["phase"] == "Ready" and lsn(table(p, "b")["appliedLsn"]) >= lsn(target))
    engine.assert_equal("b")
    engine.levada("resync", *engine.options(), "public.a")
    engine.wait_caught_up()
    engine.assert_equal("a", "b")


def test_the_newest_segments_are_lost_after_a_kill(engine: Engine, db: Database) -> None:
    """An engine is killed, and its newest segments are lost: only the table concerned needs a copy, if any does."""
    stage_behind_a_parked_table(engine, db, kill=True)
    for manifest in sorted((engine.folder / "staging" / "shop").glob("*.json"))[-3:]:
        manifest.unlink()
    engine.start()
    before = table(engine.wait_for(lambda p: parked(p, "a")), "a")["error"]
    if before["code"] != "segment_missing":
        engine.levada("retry", *engine.options(), "public.a")
    done = engine.wait_for(lambda p: table(p, "a")["error"] not in (None, before) or table(p, "a")["phase"] == "Ready")
    if (error := table(done, "a")["error"]) is not None:
        assert error["code"] == "segment_missing"
        engine.levada("resync", *engine.options(), "public.a")
    db.execute("INSERT INTO b VALUES (77, 'later')")
    engine.wait_caught_up()
    engine.assert_equal("a", "b")


def test_full_staging_is_waited_for(engine: Engine, db: Database) -> None:
    """Without room, capture waits and reports the place, and the slot keeps the WAL.

    With room again everything arrives.
    """
    staging = engine.folder / "staging"
    with small_file_system(staging, "16m"):
        db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        engine.write_manifest()
        engine.start()
        engine.wait_for(lambda p: p["ready"])
        filler = fill(staging, leaving=32 << 10)
        db.execute("INSERT INTO a SELECT i, md5(i::text) FROM generate_series(1, 50000) i")
        [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
        full = engine.wait_for(lambda p: (p["capture"]["error"] or {}).get("code") == "staging_full")
        assert str(staging) in full["capture"]["error"]["reason"]
        assert lsn(full["capture"]["acknowledgedLsn"]) < lsn(target)
        engine.wait_log("next try in")
        filler.unlink()
        engine.wait_caught_up()
        engine.assert_equal("a")
        assert not list((staging / "shop").glob(".*.partial"))
        assert engine.stop() == 0


def test_read_only_staging_is_waited_for(engine: Engine, db: Database) -> None:
    """A file system that turned read-only, as after an error of its disk, ends nothing."""
    staging = engine.folder / "staging"
    with small_file_system(staging, "64m"):
        db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
        engine.write_manifest()
        engine.start()
        engine.wait_for(lambda p: p["ready"])
        subprocess.run(["mount", "-o", "remount,ro", str(staging)], check=True)
        db.execute("INSERT INTO a SELECT i, 'v' FROM generate_series(1, 100) i")
        engine.wait_for(lambda p: (p["capture"]["error"] or {}).get("code") == "staging_read_only")
        subprocess.run(["mount", "-o", "remount,rw", str(staging)], check=True)
        engine.wait_caught_up()
        engine.assert_equal("a")
        assert engine.stop() == 0
