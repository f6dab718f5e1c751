"""Partitions whose changes do not fit their root, or whose rows were never streamed, under a running engine."""

from __future__ import annotations

from typing import Any, LiteralString, cast

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn

BIG = "repeat(md5(i::text), 100)"
KEY = ", PRIMARY KEY (id, k)"
FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"
BY_INDEX = "CREATE UNIQUE INDEX {}_x ON {}_1 (a); ALTER TABLE {}_1 REPLICA IDENTITY USING INDEX {}_x"
BY_ROOT_INDEX = "CREATE UNIQUE INDEX {}_x ON {} (a, k); ALTER TABLE {} REPLICA IDENTITY USING INDEX {}_x"
UNLOGGED = "CREATE UNLOGGED TABLE {}_3 PARTITION OF {} FOR VALUES IN (3); INSERT INTO {} VALUES (80, 3, 80)"
EACH = "; ".join(FULL.format(relation) for relation in ("{}_1", "{}_2", "{}"))
NEW = "CREATE TABLE {}_3 PARTITION OF {} FOR VALUES IN (3); INSERT INTO {} VALUES (30, 3, 30)"

COPIED = {
    "full_root": (KEY, FULL, "partition_identity"),
    "full_root_by_index": (KEY, f"{BY_INDEX}; {FULL}", "partition_identity"),
    "keyed_leaf": (
        "",
        f"ALTER TABLE {{}}_1 ADD PRIMARY KEY (id); ALTER TABLE {{}}_2 REPLICA IDENTITY FULL; {FULL}",
        "partition_identity",
    ),
    "leaf_index": (KEY, BY_INDEX, "partition_identity"),
    "root_index": (KEY, BY_ROOT_INDEX, "partition_identity"),
    "unlogged": (KEY, UNLOGGED, "partition_unlogged"),
}
"""Tables that have such a partition before their copy: the key, the statements, the code."""
STREAMED = {
    "full_live": ("", FULL, "partition_identity"),
    "index_live": ("", BY_INDEX, "partition_identity"),
    "root_index_live": ("", BY_ROOT_INDEX, "partition_identity"),
    "new_leaf": (EACH, NEW, "partition_identity"),
    "unlogged_live": ("", UNLOGGED, "partition_unlogged"),
    "unlogged_leaf": ("", "ALTER TABLE {}_1 SET UNLOGGED", "partition_unlogged"),
}
"""Tables that get such a partition while they are streamed: statements before the copy, after it, the code."""
ANNOUNCED = {
    "for_a_while": f"{BY_INDEX}; DELETE FROM {{}} WHERE id = 2; ALTER TABLE {{}}_1 REPLICA IDENTITY DEFAULT",
    "unlogged_for_a_while": "ALTER TABLE {}_1 SET UNLOGGED; INSERT INTO {} VALUES (82, 1, 82);"
    " ALTER TABLE {}_1 SET LOGGED",
}
"""Statements whose effect the catalog does not show afterwards, or not as such."""
HARMLESS = {
    "attached": (
        "",
        "BEGIN; CREATE TABLE {}_3 (LIKE {}); INSERT INTO {}_3 SELECT i, 3, i FROM generate_series(1, 5) i;"
        " ALTER TABLE {} ATTACH PARTITION {}_3 FOR VALUES IN (3); COMMIT",
    ),
    "each_full": ("", EACH),
    "new": ("", NEW),
    "new_full": (
        EACH,
        "CREATE TABLE {}_3 (LIKE {} INCLUDING ALL); ALTER TABLE {}_3 REPLICA IDENTITY FULL;"
        " ALTER TABLE {} ATTACH PARTITION {}_3 FOR VALUES IN (3); INSERT INTO {} VALUES (30, 3, 30)",
    ),
}
CHANGES = (
    "UPDATE {} SET id = id + 1000 WHERE id IN (3, 4)",
    "DELETE FROM {} WHERE id = 6",
    "UPDATE {} SET a = -a WHERE k = 3",
)


def execute(db: Database, table: str, statements: str) -> None:
    """Run statements in which ``{}`` is the table, each in a transaction of its own unless they begin with BEGIN."""
    text = statements.replace("{}", table)
    single = [text] if text.startswith("BEGIN") else text.split("; ")
    db.execute(*(cast("LiteralString", statement) for statement in single if statement))


def settled(engine: Engine, db: Database, count: int) -> dict[str, Any]:
    """Wait until each table has an error, or all that is committed now. Return the errors by table."""
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    found = engine.wait_for(
        lambda p: (
            len(p["tables"]) == count
            and all(t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in p["tables"])
        )
    )
    return {t["name"]: t["error"] for t in found["tables"] if t["error"]}


@pytest.mark.parametrize("triggers", [True, False], ids=["announced", "read from the catalog"])
def test_partitions_that_do_not_fit_park_their_table(engine: Engine, db: Database, triggers: bool) -> None:
    """No table with such a partition is copied or stays Ready. After the SQL of its hint and a resync, it is equal."""
    before = {name: (key, statements) for name, (key, statements, _) in COPIED.items()}
    before |= {name: (KEY, statements) for name, (statements, *_) in [*STREAMED.items(), *HARMLESS.items()]}
    before |= dict.fromkeys(ANNOUNCED, (KEY, ""))
    for name, (key, statements) in before.items():
        create = (
            f"CREATE TABLE {{}} (id int, k int NOT NULL, a int NOT NULL, big text{key}) PARTITION BY LIST (k);"
            " ALTER TABLE {} ALTER big SET STORAGE EXTERNAL; CREATE TABLE {}_1 PARTITION OF {} FOR VALUES IN (1);"
            " CREATE TABLE {}_2 PARTITION OF {} FOR VALUES IN (2);"
            f" INSERT INTO {{}} SELECT i, 1 + i % 2, i, {BIG} FROM generate_series(1, 6) i"
        )
        execute(db, name, create)
        execute(db, name, statements)
    engine.write_manifest()
    engine.start()
    errors = settled(engine, db, len(before))
    expected = {name: code for name, (_, _, code) in COPIED.items()}
    assert {name: error["code"] for name, error in errors.items()} == expected
    if not triggers:
        db.execute("DROP EVENT TRIGGER levada_ddl CASCADE")

    for name, (_, statements, code) in STREAMED.items():
        execute(db, name, statements)
        expected[name] = code
    if triggers:
        for name, statements in ANNOUNCED.items():
            execute(db, name, statements)
        expected |= {"for_a_while": "partition_identity", "unlogged_for_a_while": "partition_unlogged"}
    for name, (_, statements) in HARMLESS.items():
        if name == "new_full" and not triggers:
            # The catalog does not show afterwards that the partition was empty.
            continue
        execute(db, name, f"{statements}; {CHANGES[0]}; {CHANGES[1]}")
    engine.wait_for(lambda p: {t["name"] for t in p["tables"] if t["error"]} >= expected.keys())
    errors = settled(engine, db, len(before))
    assert {name: error["code"] for name, error in errors.items()} == expected
    engine.assert_equal(*(before.keys() - errors.keys()))

    for name, error in errors.items():
        remedy, _, resync = error["solution"].rpartition("levada resync ")
        assert resync.endswith(f"public.{name}")
        execute(db, name, remedy.removesuffix("then ").removesuffix("; "))
    engine.levada("resync", *engine.options(), *(f"public.{name}" for name in errors))
    engine.wait_caught_up()
    for name in before:
        execute(db, name, "; ".join(CHANGES))
    engine.wait_caught_up()
    engine.assert_equal(*(before.keys() - {"keyed_leaf"}))
    engine.assert_verified(*(before.keys() - {"keyed_leaf"}))
    assert engine.stop() == 0
