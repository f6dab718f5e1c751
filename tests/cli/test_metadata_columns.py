"""Columns that describe the last change of each row, through the commands."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "metadata-columns.md"
LONG = "x" * 9000
COLUMNS = "_levada_lsn, _levada_operation, _levada_transaction_id, _levada_source"
NAMES = ("commit_time", "lsn", "operation", "transaction_id", "source")


@pytest.fixture
def orders(manifest: Path, db: Database) -> Path:
    """A manifest of a table with three orders, one of which has a long note."""
    db.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "ALTER TABLE orders ALTER COLUMN note SET STORAGE EXTERNAL",
        f"INSERT INTO orders VALUES (1, 'one'), (2, '{LONG}'), (3, 'three')",
    )
    return manifest


def write(path: Path, db: Database, table: dict[str, Any] | None = None, **tables: Any) -> None:
    """Write the manifest with these settings of all tables, and of the orders."""
    tables = {"include": [{"schema": "public", "name": "*"}], **tables}
    pipeline = replicated(db, store={"postgres": {}}, tables=tables)
    documents = [pipeline]
    if table is not None:
        spec = {"pipelineRef": pipeline["metadata"], "table": {"name": "orders"}, **table}
        documents.append({**pipeline, "kind": "TableSync", "metadata": {"name": "orders"}, "spec": spec})
    path.write_text(yaml.safe_dump_all(documents))


def operations(db: Database) -> dict[int, str]:
    """Return the operation of each order at the destination."""
    return dict(db.query("SELECT id, _levada_operation FROM replica.orders"))


def verified(path: Path, *options: str) -> dict[str, Any]:
    """Return the result of the comparison of the orders."""
    shown = on(path, "verify", "--table", "public.orders", "--output", "json", *options)
    [found] = json.loads(shown.stdout)["tables"]
    return dict(found)


def test_the_columns_describe_the_last_change(orders: Path, db: Database) -> None:
    """By copies, the stream, a resync and a repair. Both sides are equal, and the columns are not compared."""
    [yaml_block] = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    began = datetime.now(UTC)
    write(orders, db, metadata=yaml.safe_load(yaml_block)["spec"]["tables"]["metadata"])
    run(orders)
    name = db.name.replace("_", "-")
    copied = db.query(f"SELECT {COLUMNS} FROM replica.orders")
    assert {row[1:] for row in copied} == {("R", None, name)}
    with db.connect() as connection, connection.transaction():
        connection.execute("UPDATE orders SET id = 20 WHERE id = 2")
        connection.execute("INSERT INTO orders VALUES (4, 'four')")
        connection.execute("DELETE FROM orders WHERE id = 3")
        [xid] = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchone() or [0]
    run(orders)
    assert operations(db) == {1: "R", 20: "U", 4: "I"}
    [(note,)] = db.query("SELECT note FROM replica.orders WHERE id = 20")
    assert note == LONG
    changed = db.query(f"SELECT {COLUMNS} FROM replica.orders WHERE _levada_operation <> 'R'")
    assert {row[2] for row in changed} == {xid}
    assert len({row[0] for row in changed}) == 1
    assert min(row[0] for row in changed) > max(row[0] for row in copied)
    times = db.query("SELECT _levada_commit_time FROM replica.orders ORDER BY _levada_lsn")
    assert began < times[0][0] <= times[-1][0] < datetime.now(UTC)
    for query in re.findall(r"^SELECT .*?;", PAGE.read_text(), re.MULTILINE):
        assert len(db.query(query.replace("FROM orders", "FROM replica.orders").replace("23456789", "0"))) == 3
    found = verified(orders)
    assert found["equal"]
    assert found["notCompared"] == [f"_levada_{name}: the source does not have it" for name in NAMES]
    db.execute(
        "ALTER TABLE replica.orders DISABLE TRIGGER ALL",
        "UPDATE replica.orders SET note = 'wrong' WHERE id = 4",
        "ALTER TABLE replica.orders ENABLE TRIGGER ALL",
    )
    assert verified(orders, "--repair")["repairedEqual"]
    assert operations(db) == {1: "R", 20: "U", 4: "R"}
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    run(orders)
    assert set(operations(db).values()) == {"R"}
    assert verified(orders)["equal"]


@pytest.mark.nightly
def test_kept_rows_have_the_values_of_their_delete(orders: Path, db: Database) -> None:
    """After a delete, a TRUNCATE and a new key, and a resync keeps them. A repair marks with the values of now."""
    write(orders, db, metadata=["Operation", "CommitTime"], deletes="Mark")
    run(orders)
    db.execute("DELETE FROM orders WHERE id = 1", "UPDATE orders SET id = 20 WHERE id = 2")
    run(orders)
    assert operations(db) == {1: "D", 2: "D", 3: "R", 20: "I"}
    db.execute("BEGIN; TRUNCATE orders; INSERT INTO orders VALUES (3, 'again'); END")
    run(orders)
    assert operations(db) == {1: "D", 2: "D", 3: "I", 20: "D"}
    same = "SELECT count(*) FROM replica.orders WHERE _levada_deleted_at = _levada_commit_time"
    assert db.query(same) == [(3,)]
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    run(orders)
    assert operations(db) == {1: "D", 2: "D", 3: "R", 20: "D"}
    db.execute(
        "ALTER TABLE replica.orders DISABLE TRIGGER ALL",
        "INSERT INTO replica.orders VALUES (9, 'strange')",
        "ALTER TABLE replica.orders ENABLE TRIGGER ALL",
    )
    assert verified(orders, "--repair")["repairedEqual"]
    assert operations(db) == {1: "D", 2: "D", 3: "R", 20: "D", 9: "D"}
    assert db.query(same) == [(5 - 1,)]


@pytest.mark.nightly
def test_a_changed_list_copies_again(orders: Path, db: Database) -> None:
    """A plan says so, the columns come and go, and a table of its own has none."""
    columns = (
        "SELECT array_agg(column_name::text) FROM information_schema.columns"
        " WHERE table_schema = 'replica' AND table_name = '{}' AND starts_with(column_name, '_levada')"
    )
    write(orders, db)
    run(orders)
    assert db.query(columns.format("orders")) == [(None,)]
    write(orders, db, metadata=["Source", "Lsn"])
    assert "public.orders" in on(orders, "plan").output
    run(orders)
    assert db.query(columns.format("orders")) == [(["_levada_lsn", "_levada_source"],)]
    db.execute("ALTER TABLE orders ADD COLUMN added int", "INSERT INTO orders VALUES (5, 'five', 5)")
    run(orders)
    assert db.query("SELECT added, _levada_source FROM replica.orders WHERE id = 5") == [(5, db.name.replace("_", "-"))]
    assert verified(orders)["equal"]
    write(orders, db, {"metadata": []}, metadata=["Lsn", "Source"])
    run(orders)
    assert db.query(columns.format("orders")) == [(None,)]
    assert db.query(columns.format("items")) == [(["_levada_lsn", "_levada_source"],)]
    assert "notCompared" in verified(orders)
    assert verified(orders)["equal"]


@pytest.mark.nightly
def test_rows_of_partitions(orders: Path, db: Database) -> None:
    """Those of an attached partition are read, and those of a detached one deleted."""
    db.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE parts_2 (id int PRIMARY KEY, note text)",
        "INSERT INTO parts SELECT i, 'n' FROM generate_series(8, 9) i",
        "INSERT INTO parts_2 SELECT i, 'n' FROM generate_series(10, 11) i",
    )
    write(orders, db, metadata=["Operation", "CommitTime", "TransactionId"], deletes="Mark")
    run(orders)
    db.execute(
        "ALTER TABLE parts ATTACH PARTITION parts_2 FOR VALUES FROM (10) TO (20)",
        "UPDATE parts SET note = 'later' WHERE id = 11",
        "ALTER TABLE parts DETACH PARTITION parts_1",
    )
    run(orders)
    shown = "SELECT id, _levada_operation, _levada_commit_time IS NULL FROM replica.parts ORDER BY id"
    # The snapshot in which the row was read may be before or after its update.
    found = [(row[0], row[1].replace("U", "R"), row[2]) for row in db.query(shown)]
    assert found == [(8, "D", False), (9, "D", False), (10, "R", False), (11, "R", False)]
    shown = on(orders, "verify", "--table", "public.parts", "--output", "json").stdout
    assert json.loads(shown)["tables"][0]["equal"]
