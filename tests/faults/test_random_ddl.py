"""Random statements, of which many alter the table, under an engine that is stopped, killed and started again."""

from __future__ import annotations

import random
from typing import Any

import psycopg
import pytest
from tests.faults.random_ddl import RandomTable
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn

_TABLES = 16
_ROUNDS = 3
_CODES = {
    "key_changed",
    "mode_changed",
    "publication_membership_changed",
    "schema_change_unsupported",
    "table_not_published",
    "table_rewritten",
}


@pytest.mark.parametrize("seed", [3, 4])
def test_tables_are_equal_or_parked(engine: Engine, db: Database, seed: int) -> None:
    """After each round a table has the source's rows, or is parked with a code that asks for a copy."""
    rng = random.Random(seed)
    engine.spec["freshnessSeconds"] = 1
    engine.write_manifest()
    tables: dict[str, RandomTable] = {}
    with db.connect() as connection:
        for turn in range(_ROUNDS):
            for number in range(_TABLES - len(tables)):
                made = RandomTable(f"t{turn}_{number}", rng)
                made.create(connection)
                tables[made.name] = made
            if turn == 0:
                engine.start()
            _settle(engine, db, tables)
            _alter(engine, connection, tables, rng)
            found = _settle(engine, db, tables)
            parked = {t["name"]: t["error"]["code"] for t in found["tables"] if t["error"]}
            assert set(parked.values()) <= _CODES
            tables = {name: t for name, t in tables.items() if name not in parked}
            for name, t in tables.items():
                try:
                    engine.assert_equal(name)
                except AssertionError as error:
                    raise AssertionError("\n".join((str(error), *t.log))) from error
    assert engine.stop() == 0


def _alter(
    engine: Engine, connection: psycopg.Connection[Any], tables: dict[str, RandomTable], rng: random.Random
) -> None:
    way = rng.choice(["stopped", "stopped", "killed", "running"])
    if way == "stopped":
        assert engine.stop() == 0
        if rng.random() < 0.3:
            connection.execute("DROP EVENT TRIGGER levada_ddl CASCADE")
    for step in range(rng.randint(2, 5)):
        for t in tables.values():
            t.step(connection)
        if way == "killed" and step == 1:
            engine.kill()
    for t in tables.values():
        t.end(connection)
    if way != "running":
        engine.start()


def _settle(engine: Engine, db: Database, tables: dict[str, RandomTable]) -> dict[str, Any]:
    """Wait until each of these tables is parked, or is Ready and has applied all that is committed now."""
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")

    def settled(progress: dict[str, Any]) -> bool:
        found = {t["name"]: t for t in progress["tables"] if t["name"] in tables}
        return found.keys() == tables.keys() and all(
            t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in found.values()
        )

    return engine.wait_for(settled)
