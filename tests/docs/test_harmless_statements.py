"""Statements that the page of schema changes calls harmless: their tables stay Ready, and later rows arrive."""

from __future__ import annotations

from pathlib import Path
from typing import Final, LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig

PAGE: Final = Path(__file__).parents[2] / "docs" / "guides" / "schema-changes.md"
STATEMENTS: Final[dict[str, LiteralString]] = {
    "ADD COLUMN ... GENERATED ALWAYS AS": "ALTER TABLE {} ADD g int GENERATED ALWAYS AS (id * 2) STORED",
    "SET EXPRESSION": (
        "ALTER TABLE {0} ADD e int GENERATED ALWAYS AS (id * 2) STORED;"
        " ALTER TABLE {0} ALTER e SET EXPRESSION AS (id * 3)"
    ),
    "SET/DROP NOT NULL": "ALTER TABLE {} ALTER v SET NOT NULL",
    "SET DEFAULT": "ALTER TABLE {} ALTER v SET DEFAULT 5",
    "CHECK": "ALTER TABLE {} ADD CHECK (v > 0)",
    "foreign keys": "ALTER TABLE {} ADD FOREIGN KEY (v) REFERENCES others NOT VALID",
    "indexes": "CREATE INDEX ON {} (v)",
    "triggers": "CREATE TRIGGER t BEFORE UPDATE ON {} EXECUTE FUNCTION nothing()",
    "rules": "CREATE RULE r AS ON INSERT TO {} WHERE false DO NOTHING",
    "GRANT": "GRANT SELECT ON {} TO PUBLIC",
    "COMMENT": "COMMENT ON TABLE {} IS 'x'",
    "RENAME CONSTRAINT": "ALTER TABLE {0} RENAME CONSTRAINT {0}_pkey TO {0}_key",
    "SET STORAGE": "ALTER TABLE {} ALTER t SET STORAGE EXTERNAL",
    "SET COMPRESSION": "ALTER TABLE {} ALTER t SET COMPRESSION pglz",
    "SET STATISTICS": "ALTER TABLE {} ALTER v SET STATISTICS 10",
    "SET (fillfactor = ...)": "ALTER TABLE {} SET (fillfactor = 70)",
    "ENABLE ROW LEVEL SECURITY": "ALTER TABLE {} ENABLE ROW LEVEL SECURITY",
    "INHERITS": "CREATE TABLE {0}_child () INHERITS ({0})",
    "VACUUM": "VACUUM ANALYZE {}",
    "CLUSTER": "CLUSTER {0} USING {0}_pkey",
    "REINDEX": "REINDEX TABLE {}",
    "ALTER TYPE ... RENAME TO": "ALTER TYPE mood RENAME TO moods",
    "REPLICA IDENTITY": "ALTER TABLE {} REPLICA IDENTITY FULL",
}
"""A statement for each word of the page. Tests of types, rewrites and partitions have the other rows."""


@pytest.mark.nightly
def test_harmless_statements(db: Database, tmp_path: Path) -> None:
    """Each statement is on the page. Its table gets the row that is inserted later, and none is parked."""
    page = PAGE.read_text("utf-8")
    assert [words for words in STATEMENTS if words not in page] == []
    db.execute(
        "CREATE TYPE mood AS ENUM ('good')",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "INSERT INTO others VALUES (1)",
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
    )
    with db.connect() as connection:
        lacking = "SET EXPRESSION" if connection.info.server_version < 170_000 else None
    statements = [statement for words, statement in STATEMENTS.items() if words != lacking]
    tables = {f"t{number}": statement for number, statement in enumerate(statements)}
    with db.connect() as connection:
        for table in tables:
            columns = "id int PRIMARY KEY, v int DEFAULT 1, t text, m mood"
            connection.execute(f"CREATE TABLE {table} ({columns})".encode())
            connection.execute(f"INSERT INTO {table} (id) VALUES (1)".encode())
        rig = Rig(db, tmp_path)
        rig.change(selects=lambda table: table.name in tables, copy_tables=8)
        try:
            rig.start()
            rig.wait_caught_up()
            for table, statement in tables.items():
                connection.execute(statement.format(table).encode())
                connection.execute(f"INSERT INTO {table} (id) VALUES (2)".encode())
            # The goal waits for a look at the catalog that is newer than the statements.
            found = rig.wait_caught_up()
        finally:
            rig.stop()
    assert {t.table.name: (t.phase, t.rows_applied) for t in found.tables} == dict.fromkeys(tables, ("Ready", 1))
