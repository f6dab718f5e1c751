"""Every kind of change, each seen to be equal before the next begins."""

from __future__ import annotations

from typing import LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine

_TABLES: LiteralString = """
CREATE TABLE plain (id int PRIMARY KEY, v text);
CREATE TABLE pair (a int, b text, v numeric(10,2), PRIMARY KEY (a, b));
CREATE TABLE toasted (id int PRIMARY KEY, big text, v int);
CREATE TABLE full_id (id int PRIMARY KEY, big text, v int);
ALTER TABLE full_id REPLICA IDENTITY FULL;
CREATE TABLE by_index (id int NOT NULL, big text, v int);
CREATE UNIQUE INDEX by_index_id ON by_index (id);
ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_id;
ALTER TABLE toasted ALTER big SET STORAGE EXTERNAL;
ALTER TABLE full_id ALTER big SET STORAGE EXTERNAL;
ALTER TABLE by_index ALTER big SET STORAGE EXTERNAL;
INSERT INTO plain SELECT i, 'v' || i FROM generate_series(1, 1000) i;
INSERT INTO toasted SELECT i, repeat('x' || i, 5000), 0 FROM generate_series(1, 20) i;
"""

_STEPS: tuple[tuple[str, LiteralString], ...] = (
    ("inserts", "INSERT INTO plain VALUES (5000, 'one'); INSERT INTO pair VALUES (1, 'a', 1.5), (2, 'b', NULL)"),
    (
        "inserts of TOASTed values",
        "INSERT INTO full_id SELECT * FROM toasted; INSERT INTO by_index SELECT * FROM toasted",
    ),
    (
        "updates and deletes",
        "UPDATE plain SET v = v || '!' WHERE id <= 100; DELETE FROM plain WHERE id BETWEEN 200 AND 300",
    ),
    (
        "key changes",
        "UPDATE plain SET id = id + 100000 WHERE id <= 50; UPDATE pair SET b = 'changed', v = 9 WHERE a = 1",
    ),
    (
        "keys swapped in one transaction",
        "BEGIN; UPDATE plain SET id = 7777777 WHERE id = 400; UPDATE plain SET id = 400 WHERE id = 401;"
        " UPDATE plain SET id = 401 WHERE id = 7777777; COMMIT",
    ),
    (
        "subtransactions",
        "BEGIN; INSERT INTO plain VALUES (6000, 'x'); SAVEPOINT a; INSERT INTO plain VALUES (6001, 'y'); ROLLBACK TO a;"
        " INSERT INTO plain VALUES (6002, 'z'); SAVEPOINT b; DELETE FROM plain WHERE id = 6000; RELEASE b; COMMIT",
    ),
    ("a rollback", "BEGIN; INSERT INTO plain VALUES (9000, 'no'); ROLLBACK"),
    (
        "ON CONFLICT",
        "INSERT INTO plain VALUES (5000, 'two'), (5001, 'new') ON CONFLICT (id) DO UPDATE SET v = excluded.v",
    ),
    (
        "unchanged TOAST under each identity",
        "UPDATE toasted SET v = v + 1; UPDATE full_id SET v = v + 1; UPDATE by_index SET v = v + 1",
    ),
    (
        "unchanged TOAST with a changed key",
        "UPDATE toasted SET id = id + 100 WHERE id <= 5; UPDATE by_index SET id = id + 100 WHERE id <= 5",
    ),
    (
        "TOAST changed and unchanged in one transaction",
        "BEGIN; UPDATE toasted SET v = 5 WHERE id = 10; UPDATE toasted SET big = 'small' WHERE id = 10;"
        " UPDATE toasted SET v = 6 WHERE id = 10; DELETE FROM toasted WHERE id = 11;"
        " INSERT INTO toasted VALUES (11, repeat('again', 3000), 1); UPDATE toasted SET v = 2 WHERE id = 11; COMMIT",
    ),
    (
        "truncate amid inserts",
        "BEGIN; INSERT INTO plain VALUES (8000, 'gone'); TRUNCATE plain; INSERT INTO plain VALUES (8001, 'kept'); COMMIT",
    ),
    ("truncate of two tables", "TRUNCATE pair, full_id"),
    ("inserts after it", "INSERT INTO pair SELECT i, 'n', i FROM generate_series(1, 500) i"),
)


@pytest.mark.always
def test_every_kind_of_change(engine: Engine, db: Database) -> None:
    """Whatever a transaction does, the lake is equal to the source after it."""
    db.execute(_TABLES)
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    for name, script in _STEPS:
        db.execute(script)
        engine.wait_caught_up()
        print(name)
        engine.assert_equal("plain", "pair", "toasted", "full_id", "by_index")
    with db.connect() as c, c.cursor().copy("COPY plain FROM STDIN") as copy:
        for i in range(20_000, 21_000):
            copy.write_row((i, f"copied {i}"))
    engine.wait_caught_up()
    engine.assert_equal("plain")


def test_columns_change_between_and_within_transactions(engine: Engine, db: Database) -> None:
    """Columns added, dropped, renamed and widened: rows before have the old schema, rows after the new one."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, a int, b text, c numeric(8,2), d float4)",
        "INSERT INTO t SELECT i, i, 'b' || i, i / 3.0, i / 7.0 FROM generate_series(1, 500) i",
    )
    engine.write_manifest()
    engine.start()
    engine.wait_for(lambda p: p["ready"])
    steps: tuple[LiteralString, ...] = (
        "ALTER TABLE t ADD COLUMN e text; INSERT INTO t (id, a, e) VALUES (1001, 1, 'e')",
        "ALTER TABLE t ADD COLUMN f int DEFAULT 42; INSERT INTO t (id) VALUES (1002)",
        "ALTER TABLE t RENAME COLUMN b TO bb; UPDATE t SET bb = 'renamed' WHERE id = 7",
        "ALTER TABLE t DROP COLUMN a; UPDATE t SET e = 'x' WHERE id < 10",
        "ALTER TABLE t ALTER c TYPE numeric(12,2); INSERT INTO t (id, c) VALUES (1003, 1234567890.12)",
        # By itself: with another statement in the same query it counts as a rewrite of unknown values.
        "ALTER TABLE t ALTER d TYPE float8",
        "INSERT INTO t (id, d) VALUES (1004, 0.1)",
        "BEGIN; INSERT INTO t (id) VALUES (1005); ALTER TABLE t ADD COLUMN g date; INSERT INTO t (id, g) VALUES (1006,"
        " '2026-01-02'); ALTER TABLE t RENAME COLUMN g TO gg; UPDATE t SET gg = '2026-02-03' WHERE id = 1005; COMMIT",
        "ALTER TABLE t ADD COLUMN unused int",
        "ALTER TABLE t DROP COLUMN e; ALTER TABLE t ADD COLUMN e bigint; INSERT INTO t (id, e) VALUES (1007, 5)",
    )
    for step in steps:
        db.execute(step)
        engine.wait_caught_up()
        engine.assert_equal("t")
