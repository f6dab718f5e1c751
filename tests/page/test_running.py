"""The page of a running engine on a real PostgreSQL: live, honest when the engine ends, and safe with odd names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect
from psycopg import sql
from tests.page.browser import Tab
from tests.page.documents import HOSTILE
from tests.rigs.database import Database
from tests.rigs.engine import Engine

from levada.printable import printable

Tabs = Callable[..., Tab]


@pytest.fixture
def engine(db: Database, tmp_path: Path) -> Iterator[Engine]:
    """An engine that replicates orders, a table that the destination has already, and tables with odd names."""
    target = f"{db.name}_target"
    with db.connect() as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(target)))
        connection.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        connection.execute("INSERT INTO orders SELECT generate_series(1, 1000)")
        connection.execute("CREATE TABLE taken (id int PRIMARY KEY)")
        for name in HOSTILE:
            connection.execute(sql.SQL("CREATE TABLE {} (id int PRIMARY KEY)").format(sql.Identifier(name)))
    replica = Database(db.server, target)
    replica.execute("CREATE TABLE taken (id text)", "INSERT INTO taken VALUES ('ours')")
    destination = {
        "host": "127.0.0.1",
        "port": db.server.port,
        "database": target,
        "credentialsSecretRef": {"name": "pg"},
        "tls": {"mode": "Disable"},
    }
    made = Engine(db, tmp_path, {"destination": {"postgres": destination}})
    made.write_manifest()
    try:
        yield made
    finally:
        made.kill()
        with db.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(target)))


@pytest.mark.nightly
def test_a_pipeline_from_its_start_to_a_kill_and_back(engine: Engine, tab: Tabs) -> None:
    """The page shows the start, each table, new changes, the end of the engine with the age of figures, and its return.

    Odd names of real tables are texts. Nothing breaks the content security policy, which the console would report.
    """
    engine.start()
    expected = {printable(f"public.{name}").replace("\n", "\\n") for name in (*HOSTILE, "orders", "taken")}
    engine.wait_for(
        lambda p: (
            len(p["tables"]) == len(expected)
            and all(t["phase"] == ("Errored" if t["name"] == "taken" else "Ready") for t in p["tables"])
        )
    )
    address = f"http://127.0.0.1:{engine.port}"
    engine.wait_log(f"shop: page at {address}/")
    page = tab().open(address)
    assert set(page.locator("#tables-body .name").all_text_contents()) == expected
    expect(page.locator("#right .sentence")).to_have_text("1 table is parked with an error")
    taken = page.locator("#errors-list article")
    expect(taken).to_have_count(1)
    assert "table_not_ours" in taken.inner_text()
    words = f"{engine.manifest} --secrets {engine.folder / 'secrets'}"
    found = engine.wait_for(lambda p: p["manifest"]["arguments"])
    assert found["manifest"]["arguments"] == words, "so that commands run as they are copied"
    assert page.locator("img").count() == 1

    orders = page.locator("#tables-body tr").filter(has_text="public.orders")
    engine.db.execute("INSERT INTO orders SELECT generate_series(1001, 8000)")
    expect(orders).to_contain_text("7,000")
    # Rows that wait are shown too. Once they are applied, the next process does not count them.
    engine.wait_for(lambda p: any(t["name"] == "orders" and t["rowsApplied"] == 7000 for t in p["tables"]))
    expect(orders).to_contain_text("7,000")

    engine.kill()
    expect(page.locator("#connection")).to_have_text("The engine does not answer. These are its last figures.")
    expect(page.locator("#age")).to_contain_text("old")
    assert Axe().run(page, options={"runOnly": ["wcag2aa"]}).violations_count == 0
    expect(orders).to_contain_text("7,000")

    port = engine.port
    engine.start(port=port)
    expect(page.locator("#connection")).to_be_hidden()
    expect(page.locator("#age")).to_contain_text("Live")
    expect(orders).not_to_contain_text("7,000")
