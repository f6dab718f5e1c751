"""The reason for which an engine ended by itself, as `levada status` reports it afterwards."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.engine import Engine
from tests.rigs.waiting import until
from tests.servers.postgres import older_options

from levada.cli.exit_codes import Exit

DROPPED_SLOT = (
    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 'levada_{db}'",
    "DO $$ BEGIN WHILE EXISTS (SELECT FROM pg_replication_slots WHERE active) LOOP PERFORM pg_sleep(0.001);"
    " END LOOP; PERFORM pg_drop_replication_slot('levada_{db}'); END $$",
)
NEWER_EPOCH = ("UPDATE levada.epochs SET epoch = epoch + 1", "INSERT INTO orders VALUES (1)")


@pytest.fixture
def target(db: Database) -> dict[str, Any]:
    """A schema of the source's database as the destination, so that an engine needs no Spark."""
    return destination(db)


def destination(db: Database) -> dict[str, Any]:
    """Return the section of a destination in the source's database."""
    place = {"host": "127.0.0.1", "port": db.server.port, "database": db.name, "tls": {"mode": "Disable"}}
    return {"postgres": {**place, "schema": "replica", "credentialsSecretRef": {"name": "pg"}}}


def start(engine: Engine, target: dict[str, Any], **spec: Any) -> None:
    """Start an engine of one table."""
    engine.db.execute("CREATE TABLE IF NOT EXISTS public.orders (id int PRIMARY KEY)")
    engine.spec = {"destination": target, "freshnessSeconds": 1, **spec}
    engine.write_manifest()
    engine.start()


def wait_end(engine: Engine) -> int:
    """Wait until the engine has ended by itself, and return its exit code."""
    until(engine.runs, lambda runs: not runs, report=lambda: engine.log[-6000:])
    assert engine.process is not None
    return engine.process.wait()


def status(engine: Engine) -> tuple[int, str, str]:
    """Return the exit code of the status, and the code and the message of its error."""
    done = engine.levada("status", *engine.options(), "-o", "json", check=False)
    error = json.loads(done.stdout)["error"] or {"code": "", "reason": ""}
    return done.returncode, error["code"], error["reason"]


@pytest.mark.parametrize(
    ("statements", "code"),
    [pytest.param(DROPPED_SLOT, "slot_missing", marks=pytest.mark.nightly), (NEWER_EPOCH, "stale_epoch")],
)
def test_the_error_that_ended_an_engine_is_in_its_status(
    engine: Engine, db: Database, target: dict[str, Any], statements: tuple[str, ...], code: str
) -> None:
    """The status has the code of the log's last line, also for an error of which neither store nor source has a trace.

    An engine that starts again removes the error, and one that is stopped leaves none.
    """
    start(engine, target)
    engine.wait_caught_up()
    with db.connect() as connection:
        for statement in statements:
            connection.execute(statement.replace("{db}", db.name).encode())
    assert wait_end(engine) == Exit.FAILED
    assert status(engine)[:2] == (Exit.FAILED, code)
    assert f"[{code}]" in engine.log
    if code == "stale_epoch":
        assert (
            "no engine runs, and the last one ended at "
            in engine.levada("status", *engine.options(), check=False).stdout
        )
        engine.start()
        engine.wait_caught_up()
        assert engine.stop() == 0
        assert status(engine) == (Exit.OK, "", "")


@pytest.mark.nightly
def test_the_refusal_of_a_start_is_in_the_status(engine: Engine, target: dict[str, Any]) -> None:
    """The status of a service that does not start has the reason, until a later start succeeds."""
    start(engine, target, tables={"include": [{"schema": "elsewhere"}]})
    assert wait_end(engine) == Exit.PREFLIGHT
    returned, code, message = status(engine)
    assert (returned, code) == (Exit.FAILED, "no_tables_selected")
    assert message.startswith("no engine runs, and the last one ended at ")
    start(engine, target)
    engine.wait_caught_up()
    assert engine.stop() == 0
    assert status(engine) == (Exit.OK, "", "")


def test_the_hint_of_the_error_is_a_start_once_a_resync_is_requested(
    engine: Engine, db: Database, target: dict[str, Any]
) -> None:
    """The status repeats no command that was run already. The start that it names copies the tables again."""
    start(engine, target)
    engine.wait_caught_up()
    with db.connect() as connection:
        for statement in DROPPED_SLOT:
            connection.execute(statement.replace("{db}", db.name).encode())
    assert wait_end(engine) == Exit.FAILED
    hints = []
    for _ in range(2):
        shown = " ".join(engine.levada("status", *engine.options(), check=False).stdout.split())
        hints.append(shown.rpartition("hint: ")[2])
        engine.levada("resync", *engine.options(), "--all")
    before, after = hints
    assert "levada resync" in before
    assert "levada resync" not in after
    assert after.startswith("the resync is requested and begins with the next start: levada run ")
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    assert status(engine) == (Exit.OK, "", "")


@pytest.mark.nightly
@pytest.mark.usefixtures("target")  # no Spark
def test_a_publication_dropped_at_an_older_server_is_in_the_status(
    start_postgres: StartPostgres, engine: Engine, tmp_path: Path
) -> None:
    """PostgreSQL before 18 cannot decode changes without the publication. The command in the hint brings all back."""
    with start_postgres(**older_options()) as server:
        db = Database(server, "postgres")
        older = Engine(db, tmp_path / "older")
        older.folder.mkdir()
        try:
            start(older, destination(db))
            older.wait_caught_up()
            db.execute("DROP PUBLICATION levada_postgres", "INSERT INTO orders VALUES (1)")
            assert wait_end(older) == Exit.FAILED
            assert status(older)[:2] == (Exit.FAILED, "publication_missing")
            older.levada("resync", *older.options(), "--all")
            older.start()
            older.wait_caught_up()
            assert db.query("SELECT id FROM replica.orders") == [(1,)]
        finally:
            older.kill()
            db.close()
