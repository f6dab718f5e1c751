"""Random statements on one table, many of them in one transaction. Whatever they are, the stream of another goes on."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import psycopg
import pytest
from tests.rigs.capture import Capture
from tests.rigs.database import Database

from levada.errors import StatementRefused
from levada.postgres.ddl import install_ddl_trigger
from levada.postgres.slots import create_slot

_NAME: Final = "\u00e9" * 31
"""A name of the most characters that take two bytes each."""
_ROWS: Final = (
    "INSERT INTO v (id) SELECT coalesce(max(id), 0) + 1 FROM v",
    "INSERT INTO v (id, a) SELECT coalesce(max(id), 0) + 1, repeat('x', 3000) FROM v",
    "UPDATE v SET id = id + 1000 WHERE id = (SELECT min(id) FROM v)",
    "UPDATE v SET a = 'b'",
    "UPDATE v SET v = v.v",
    "DELETE FROM v WHERE id = (SELECT min(id) FROM v)",
    "TRUNCATE v",
    "TRUNCATE v, other",
    "INSERT INTO p VALUES (1, 'a'), (11, 'b')",
    "UPDATE p SET a = 'c'",
    "UPDATE p SET id = 12 WHERE id = 1",
    "DELETE FROM p",
)
_DDL: Final = (
    "ALTER TABLE v ADD COLUMN b int DEFAULT 4",
    "ALTER TABLE v ADD COLUMN b text DEFAULT clock_timestamp()::text",
    "ALTER TABLE v DROP COLUMN b",
    "ALTER TABLE v DROP COLUMN a",
    "ALTER TABLE v ADD COLUMN a text",
    f'ALTER TABLE v RENAME a TO "{_NAME}"',
    f'ALTER TABLE v RENAME "{_NAME}" TO a',
    "ALTER TABLE v ALTER a TYPE varchar(4000)",
    "ALTER TABLE v ALTER a TYPE bytea USING convert_to(a, 'UTF8')",
    "ALTER TABLE v ALTER id TYPE bigint",
    "CREATE TYPE e AS ENUM ('x', 'y')",
    "ALTER TYPE e ADD VALUE 'z'",
    "ALTER TYPE e RENAME VALUE 'x' TO 'w'",
    "ALTER TABLE v ADD COLUMN e e DEFAULT 'x'",
    "ALTER TYPE e RENAME TO f",
    "DROP TYPE e CASCADE",
    "DROP TYPE f CASCADE",
    "CREATE DOMAIN d AS int CHECK (value > 0)",
    "ALTER TABLE v ADD COLUMN d d[]",
    "UPDATE v SET d = '{1}'",
    "DROP DOMAIN d CASCADE",
    "CREATE TYPE c AS (x int, y text)",
    "ALTER TABLE v ADD COLUMN c c",
    "UPDATE v SET c = ROW(1, 'a')",
    "ALTER TYPE c ADD ATTRIBUTE z int CASCADE",
    "ALTER TYPE c DROP ATTRIBUTE x CASCADE",
    "DROP TYPE c CASCADE",
    "ALTER TABLE v ADD COLUMN g int GENERATED ALWAYS AS (id * 2) STORED",
    "ALTER TABLE v ADD COLUMN _levada_x int",
    "ALTER TABLE v DROP COLUMN _levada_x",
    "ALTER TABLE v RENAME TO w",
    "ALTER TABLE w RENAME TO v",
    "ALTER TABLE v SET SCHEMA app",
    "ALTER TABLE app.v SET SCHEMA public",
    "ALTER SCHEMA app RENAME TO app2",
    "CREATE SCHEMA app",
    "DROP TABLE v CASCADE",
    "DROP SCHEMA app CASCADE",
    "CREATE TABLE v (id int PRIMARY KEY, a text)",
    "CREATE TABLE v (a text, id int)",
    "ALTER TABLE v SET UNLOGGED",
    "ALTER TABLE v SET LOGGED",
    "CREATE TABLE child (k int) INHERITS (v)",
    "INSERT INTO child (id, k) VALUES (1, 1)",
    "ALTER TABLE v REPLICA IDENTITY FULL",
    "ALTER TABLE v REPLICA IDENTITY NOTHING",
    "ALTER TABLE v REPLICA IDENTITY DEFAULT",
    "CREATE UNIQUE INDEX u ON v (id)",
    "ALTER TABLE v ALTER id SET NOT NULL",
    "ALTER TABLE v REPLICA IDENTITY USING INDEX u",
    "DROP INDEX u",
    "ALTER TABLE v DROP CONSTRAINT v_pkey",
    "ALTER TABLE v ADD PRIMARY KEY (id)",
    "ALTER TABLE v DROP CONSTRAINT v_pkey, ADD PRIMARY KEY (id, a)",
    "VACUUM FULL v",
    "ALTER PUBLICATION levada_shop DROP TABLE v",
    "ALTER PUBLICATION levada_shop ADD TABLE v",
    "ALTER PUBLICATION levada_shop SET TABLE other, v (id), p",
    "ALTER PUBLICATION levada_shop SET TABLE other, v WHERE (id > 2)",
    "ALTER PUBLICATION levada_shop SET TABLE other",
    "ALTER PUBLICATION levada_shop SET TABLE other, v, p",
    "ALTER PUBLICATION levada_shop SET (publish_via_partition_root = true)",
    "ALTER PUBLICATION levada_shop SET (publish_via_partition_root = false)",
    "ALTER PUBLICATION levada_shop RENAME TO aside; ALTER PUBLICATION aside RENAME TO levada_shop",
    "DROP PUBLICATION levada_shop; CREATE PUBLICATION levada_shop FOR TABLE other, v",
    "DROP PUBLICATION levada_shop; CREATE PUBLICATION levada_shop FOR ALL TABLES",
    "CREATE TABLE q PARTITION OF p FOR VALUES FROM (20) TO (30)",
    "ALTER TABLE p1 REPLICA IDENTITY FULL",
    "ALTER TABLE p REPLICA IDENTITY FULL",
    "ALTER TABLE p DETACH PARTITION p1",
    "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (10)",
    "ALTER TABLE p ADD COLUMN n int",
    "ALTER TABLE p DROP COLUMN a",
    "ALTER TABLE p1 DROP CONSTRAINT p1_pkey",
    "DROP TABLE p1",
)


def statements(seed: int) -> list[list[str]]:
    """Return the statements of some transactions."""
    chance = random.Random(seed)
    return [
        [chance.choice(_ROWS if chance.random() < 0.45 else _DDL) for _ in range(chance.randint(1, 8))]
        for _ in range(12)
    ]


def play(db: Database, transaction: list[str], number: int) -> None:
    """Run a transaction with a row of the other table after each statement. One that fails is rolled back alone."""
    with db.connect() as connection, connection.transaction():
        for at, statement in enumerate(transaction):
            try:
                with connection.transaction():
                    connection.execute("SET LOCAL lock_timeout = '5s'")
                    connection.execute(statement)  # type: ignore[call-overload]  # made of constants
            except psycopg.Error:
                continue
            connection.execute("INSERT INTO other VALUES (%s)", [number * 100 + at])


@pytest.mark.parametrize("announced", [True, False], ids=["with the trigger", "without"])
@pytest.mark.parametrize("seed", [pytest.param(s, marks=[] if s < 2 else pytest.mark.nightly) for s in range(20)])
def test_statements_on_one_table_spare_the_other(db: Database, tmp_path: Path, seed: int, announced: bool) -> None:
    """The capture does not end, in sessions before and after them, and each row of the other table is staged once."""
    db.execute(
        "CREATE SCHEMA app",
        "CREATE TABLE v (id int PRIMARY KEY, a text)",
        "CREATE TABLE other (id int PRIMARY KEY)",
        "CREATE TABLE p (id int PRIMARY KEY, a text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "CREATE PUBLICATION levada_shop FOR TABLE other, v, p",
    )
    capture = Capture(db, tmp_path / "staging", ddl_messages=announced)
    with db.connect() as connection:
        if announced:
            assert install_ddl_trigger(connection)
        create_slot(connection, capture.slot)
    played = statements(seed)
    for half in (played[:6], played[6:]):
        with capture.running():
            for transaction in half:
                play(db, transaction, played.index(transaction))
            capture.catch_up()
        assert capture.error is None
        capture.new_worker()
    other = capture.table("other")
    assert other not in {table for table, _ in capture.failures}
    inserted = [row["id"] for row in capture.rows("other") if row["_levada_op"] == "I"]
    assert len(inserted) == len(set(inserted))
    assert set(inserted) >= {row[0] for row in db.query("SELECT id FROM other")}


@pytest.mark.nightly
def test_a_row_that_the_server_cannot_send(db: Database, tmp_path: Path) -> None:
    """PostgreSQL sends a bytea as text of twice its size. The error names the table, and its hint drops the slot."""
    db.execute("CREATE TABLE v (id int PRIMARY KEY, a bytea)", "CREATE TABLE other (id int PRIMARY KEY)")
    capture = Capture(db, tmp_path / "staging")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO other VALUES (1)")
        capture.catch_up()
        with db.connect() as connection, connection.transaction():
            connection.execute("INSERT INTO other VALUES (2)")
            connection.execute("INSERT INTO v VALUES (1, repeat('x', 560000000)::bytea)")
            connection.execute("INSERT INTO other VALUES (3)")
            [(xid,)] = connection.execute("SELECT pg_current_xact_id()::text").fetchall()
        with pytest.raises(StatementRefused) as refused:
            capture.catch_up()
    assert refused.value.code == "source_row_too_large"
    assert f"cannot send a row of table public.v in transaction {xid}" in refused.value.message
    statement = str(refused.value.hint).partition("drop the slot: ")[2].partition(". If")[0]
    db.execute(statement)  # type: ignore[arg-type]  # of the hint
    assert db.query("SELECT FROM pg_replication_slots WHERE slot_name = %s", capture.slot) == []
