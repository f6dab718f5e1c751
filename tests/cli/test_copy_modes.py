"""Copies of no rows or of a part, through the commands. The manifests and the SQL are those of copy-modes.md."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.rigs.command_line import on, replicated, run
from tests.rigs.database import Database

from levada.cli.exit_codes import Exit

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "copy-modes.md"
ORDERS = "SELECT id, note, length(large) FROM replica.orders ORDER BY id"
LARGE = "(SELECT string_agg(md5(i::text), '') FROM generate_series(1, 1000) i)"


def blocks(language: str) -> list[str]:
    """Return the page's blocks in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def write(path: Path, db: Database, copy: dict[str, Any], of_orders: dict[str, Any] | None = None) -> None:
    """Write a manifest with these settings of copies, and a TableSync of ``orders`` with its own."""
    pipeline = replicated(db, store={"postgres": {}}, copy=copy)
    documents = [pipeline]
    if of_orders is not None:
        table_sync = yaml.safe_load(blocks("yaml")[1])
        table_sync["spec"]["pipelineRef"]["name"] = pipeline["metadata"]["name"]
        table_sync["spec"]["copy"] = of_orders
        documents.append(table_sync)
    path.write_text(yaml.safe_dump_all(documents))


@pytest.fixture
def orders(manifest: Path, db: Database) -> Path:
    """A manifest of orders, two of which are of this year, and of two tables of which one is a log."""
    db.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, placed_at date, note text, large text)",
        f"INSERT INTO orders SELECT i, date '2025-12-30' + i, 'old', {LARGE} FROM generate_series(1, 3) i",
        "CREATE TABLE log_of_visits (id int PRIMARY KEY, page text)",
        "INSERT INTO log_of_visits VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO items VALUES (1)",
    )
    return manifest


def table_of(manifest: Path, name: str) -> dict[str, Any]:
    """Return the table's part of `levada status`."""
    tables = json.loads(on(manifest, "status", "-o", "json").output)["tables"]
    return next(dict(table) for table in tables if table["name"] == name)


def test_a_table_whose_copy_is_skipped(orders: Path, db: Database) -> None:
    """It begins empty, receives every change, and each command names it. A resync empties it.

    A changed mode alone copies nothing.
    """
    copy = yaml.safe_load(blocks("yaml")[0])["spec"]["copy"]
    write(orders, db, copy)
    plan = json.loads(on(orders, "plan", "-o", "json").output)["plan"]["tables"]
    assert {t["name"]: t["copiedRows"] for t in plan} == {"items": "All", "log_of_visits": "None", "orders": "All"}
    run(orders)
    visits = "SELECT id, page FROM replica.log_of_visits ORDER BY id"
    assert db.query(visits) == []
    db.execute(
        "INSERT INTO log_of_visits VALUES (3, 'c')",
        "UPDATE log_of_visits SET page = 'changed' WHERE id = 1",
        "DELETE FROM log_of_visits WHERE id = 2",
    )
    run(orders)
    assert db.query(visits) == [(1, "changed"), (3, "c")]
    assert table_of(orders, "log_of_visits")["copiedRows"] == "None"
    assert table_of(orders, "items")["copiedRows"] == "All"
    compared = on(orders, "verify", "--repair", "-o", "json")
    found = {t["table"]: t for t in json.loads(compared.stdout)["tables"]}
    assert found["public.log_of_visits"]["error"]["code"] == "verify_unsupported"
    assert found["public.orders"]["equal"]
    write(orders, db, {"mode": "All"})
    run(orders)
    assert db.query(visits) == [(1, "changed"), (3, "c")]
    assert on(orders, "resync", "public.log_of_visits").exit_code == Exit.OK
    run(orders)
    assert db.query(visits) == db.query("SELECT id, page FROM log_of_visits ORDER BY id")
    assert on(orders, "verify").exit_code == Exit.OK
    write(orders, db, copy)
    assert on(orders, "resync", "public.log_of_visits").exit_code == Exit.OK
    run(orders)
    assert db.query(visits) == []


@pytest.mark.nightly
def test_a_part_of_a_table_is_copied(orders: Path, db: Database) -> None:
    """The rows of the condition are copied, and all changes streamed. A value that is unknown parks the table, and the
    whole old row as identity brings it."""
    part = yaml.safe_load(blocks("yaml")[1])["spec"]["copy"]
    write(orders, db, {}, part)
    assert "[copy_leaves_values]" in on(orders, "check").output
    run(orders)
    assert [row[:2] for row in db.query(ORDERS)] == [(2, "old"), (3, "old")]
    db.execute("DELETE FROM orders WHERE id = 9", "INSERT INTO orders VALUES (4, '2020-01-01', 'new', 'x')")
    run(orders)
    assert [row[:2] for row in db.query(ORDERS)] == [(2, "old"), (3, "old"), (4, "new")]
    assert table_of(orders, "orders")["copiedRows"] == "Part"
    db.execute("UPDATE orders SET note = 'changed' WHERE id = 1")
    assert on(orders, "run", "--until", "caught-up").exit_code != Exit.OK
    assert table_of(orders, "orders")["error"]["code"] == "unknown_value"
    assert [row[:2] for row in db.query(ORDERS)] == [(2, "old"), (3, "old"), (4, "new")]
    db.execute(*blocks("sql"))
    assert "[copy_leaves_values]" not in on(orders, "check").output
    assert on(orders, "resync", "public.orders").exit_code == Exit.OK
    run(orders)
    db.execute("UPDATE orders SET note = 'again' WHERE id = 1")
    run(orders)
    [(length,)] = db.query("SELECT length(large) FROM orders WHERE id = 1")
    assert db.query(ORDERS)[0] == (1, "again", length)


@pytest.mark.parametrize(
    "where",
    [
        "placed > now()",
        "true; DROP TABLE items",
        "true) OR (true",
        "true) THEN 1 END FROM items WHERE (true",
        "count(*) > 1",
        "id",
    ],
)
def test_a_condition_that_postgres_refuses(orders: Path, db: Database, where: str) -> None:
    """`levada check` names it, and a first start is refused. A text that is no condition alone is refused too."""
    write(orders, db, {}, {"where": where})
    checked = on(orders, "check")
    assert checked.exit_code != Exit.OK
    assert "[copy_where_refused]" in checked.output
    assert db.query("SELECT count(*) FROM items") == [(1,)]


def test_a_condition_and_no_rows_exclude_each_other(orders: Path, db: Database) -> None:
    """The manifest is refused with the field."""
    write(orders, db, {}, {"where": "true", "mode": "None"})
    refused = on(orders, "check")
    assert refused.exit_code == Exit.USAGE
    assert "spec.copy.where" in refused.output
