"""A pipeline over all tables of the suite's database, as a user has it, into a PostgreSQL server of its own."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from tests.regress.judgement import left_out
from tests.regress.suite import DATABASE
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn
from tests.rigs.waiting import until

from levada.local.postgres import EmbeddedPostgres

_LIMIT_S: Final = 900
_DISCOVERY_S: Final = 180
_EVERY_S: Final = 2.0


@contextmanager
def pipeline(source: EmbeddedPostgres, target: EmbeddedPostgres, folder: Path) -> Iterator[Engine]:
    """Run a pipeline over all tables until the end of the block."""
    database = Database(source, DATABASE)
    place = {"host": "127.0.0.1", "port": target.port, "database": "postgres", "tls": {"mode": "Disable"}}
    folder.mkdir(parents=True, exist_ok=True)
    engine = Engine(database, folder)
    engine.spec |= {
        "tables": {"include": [{"schema": "*", "name": "*"}]},
        "destination": {"postgres": {**place, "credentialsSecretRef": {"name": "pg"}}},
        # The usual values, and not those of the tests.
        "batch": {},
        "freshnessSeconds": 10,
        "retries": {},
    }
    engine.write_manifest()
    engine.start()
    try:
        engine.wait_for(lambda p: p["tables"] and all(t["phase"] == "Ready" for t in p["tables"]))
        yield engine
    finally:
        engine.kill()


@contextmanager
def frequent_discovery(engine: Engine) -> Iterator[None]:
    """Save the manifest with other selectors every two seconds: then new tables are looked for, and not each minute."""
    done = threading.Event()

    def save() -> None:
        turn = 0
        while not done.wait(_EVERY_S):
            turn += 1
            engine.spec["tables"]["exclude"] = [{"schema": "nowhere", "name": f"t{turn}"}]
            engine.write_manifest()

    thread = threading.Thread(target=save, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
        engine.spec["tables"].pop("exclude", None)
        engine.write_manifest()


def settled(engine: Engine) -> list[dict[str, Any]]:
    """Wait until all tables are found, and each is parked, or Ready and has all changes. Return the tables."""

    def are_found() -> bool:
        progress = engine.progress()
        return progress is not None and not any(identity for _, identity in left_out(engine.db, progress["tables"]))

    # A table that is never found is one of the findings.
    with suppress(AssertionError):
        until(are_found, alive=engine.runs, limit_s=_DISCOVERY_S)
    [(target,)] = engine.db.query("SELECT pg_current_wal_insert_lsn()::text")

    def is_settled(progress: dict[str, Any]) -> bool:
        tables = progress["tables"]
        found = all(
            t["phase"] == "Errored" or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in tables
        )
        return bool(tables) and found

    return list(engine.wait_for(is_settled, _LIMIT_S)["tables"])


def verified(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return the report of `levada verify` for each table that is Ready."""
    done = engine.levada("verify", *engine.options(), "--output", "json", check=False, timeout=_LIMIT_S)
    return {report["table"]: report for report in json.loads(done.stdout)["tables"]}
