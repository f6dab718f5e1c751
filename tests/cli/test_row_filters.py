"""Row filters in the manifest, through the commands."""

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

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "row-filters.md"
ORDERS = "SELECT id, status FROM replica.orders ORDER BY id"


def block(language: str) -> str:
    """Return the page's only block in this language."""
    [found] = re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


@pytest.fixture
def orders(manifest: Path, db: Database) -> Path:
    """A manifest of a table with orders, of which some are drafts, and of another table."""
    db.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL)",
        block("sql"),
        "INSERT INTO orders VALUES (1, 'draft'), (2, 'paid'), (3, 'sent')",
        "INSERT INTO items VALUES (1)",
    )
    return manifest


def write(path: Path, db: Database, where: str | None, **spec: Any) -> None:
    """Write the manifest with this filter of ``orders``, None for none."""
    entry = {"schema": "public", "name": "orders"} | ({} if where is None else {"where": where})
    tables = {"include": [entry, {"schema": "public", "name": "*"}]}
    path.write_text(yaml.safe_dump(replicated(db, store={"postgres": {}}, tables=tables, **spec)))


def test_only_the_rows_of_the_filter_are_replicated(orders: Path, db: Database) -> None:
    """In the copy, in the stream across the border, and in the comparison. Another filter is followed."""
    [filtered, _] = yaml.safe_load(block("yaml"))["spec"]["tables"]["include"]
    write(orders, db, filtered["where"])
    assert on(orders, "check").exit_code == Exit.OK
    run(orders)
    assert db.query(ORDERS) == [(2, "paid"), (3, "sent")]
    db.execute(
        "UPDATE orders SET status = 'paid' WHERE id = 1",
        "UPDATE orders SET status = 'draft' WHERE id = 2",
        "UPDATE orders SET id = 4 WHERE id = 3",
        "INSERT INTO orders VALUES (5, 'draft'), (6, 'paid')",
    )
    run(orders)
    assert db.query(ORDERS) == [(1, "paid"), (4, "sent"), (6, "paid")]
    assert on(orders, "verify").exit_code == Exit.OK
    write(orders, db, "status = 'draft'")
    planned = on(orders, "plan", "-o", "json")
    assert [" ".join(s.split()) for s in json.loads(planned.stdout)["plan"]["changesAtSource"]] == [
        f'ALTER PUBLICATION "levada_{db.name}" DROP TABLE ONLY "public"."orders";',
        f"""ALTER PUBLICATION "levada_{db.name}" ADD TABLE ONLY "public"."orders" WHERE ( status = 'draft' );""",
    ]
    run(orders)
    assert json.loads(on(orders, "plan", "-o", "json").stdout)["plan"]["changesAtSource"] == []
    assert db.query(ORDERS) == [(2, "draft"), (5, "draft")]
    write(orders, db, None)
    run(orders)
    assert db.query(ORDERS) == db.query("SELECT id, status FROM orders ORDER BY id")
    db.execute("UPDATE orders SET status = 'draft'")
    run(orders)
    assert on(orders, "verify").exit_code == Exit.OK


@pytest.mark.nightly
def test_a_filter_that_postgres_refuses(orders: Path, db: Database) -> None:
    """A first start is refused. A pipeline that has run keeps the former filter, names the error, and goes on."""
    write(orders, db, "stats = 'paid'")
    refused = on(orders, "run", "--until", "caught-up")
    assert refused.exit_code != Exit.OK
    assert "[row_filter_refused]" in refused.output
    assert db.query("SELECT to_regclass('replica.orders')") == [(None,)]
    write(orders, db, "status = 'paid'")
    run(orders)
    write(orders, db, "random() > 0.5")
    assert "[row_filter_refused]" in on(orders, "check").output
    db.execute("INSERT INTO orders VALUES (4, 'paid'), (5, 'draft')", "INSERT INTO items VALUES (2)")
    assert "[row_filter_refused]" in run(orders)
    assert db.query(ORDERS) == [(2, "paid"), (4, "paid")]
    assert db.query("SELECT count(*) FROM replica.items") == [(2,)]


def test_a_new_table_is_never_copied_without_its_filter(orders: Path, db: Database) -> None:
    """A table whose filter is refused is left out, also if another session has published it without one."""
    db.execute("DROP TABLE orders")
    write(orders, db, "status = 'paid' AND id > 0")
    run(orders)
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, status text)",
        "INSERT INTO orders VALUES (1, 'draft'), (2, 'paid')",
    )
    assert "[row_filter_refused]" in run(orders)
    db.execute(f"ALTER PUBLICATION levada_{db.name} ADD TABLE orders")
    assert "[row_filter_refused]" in run(orders)
    assert db.query("SELECT to_regclass('replica.orders')") == [(None,)]
    db.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    run(orders)
    assert db.query(ORDERS) == [(2, "paid")]


def test_a_filter_of_an_external_publication(orders: Path, db: Database) -> None:
    """The manifest cannot have one, because Levada does not change that publication."""
    source = yaml.safe_load(yaml.safe_dump(replicated(db)))["spec"]["source"]
    write(orders, db, "id > 1", source=source | {"publication": {"management": "External"}})
    refused = on(orders, "check")
    assert refused.exit_code != Exit.OK
    assert "where needs a managed publication" in " ".join(refused.output.split())


def test_long_values_that_an_update_does_not_send(manifest: Path, db: Database) -> None:
    """The check warns of a table that an UPDATE enters without its long value, until the printed statement has run."""
    db.execute(
        "DROP TABLE orders",
        "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL, n int, body text, UNIQUE (id, status))",
        "ALTER TABLE orders ALTER body SET STORAGE EXTERNAL, REPLICA IDENTITY USING INDEX orders_id_status_key",
        "INSERT INTO orders VALUES (1, 'draft', 1, 'short')",
        "INSERT INTO items VALUES (1)",
    )
    write(manifest, db, "status <> 'draft'")
    assert unsent_values(manifest) == []
    db.execute("UPDATE orders SET body = repeat('long', 1000)")
    [problem] = unsent_values(manifest)
    assert "in body: an UPDATE" in problem["message"]
    write(manifest, db, None)
    assert unsent_values(manifest) == []
    write(manifest, db, "status <> 'draft'")
    db.execute(problem["hint"].partition(", for")[0])
    assert unsent_values(manifest) == []
    run(manifest)
    db.execute("UPDATE orders SET status = 'paid'")
    run(manifest)
    assert db.query("SELECT length(body) FROM replica.orders") == [(4000,)]


def unsent_values(manifest: Path) -> list[dict[str, Any]]:
    """Return the warnings of the check about long values."""
    problems = json.loads(on(manifest, "check", "-o", "json").stdout)["problems"]
    return [problem for problem in problems if problem["code"] == "row_filter_unsent_values"]
