"""Tables that are altered several times while the engine is stopped, so that one batch has all of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import LiteralString, cast

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn

KNOWN = {
    "default_dropped": "ADD n int DEFAULT 7; ALTER TABLE {} ALTER n DROP DEFAULT; ALTER TABLE {} ALTER a TYPE bigint",
    "default_moved": "ADD n int DEFAULT 7; ALTER TABLE {} ALTER n SET DEFAULT 8; ALTER TABLE {} ALTER a TYPE bigint",
    "default_later": "ADD n int; ALTER TABLE {} ALTER n SET DEFAULT 8",
    "widened": "ADD n int DEFAULT 7; ALTER TABLE {} ALTER n TYPE bigint",
    "widened_null": "ADD n int; ALTER TABLE {} ALTER n TYPE bigint",
    "renamed": "ADD m int DEFAULT 7; ALTER TABLE {} RENAME m TO n; ALTER TABLE {} ALTER a TYPE bigint",
}
"""Columns whose value in existing rows is a constant or NULL."""
UNKNOWN = {
    "computed": "ADD n int DEFAULT random() * 1000; ALTER TABLE {} ALTER n DROP DEFAULT",
    "float": "ADD n real DEFAULT 0.1; ALTER TABLE {} ALTER n TYPE double precision",
}
"""Columns whose values in existing rows are not streamed, or would have another text."""

BY_INDEX = "REPLICA IDENTITY USING INDEX {}_a"
DEFAULT = "ALTER TABLE {} REPLICA IDENTITY DEFAULT"
MOVED = "UPDATE {} SET id = id + 1000 WHERE id < 10"
DELETED = "DELETE FROM {} WHERE a = 20"
NO_KEY = "DROP CONSTRAINT {}_pkey"
OTHER_IDENTITY = {
    "keys_moved": f"{BY_INDEX}; {MOVED}; {DEFAULT}",
    "rows_deleted": f"{BY_INDEX}; {DELETED}; {DEFAULT}",
    "other_key": f"{NO_KEY}; ALTER TABLE {{}} ADD PRIMARY KEY (a); {MOVED}; ALTER TABLE {{}} {NO_KEY};"
    " ALTER TABLE {} ADD PRIMARY KEY (id)",
}
"""Changes that do not have the columns of the key which was there before and is there after them."""
FULL_IDENTITY = {
    "full_rows": f"REPLICA IDENTITY FULL; {MOVED}; {DELETED}; {DEFAULT}",
    "no_identity": f"REPLICA IDENTITY NOTHING; INSERT INTO {{}} VALUES (-1, -1); {DEFAULT}",
    "no_key": f"{NO_KEY}; INSERT INTO {{}} VALUES (-1, -1); ALTER TABLE {{}} ADD PRIMARY KEY (id)",
}
"""Changes that have these columns, or need none."""
WITHOUT_IDENTITY = ("other_key", "no_identity", "no_key")
"""Those during which the table has no identity for a while."""


def execute(db: Database, *statements: str) -> None:
    """Run statements that are made of the names of tables."""
    db.execute(*(cast("LiteralString", statement) for statement in statements))


def altered(
    engine: Engine, db: Database, tables: Mapping[str, str], *, triggers: bool, one_transaction: bool
) -> dict[str, str]:
    """Alter the tables between two runs of the engine. Return the codes of parked tables, and require others equal."""
    for name in tables:
        execute(
            db,
            f"CREATE TABLE {name} (id int PRIMARY KEY, a int NOT NULL DEFAULT -7)",
            f"INSERT INTO {name} SELECT i, i FROM generate_series(1, 100) i",
            f"CREATE UNIQUE INDEX {name}_a ON {name} (a)",
        )
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    assert engine.stop() == 0
    if not triggers:
        db.execute("DROP EVENT TRIGGER levada_ddl CASCADE")
    for name, changes in tables.items():
        statements = f"ALTER TABLE {{}} {changes}; INSERT INTO {{}} (id) VALUES (0)".replace("{}", name)
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
    assert engine.stop() == 0
    return parked


@pytest.mark.parametrize("triggers", [True, False], ids=["announced", "read from the catalog"])
@pytest.mark.parametrize("one_transaction", [False, True], ids=["statements", "one transaction"])
def test_existing_rows_keep_their_values(engine: Engine, db: Database, triggers: bool, one_transaction: bool) -> None:
    """Rows from before a column have its value in the lake, or the table is parked, whatever changed after it."""
    tables = {**KNOWN, **UNKNOWN}
    parked = altered(engine, db, tables, triggers=triggers, one_transaction=one_transaction)
    assert UNKNOWN.keys() <= parked.keys()
    if triggers and not one_transaction:
        assert parked.keys() == UNKNOWN.keys()


@pytest.mark.parametrize("triggers", [True, False], ids=["announced", "read from the catalog"])
@pytest.mark.parametrize("one_transaction", [False, True], ids=["statements", "one transaction"])
def test_changes_name_the_row_that_they_change(
    engine: Engine, db: Database, triggers: bool, one_transaction: bool
) -> None:
    """A table is parked if changes were streamed under another replica identity, also if it is the same again.

    The trigger takes a table out of the publication that has none for a while, and such a table is parked too.
    """
    tables = {**OTHER_IDENTITY, **FULL_IDENTITY}
    parked = altered(engine, db, tables, triggers=triggers, one_transaction=one_transaction)
    without = dict.fromkeys(WITHOUT_IDENTITY, "publication_membership_changed") if triggers else {}
    assert parked == dict.fromkeys(OTHER_IDENTITY, "key_changed") | without
