"""Changes of columns that no row follows: the stream shows them only with the next row, the catalog at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Rig

import levada.runtime.stages.storage_poller
from levada.capture.column_marks import ColumnMarks
from levada.errors import NeedsOperator
from levada.runtime.config import PublicationConfig
from levada.testing.memory import MemoryDestination
from levada.values import TableId

_STATEMENTS: dict[str, LiteralString] = {
    "added": "ALTER TABLE added ADD d int DEFAULT 4",
    "bare": "ALTER TABLE bare ADD d int",
    "dropped": "ALTER TABLE dropped DROP v",
    "renamed": "ALTER TABLE renamed RENAME v TO w",
    "widened": "ALTER TABLE widened ALTER t TYPE text",
    "typed": "DROP TYPE mood CASCADE",
    "listed": "DROP TYPE label CASCADE",
    "domained": "DROP DOMAIN positive CASCADE",
    "spread": "DROP SCHEMA apart CASCADE",
    "composed": "ALTER TYPE row_type ADD ATTRIBUTE d int CASCADE",
    "parted": "ALTER TABLE parted ADD d int DEFAULT 4",
    "inheriting": "ALTER TABLE parent ADD d int DEFAULT 4",
    "several": "ALTER TABLE several DROP v, ADD d int DEFAULT 4, ADD e text DEFAULT 'x'",
}
"""A statement for each table."""


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of a table for each statement into memory, not started."""
    columns = "id int PRIMARY KEY, v int, a int[], t varchar(5)"
    with db.connect() as c:
        c.execute("CREATE TYPE mood AS ENUM ('good', 'bad'); CREATE TYPE label AS ENUM ('a')")
        c.execute("CREATE DOMAIN positive AS int CHECK (value > 0); CREATE SCHEMA apart")
        c.execute("CREATE TYPE apart.place AS ENUM ('here'); CREATE TYPE row_type AS (id int, v int)")
        c.execute(f"CREATE TABLE parent ({columns})")
        for name in _STATEMENTS.keys() - {"composed", "parted", "inheriting"}:
            c.execute(f"CREATE TABLE {name} ({columns}, m {'mood' if name == 'typed' else 'int'})")
        c.execute("ALTER TABLE listed ADD l label[]; ALTER TABLE domained ADD p positive")
        c.execute("ALTER TABLE spread ADD p apart.place; CREATE TABLE composed OF row_type (PRIMARY KEY (id))")
        c.execute(f"CREATE TABLE parted ({columns}) PARTITION BY RANGE (id)")
        c.execute("CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10)")
        c.execute("CREATE TABLE inheriting (PRIMARY KEY (id)) INHERITS (parent)")
        for name in _STATEMENTS:
            c.execute(f"INSERT INTO {name} (id, v) VALUES (1, 1), (2, 2)")
    made = Rig(db, tmp_path)
    made.destination = MemoryDestination()  # type: ignore[assignment]  # the rig only passes it on
    made.change(selects=lambda table: table.schema == "public", copy_tables=8)
    yield made
    made.stop()


def _at_source(db: Database, name: str) -> list[dict[str, Any]]:
    return sorted(
        (row[0] for row in db.query(f"SELECT to_jsonb(of_row) FROM {name} of_row")), key=lambda row: row["id"]
    )


def _in_memory(rig: Rig) -> dict[str, list[dict[str, Any]]]:
    tables = rig.destination.place.tables.values()  # type: ignore[attr-defined]  # as above
    return {t.schema.name.name: sorted(t.named(), key=lambda row: row["id"]) for t in tables}


@pytest.mark.parametrize("announced", [True, False], ids=["trigger", "catalog"])
def test_a_change_of_columns_arrives_without_a_row(rig: Rig, db: Database, announced: bool) -> None:
    """A pipeline that is caught up after a change of columns has it, and its tables are equal, whatever follows."""
    rig.change(ddl_trigger=announced)
    rig.start()
    rig.wait_caught_up()
    db.execute(*_STATEMENTS.values())
    expected = {name: _at_source(db, name) for name in _STATEMENTS}
    found = rig.wait_caught_up()
    assert {t.table.name: t.error.code for t in found.tables if t.error} == {}
    assert {name: rows for name, rows in _in_memory(rig).items() if name != "parent"} == expected


@pytest.mark.nightly
@pytest.mark.since(15)
def test_a_table_that_has_all_published_columns_needs_no_mark(
    rig: Rig, db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns outside of the publication's column list are no change, also if the role may not mark the table.

    A change that cannot be marked parks the table.
    """
    refused: list[int] = []

    def write(marks: ColumnMarks, conn: Any, table: TableId) -> None:
        refused.append(table)
        raise NeedsOperator("insufficient_privilege", f"permission denied for table {table}")

    monkeypatch.setattr(ColumnMarks, "write", write)
    [(listed,)] = db.query("SELECT 'listed'::regclass::oid::int")
    rig.change(ddl_trigger=False, publication=PublicationConfig("levada_shop", managed=False))
    monkeypatch.setattr(levada.runtime.stages.storage_poller, "poll_interval_s", lambda tables: 0.2)
    others = ", ".join(sorted({*_STATEMENTS, "parent"} - {"listed"}))
    db.execute(f"CREATE PUBLICATION levada_shop FOR TABLE {others}, TABLE listed (id, v)")
    rig.start()
    rig.wait(lambda p: listed in refused)
    assert not any(t.error for t in rig.wait_caught_up().tables)
    db.execute("ALTER TABLE listed RENAME v TO w")
    found = rig.wait(lambda p: any(t.error for t in p.tables))
    assert [(t.table.name, t.error.code) for t in found.tables if t.error] == [("listed", "schema_change_ambiguous")]
