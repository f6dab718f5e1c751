"""Statements that change rows without streaming them, under a running engine that copies lost tables again."""

from __future__ import annotations

from typing import LiteralString

import yaml
from tests.rigs.database import Database
from tests.rigs.engine import Engine

_TABLES: tuple[LiteralString, ...] = (
    "CREATE TYPE mood AS ENUM ('good', 'bad')",
    "CREATE TABLE v (id int PRIMARY KEY, v int)",
    "CREATE TABLE m (id int PRIMARY KEY, m mood)",
    "CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE p_1 PARTITION OF p FOR VALUES FROM (0) TO (1000)",
    "CREATE TABLE p_2 PARTITION OF p FOR VALUES FROM (1000) TO (2000)",
    "INSERT INTO v SELECT i, i FROM generate_series(1, 1000) i",
    "INSERT INTO m SELECT i, 'bad' FROM generate_series(1, 1000) i",
    "INSERT INTO p SELECT i, 'p' FROM generate_series(1, 1999) i",
)
_CHANGES: tuple[LiteralString, ...] = (
    "ALTER TABLE v ALTER v TYPE int USING v * 10",
    "ALTER TYPE mood RENAME VALUE 'bad' TO 'worse'",
    "TRUNCATE p_1",
    "INSERT INTO v VALUES (2001, 1)",
    "INSERT INTO m VALUES (2001, 'worse')",
    "INSERT INTO p VALUES (1, 'new')",
)


def test_rewritten_tables_become_equal_again(engine: Engine, db: Database) -> None:
    """Values rewritten, a label renamed, a partition emptied: each table is copied again by itself and is equal."""
    db.execute(*_TABLES)
    path = engine.write_manifest()
    [manifest] = yaml.safe_load_all(path.read_text())
    del manifest["spec"]["tables"]["onUnstreamable"]
    path.write_text(yaml.safe_dump(manifest))
    engine.start()
    engine.wait_caught_up()
    db.execute(*_CHANGES)
    for code in ("table_rewritten", "type_changed", "partition_changed"):
        engine.wait_log(f"[{code}]")
    for table in ("v", "m", "p"):
        engine.wait_log(f"table public.{table}: Ready -> Errored")
    engine.wait_caught_up()
    engine.assert_equal("v", "m", "p")
