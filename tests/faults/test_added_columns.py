"""Columns that were added, and whose catalog changed again, before the engine saw either statement."""

from __future__ import annotations

from typing import LiteralString, cast

import pytest
from tests.conftest import Database
from tests.scenarios.engine import Engine, lsn

EQUAL = {
    "default_dropped": "ADD COLUMN n int DEFAULT 7; ALTER {} ALTER n DROP DEFAULT; ALTER {} ALTER v TYPE bigint",
    "default_moved": "ADD COLUMN n int DEFAULT 7; ALTER {} ALTER n SET DEFAULT 8; ALTER {} ALTER v TYPE bigint",
    "default_later": "ADD COLUMN n int; ALTER {} ALTER n SET DEFAULT 8",
    "widened": "ADD COLUMN n int DEFAULT 7; ALTER {} ALTER n TYPE bigint",
    "widened_null": "ADD COLUMN n int; ALTER {} ALTER n TYPE bigint",
    "renamed": "ADD COLUMN m int DEFAULT 7; ALTER {} RENAME m TO n; ALTER {} ALTER v TYPE bigint",
}
"""What one table gets: the rows that existed must have the constant, or NULL, in the lake."""
COPIED_AGAIN = {
    "computed": "ADD COLUMN n int DEFAULT random() * 1000; ALTER {} ALTER n DROP DEFAULT",
    "float": "ADD COLUMN n real DEFAULT 0.1; ALTER {} ALTER n TYPE double precision",
}
"""Here the values of existing rows are not known, so that the table must be copied again."""


def execute(db: Database, *statements: str) -> None:
    """Run statements that are made of the names of tables."""
    db.execute(*(cast("LiteralString", statement) for statement in statements))


@pytest.mark.parametrize("triggers", [True, False], ids=["announced", "read from the catalog"])
@pytest.mark.parametrize("one_transaction", [False, True], ids=["statements", "one transaction"])
def test_existing_rows_keep_their_values(engine: Engine, db: Database, triggers: bool, one_transaction: bool) -> None:
    """Rows from before a column have its value in the lake, or the table is copied again, however often it changed."""
    tables = {**EQUAL, **COPIED_AGAIN}
    for name in tables:
        execute(
            db,
            f"CREATE TABLE {name} (id int PRIMARY KEY, v int)",
            f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 100) i",
        )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    if not triggers:
        db.execute("DROP EVENT TRIGGER levada_ddl CASCADE")
    for name, changes in tables.items():
        statements = f"ALTER TABLE {name} {changes.replace('{}', f'TABLE {name}')}; INSERT INTO {name} (id) VALUES (0)"
        execute(db, *([statements] if one_transaction else statements.split("; ")))
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    engine.start()
    found = engine.wait_for(
        lambda p: (
            bool(p["tables"])
            and all(t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in p["tables"])
        )
    )
    parked = {t["name"]: t["error"]["code"] for t in found["tables"] if t["error"]}
    engine.assert_equal(*(tables.keys() - parked.keys()))
    assert COPIED_AGAIN.keys() <= parked.keys()
    assert not (triggers and not one_transaction and EQUAL.keys() & parked.keys())
    assert engine.stop() == 0
