"""Tables that are altered by several statements of a transaction, or by two transactions, while an engine runs."""

from __future__ import annotations

from typing import LiteralString, cast

import psycopg
from tests.rigs.database import Database
from tests.rigs.engine import Engine, lsn

REWRITTEN = {
    "after_not_null": ("ALTER b SET NOT NULL", "ALTER b TYPE int USING b * 100"),
    "after_rename": ("RENAME b TO cents", "ALTER cents TYPE int USING cents * 100"),
    "after_widening": ("ALTER b TYPE bigint", "ALTER b TYPE bigint USING b * 2"),
    "after_addition": ("ADD c int DEFAULT 1", "ALTER c TYPE int USING c + id"),
    "after_default": ("ALTER t SET DEFAULT 'x'", "ALTER t TYPE text USING upper(t)"),
}
"""The last statement changes values of existing rows, which are not streamed."""
OTHER_KEY = (
    "ALTER TABLE {} DROP CONSTRAINT {}_pkey; ALTER TABLE {} ADD PRIMARY KEY (id, b);"
    " INSERT INTO {} VALUES (1, 100, 'a'); DELETE FROM {} WHERE id = 1 AND b = 100;"
    " ALTER TABLE {} DROP CONSTRAINT {}_pkey; ALTER TABLE {} ADD PRIMARY KEY (id)"
)
NO_KEY = (
    "ALTER TABLE {} REPLICA IDENTITY FULL; ALTER TABLE {} DROP CONSTRAINT {}_pkey;"
    " INSERT INTO {} VALUES (2, 200, 'a'); DELETE FROM {} WHERE id = 2 AND b = 200; ALTER TABLE {} ADD PRIMARY KEY (id)"
)


def run(connection: psycopg.Connection[object], statement: str) -> None:
    """Run a statement that is made of the names of tables."""
    connection.execute(cast("LiteralString", statement))


def created(db: Database, *tables: str) -> None:
    """Create tables of 5 rows."""
    for name in tables:
        with db.connect() as c:
            run(c, f"CREATE TABLE {name} (id int PRIMARY KEY, b int NOT NULL, t varchar(20))")
            run(c, f"INSERT INTO {name} SELECT i, i, 'a' FROM generate_series(1, 5) i")


def parked(engine: Engine, db: Database) -> dict[str, str]:
    """Return the codes of parked tables once all others have the source's rows, and require these to be equal."""
    [(target,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
    found = engine.wait_for(
        lambda p: (
            bool(p["tables"])
            and all(t["error"] or (t["phase"] == "Ready" and lsn(t["appliedLsn"]) >= lsn(target)) for t in p["tables"])
        )
    )
    codes = {t["name"]: t["error"]["code"] for t in found["tables"] if t["error"]}
    engine.assert_equal(*(t["name"] for t in found["tables"] if t["name"] not in codes))
    return codes


def test_a_statement_after_others_of_its_transaction(engine: Engine, db: Database) -> None:
    """A rewrite, or changes under another key, are found whatever the transaction did to the table before and after."""
    created(db, "unchanged", *REWRITTEN, "other_key", "no_key")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    for name, statements in REWRITTEN.items():
        with db.connect() as c, c.transaction():
            for statement in statements:
                run(c, f"ALTER TABLE {name} {statement}")
    for name, changes in {"other_key": OTHER_KEY, "no_key": NO_KEY}.items():
        with db.connect() as c, c.transaction():
            for statement in changes.replace("{}", name).split("; "):
                run(c, statement)
    with db.connect() as c, c.transaction():
        run(c, "ALTER TABLE unchanged ALTER b DROP NOT NULL")
        run(c, "ALTER TABLE unchanged ALTER b TYPE bigint")
        run(c, "INSERT INTO unchanged VALUES (6, 6, 'a')")
    found = parked(engine, db)
    # Rows were written before the table lost its second identity, so it left the publication.
    assert found.pop("other_key") in ("key_changed", "table_not_published")
    assert found == dict.fromkeys(REWRITTEN, "table_rewritten") | {"no_key": "key_changed"}
    assert engine.stop() == 0


def test_a_transaction_that_reads_older_columns(engine: Engine, db: Database) -> None:
    """An announcement of columns that another transaction has changed since does not bring the old ones back."""
    names = ("by_type", "by_type_dropped", "read_earlier", "dropped_meanwhile")
    created(db, *names)
    with db.connect() as c:
        run(c, "CREATE TYPE mood AS ENUM ('good')")
        run(c, "CREATE TYPE other AS ENUM ('one')")
        for name in names:
            run(c, f"ALTER TABLE {name} ADD m mood")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    with db.connect() as c, db.connect() as early, early.transaction():
        run(early, "ALTER TYPE other ADD VALUE 'two'")
        run(c, "ALTER TABLE by_type ADD n int DEFAULT 7")
        run(c, "INSERT INTO by_type VALUES (10, 1, 'a', 'good', 8)")
        run(c, "ALTER TABLE by_type_dropped DROP t, ADD t text")
        run(c, "INSERT INTO by_type_dropped VALUES (10, 1, 'good', 'kept')")
    with db.connect() as c, db.connect() as early:
        early.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        with early.transaction():
            run(early, "SELECT")
            run(c, "ALTER TABLE read_earlier ADD n int DEFAULT 7")
            run(c, "INSERT INTO read_earlier VALUES (10, 1, 'a', 'good', 8)")
            run(c, "ALTER TABLE dropped_meanwhile DROP t, ADD t text")
            run(c, "INSERT INTO dropped_meanwhile VALUES (10, 1, 'good', 'kept')")
            run(early, "ALTER TABLE read_earlier ADD d int")
            run(early, "ALTER TABLE dropped_meanwhile ADD d int")
    for name in names:
        with db.connect() as c:
            run(c, f"UPDATE {name} SET b = b + 1 WHERE id = 1")
    assert parked(engine, db) == dict.fromkeys(("read_earlier", "dropped_meanwhile"), "schema_change_ambiguous")
    with db.connect() as c:
        c.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
        with c.transaction():
            run(c, "ALTER TABLE by_type ADD z int DEFAULT 3")
            run(c, "INSERT INTO by_type VALUES (11, 1, 'a', 'good', 8, 4)")
    assert parked(engine, db).keys() == {"read_earlier", "dropped_meanwhile"}
    assert engine.stop() == 0
