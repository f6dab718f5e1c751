"""A destination that does not ask for Spark: nothing of it is installed, started or looked for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.dedicated_copy import copy_job, dedicated
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S, until
from tests.runtime.foreign_package import install_package

THEIRS = """
import json, os, threading, time
from functools import partial
from pathlib import Path

import pydantic

from levada.destinations import Capabilities, Destination
from levada.values import Durability, Watermark


class Settings(pydantic.BaseModel):
    folder: str


def write(folder, reader):
    # Holds the task until the test lets it go on.
    Path(folder, f"worker-{os.getpid()}").write_text(str(os.getppid()))
    while Path(folder, "hold").exists():
        time.sleep(0.05)
    ids = [i for batch in reader for i in batch.column("id").to_pylist()]
    return ids


class Theirs(Destination):
    name = "theirs"
    capabilities = Capabilities()
    settings_model = Settings

    def __init__(self, folder):
        self.folder, self.lock = folder, threading.Lock()

    @classmethod
    def from_settings(cls, settings, context):
        assert context.spark is None
        return cls(settings.folder)

    def drop_table_for_copy(self, target, epoch=None):
        Path(self.folder, target.name.name).unlink(missing_ok=True)

    def write_table_rows(self, target, rows, mark):
        ids = [i for part in rows.map_partitions(partial(write, self.folder)) for i in part]
        Path(self.folder, target.name.name).write_text(json.dumps(sorted(ids)) + "\\n")
        return Durability.DURABLE

    def write_events(self, events, mark):
        for table in events.tables:
            changes = events.changes(table)
            for batch in changes.scan():
                with Path(self.folder, changes.target.name.name).open("a") as file:
                    file.write(json.dumps(batch.column("id").to_pylist()) + "\\n")
        return Durability.DURABLE
"""


@pytest.fixture
def theirs(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """An engine with a destination of another package, on a machine that has neither pyspark nor a Java."""
    packages, bare = tmp_path / "packages", tmp_path / "bare"
    for folder in (packages, bare, tmp_path / "out"):
        folder.mkdir()
    install_package(monkeypatch, packages, "theirs", "Theirs", THEIRS)
    for module in ("pyspark", "py4j", "pyiceberg", "jdk"):
        (packages / f"{module}.py").write_text(f"raise ImportError('{module} is not installed')\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), *filter(None, sys.path)]))
    # A Java that is run leaves a trace.
    (bare / "bin").mkdir()
    (bare / "bin" / "java").write_text(f"#!/bin/sh\ntouch {tmp_path}/java-was-run\n")
    (bare / "bin" / "java").chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(bare))
    monkeypatch.setenv("LEVADA_CACHE", str(tmp_path / "cache"))
    db.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, pad text)",
        "INSERT INTO orders SELECT g, 'p' FROM generate_series(1, 1000) g",
        "CREATE TABLE notes (id bigint PRIMARY KEY)",
    )
    engine = Engine(db, tmp_path)
    engine.spec["destination"] = {"custom": {"type": "theirs", "options": {"folder": str(tmp_path / "out")}}}
    engine.spec["deletionPolicy"] = {"slot": "Delete", "destinationTables": "Delete", "state": "Delete"}
    engine.write_manifest()
    yield engine
    if engine.process is not None and engine.process.poll() is None:
        engine.process.kill()
        engine.process.wait()
    assert not (tmp_path / "java-was-run").exists()
    assert not (tmp_path / "cache").exists()


def lines(engine: Engine, table: str) -> list[list[int]]:
    """Return the IDs that the destination has, a list for the copy and each batch."""
    file = engine.folder / "out" / table
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def workers(engine: Engine) -> dict[int, int]:
    """Return the workers that have begun a task, with the process that forked each."""
    files = (engine.folder / "out").glob("worker-*")
    return {int(f.name.partition("-")[2]): int(f.read_text() or 0) for f in files}


def wait_for_worker(engine: Engine) -> tuple[int, int]:
    """Wait for a worker that runs, and return it with the process that forked it."""

    def running() -> list[tuple[int, int]]:
        return [(w, server) for w, server in workers(engine).items() if server and Path(f"/proc/{w}").exists()]

    return engine.until(running)[0]


def test_every_command_runs_without_spark(theirs: Engine) -> None:
    """Check, run and cleanup need no pyspark and no Java, and the rows arrive."""
    assert "spark" not in theirs.levada("check", *theirs.options()).stdout.lower()
    done = theirs.levada("run", *theirs.options(), "--until", "caught-up", "--timeout", str(LIMIT_S))
    assert "spark" not in (done.stdout + done.stderr).lower()
    assert lines(theirs, "orders") == [list(range(1, 1001))]
    theirs.db.execute("INSERT INTO orders VALUES (2000)")
    theirs.levada("run", *theirs.options(), "--until", "caught-up", "--timeout", str(LIMIT_S))
    assert lines(theirs, "orders")[1:] == [[2000]]
    theirs.levada("cleanup", *theirs.options(), "--yes")
    assert not (theirs.folder / "out" / "orders").exists()


@pytest.mark.nightly
def test_a_killed_worker_costs_a_retry(theirs: Engine) -> None:
    """A copy whose worker is killed in the middle has every row once, and the engine goes on."""
    hold = theirs.folder / "out" / "hold"
    hold.touch()
    theirs.start()
    worker, _ = wait_for_worker(theirs)
    os.kill(worker, signal.SIGKILL)
    hold.unlink()
    theirs.wait_for(lambda p: p["ready"])
    assert lines(theirs, "orders") == [list(range(1, 1001))]


@pytest.mark.nightly
def test_a_killed_engine_leaves_no_process_and_no_lock(theirs: Engine) -> None:
    """After kill -9 of the engine in the middle of a copy, its workers and their locks are gone. The next one copies."""
    hold = theirs.folder / "out" / "hold"
    hold.touch()
    theirs.start()
    worker, server = wait_for_worker(theirs)
    assert theirs.process is not None
    theirs.process.kill()
    theirs.process.wait()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (worker, server)))
    theirs.db.execute("ALTER TABLE orders ADD COLUMN more int", "INSERT INTO orders VALUES (1001)")
    hold.unlink()
    theirs.start()
    theirs.wait_for(lambda p: p["ready"])
    assert lines(theirs, "orders")[0] == list(range(1, 1002))


@pytest.mark.nightly
def test_ctrl_c_in_the_middle_of_a_copy_is_a_clean_stop(theirs: Engine) -> None:
    """A signal to the process group ends the engine in order, and every worker with it."""
    (theirs.folder / "out" / "hold").touch()
    theirs.start()
    worker, server = wait_for_worker(theirs)
    assert theirs.process is not None
    os.killpg(theirs.process.pid, signal.SIGINT)
    assert theirs.process.wait(LIMIT_S) == 0, theirs.log[-4000:]
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in (worker, server)))
    assert "Traceback" not in theirs.log


@pytest.mark.nightly
def test_a_dedicated_copy_needs_no_spark(theirs: Engine) -> None:
    """`levada copy` copies in workers of its own."""
    theirs.write_manifest(dedicated("orders"))
    theirs.start(LEVADA_DEDICATED_COPIES="1")
    jobs: list[subprocess.Popen[bytes]] = []

    def copied() -> list[list[int]]:
        if not jobs or jobs[-1].poll() is not None:
            jobs.append(copy_job(theirs, len(jobs)))
        return lines(theirs, "orders")

    theirs.until(copied)
    jobs[-1].wait()
    theirs.wait_for(lambda p: p["ready"])
    assert lines(theirs, "orders") == [list(range(1, 1001))]
