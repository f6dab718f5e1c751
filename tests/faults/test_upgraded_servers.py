"""The source goes to another major version by ``pg_upgrade``: its tables are compared, and not copied again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.replica_server import differences, server, target, write_manifest
from tests.servers.upgraded import upgraded

from levada.local.postgres import temporary_postgres

__all__ = ["server", "target"]

SHOP = (
    "CREATE TABLE orders (id int PRIMARY KEY, note text, long text)",
    "ALTER TABLE orders ALTER long SET STORAGE EXTERNAL",
    "INSERT INTO orders SELECT g, 'v', repeat('w', 5000) FROM generate_series(1, 500) g",
    "CREATE TABLE items (id int, part int, price numeric, PRIMARY KEY (id, part))",
    "INSERT INTO items SELECT g, g % 3, g / 7.0 FROM generate_series(1, 500) g",
    "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
    "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (100) TO (1000)",
    "INSERT INTO parts SELECT g, 'v' FROM generate_series(1, 200) g",
)
TABLES = ("orders", "items", "parts")
CHANGES = (
    "UPDATE orders SET note = 'changed' WHERE id % 10 = 0",
    "DELETE FROM items WHERE id % 5 = 0",
    "INSERT INTO parts VALUES (300 + (SELECT count(*)::int FROM parts), 'new')",
)


@pytest.fixture(params=[16, 18])
def shop(request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database on a server of its own. pg_upgrade drops the slots of 16. Those of 18 it keeps, or refuses."""
    with temporary_postgres(version=request.param) as old:
        made = Database(old, "postgres")
        made.execute(*SHOP)
        yield made


def versions(target: Database, *tables: str) -> set[Any]:
    """Return the versions of the rows at the destination, which a copy would replace."""
    return {(table, *row) for table in tables for row in target.query(f"SELECT t.id, xmin::text FROM public.{table} t")}


def write_shop(engine: Engine, target: Database, **slot: Any) -> None:
    """Write the manifest. The state is in the source, and upgraded with it."""
    write_manifest(engine, target)
    text = engine.manifest.read_text()
    for field, value in slot.items():
        text = text.replace("slot:\n", f"slot:\n      {field}: {value}\n", 1)
    engine.manifest.write_text(text)


@pytest.fixture
def upgrade(shop: Database) -> Iterator[Callable[[], None]]:
    """Return a function that stops the server and starts its upgrade in its place, at the same port."""
    with ExitStack() as opened:

        def run() -> None:
            shop.server.stop()
            opened.enter_context(upgraded(shop.server))

        yield run


@pytest.mark.parametrize("shop", [16], indirect=True)
def test_an_upgrade_under_a_running_engine(
    shop: Database, target: Database, tmp_path: Path, upgrade: Callable[[], None]
) -> None:
    """Under Compare the engine that runs through it goes on. No row that did not change is written again."""
    engine = Engine(shop, tmp_path)
    write_shop(engine, target, onLost="Compare")
    try:
        engine.start()
        engine.wait_caught_up()
        before = versions(target, *TABLES)
        upgrade()
        shop.execute(*CHANGES)
        engine.wait_log("source_changed")
        engine.wait_caught_up()
        assert differences(shop, target, *TABLES) == []
        assert engine.log.count("Init -> DataSync") == len(TABLES), "each table was copied once, before the upgrade"
        assert len(before - versions(target, *TABLES)) == 50 + 100
        shop.execute(*CHANGES)
        engine.wait_caught_up()
        assert differences(shop, target, *TABLES) == []
        assert engine.stop() == 0
        engine.levada("verify", *engine.options())
    finally:
        engine.kill()


def test_an_upgrade_while_the_engine_is_stopped(
    shop: Database, target: Database, tmp_path: Path, upgrade: Callable[[], None]
) -> None:
    """Under Hold it refuses to go on and names the way. With Compare it goes on, with what the slot had not sent."""
    engine = Engine(shop, tmp_path)
    write_shop(engine, target)
    try:
        engine.levada("run", *engine.options(), "--until", "caught-up")
        before = versions(target, *TABLES)
        # The slot has not consumed this, and pg_upgrade refuses such a slot.
        shop.execute(*CHANGES, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
        upgrade()
        shop.execute("INSERT INTO orders VALUES (1000, 'after', '')")
        held = engine.levada("run", *engine.options(), "--until", "caught-up", check=False)
        assert held.returncode != 0
        assert "spec.source.slot.onLost: Compare" in " ".join((held.stdout + held.stderr).split())
        write_shop(engine, target, onLost="Compare")
        checked = engine.levada("check", *engine.options(), check=False)
        assert "compared with the source" in checked.stdout + checked.stderr
        engine.levada("run", *engine.options(), "--until", "caught-up")
        assert differences(shop, target, *TABLES) == []
        assert len(before - versions(target, *TABLES)) == 50 + 100
        engine.levada("verify", *engine.options())
    finally:
        engine.kill()


@pytest.mark.nightly
@pytest.mark.parametrize("shop", [18], indirect=True)
def test_a_slot_that_the_upgrade_keeps(
    shop: Database, server: Database, target: Database, tmp_path: Path, upgrade: Callable[[], None]
) -> None:
    """pg_upgrade keeps a slot that has consumed all WAL. It is no proof, so the tables are compared all the same."""
    engine = Engine(shop, tmp_path)
    # The writes of a store in the database of the source would be WAL that the slot has not consumed.
    place = {"host": "127.0.0.1", "port": server.server.port, "database": server.name, "tls": {"mode": "Disable"}}
    engine.spec["store"] = {"postgres": {"connection": {**place, "credentialsSecretRef": {"name": "target"}}}}
    write_shop(engine, target, onLost="Compare", failover="true")
    try:
        engine.start()
        engine.wait_caught_up()
        assert engine.stop() == 0
        shop.close()
        upgrade()
        kept = "SELECT slot_name::text, failover FROM pg_replication_slots WHERE invalidation_reason IS NULL"
        assert shop.query(kept) == [("levada_postgres", True)]
        shop.execute(*CHANGES)
        engine.start()
        engine.wait_log("source_changed")
        engine.wait_caught_up()
        assert differences(shop, target, *TABLES) == []
        assert engine.log.count("Init -> DataSync") == len(TABLES), "each table was copied once, before the upgrade"
        shop.execute(*CHANGES)
        engine.wait_caught_up()
        assert differences(shop, target, *TABLES) == []
        assert shop.query(kept) == [("levada_postgres", True)]
        assert engine.stop() == 0
    finally:
        engine.kill()


@pytest.mark.parametrize("shop", [16], indirect=True)
def test_tables_of_files_are_not_copied_again(shop: Database, tmp_path: Path, upgrade: Callable[[], None]) -> None:
    """In Iceberg the tables keep the mark of their source, are repaired, and follow the stream of the new server."""
    engine = Engine(shop, tmp_path)
    engine.write_manifest()
    engine.manifest.write_text(engine.manifest.read_text().replace("slot:\n", "slot:\n      onLost: Compare\n", 1))
    try:
        engine.start()
        engine.wait_caught_up()
        upgrade()
        shop.execute(*CHANGES)
        engine.wait_log("source_changed")
        engine.wait_caught_up()
        engine.assert_equal(*TABLES)
        assert engine.log.count("Init -> DataSync") == len(TABLES)
        shop.execute(*CHANGES)
        engine.wait_caught_up()
        engine.assert_equal(*TABLES)
        assert engine.stop() == 0
    finally:
        engine.kill()
