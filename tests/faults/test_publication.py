"""A table whose changes the publication did not stream for a while is never `Ready` again without a new copy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import LiteralString

import psycopg
import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.pipeline import table
from tests.runtime.publication_rig import Published

from levada.errors import NeedsOperator, SlotLost
from levada.local.postgres import EmbeddedPostgres, temporary_postgres
from levada.postgres.slots import drop_slot
from levada.stores import TableAction


def make(db: Database, folder: Path) -> Published:
    """Make the tables and a pipeline that looks at the publication often."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
    )
    made = Published(db, folder)
    made.config = replace(made.config, discovery_s=0.5)
    return made


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Published]:
    """A pipeline of two small tables, not started, that looks at the publication often."""
    made = make(db, tmp_path)
    yield made
    made.stop()


def test_a_table_added_again_by_itself_is_parked(rig: Published, db: Database) -> None:
    """A table that was out of the publication between two looks is parked, and the other table goes on."""
    rig.config = replace(rig.config, discovery_s=3600.0)
    rig.start()
    rig.wait_caught_up()
    rig.sql("ALTER PUBLICATION {p} DROP TABLE orders")
    db.execute("INSERT INTO orders VALUES (11)")
    rig.sql("ALTER PUBLICATION {p} ADD TABLE orders")
    rig.code("orders", "publication_membership_changed")
    db.execute("INSERT INTO items VALUES (1)")
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)


def test_a_table_that_loses_its_identity(rig: Published, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """With an External publication the source refuses its UPDATEs and DELETEs. The status says so until it has one."""
    rig.external()
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    rig.start()
    rig.wait_caught_up()
    db.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    with pytest.raises(psycopg.Error, match="does not have a replica identity"):
        db.execute("UPDATE orders SET note = 'changed'")
    seen = rig.wait(lambda p: "refuses its UPDATEs" in table(p, "orders").note)
    assert table(seen, "items").note == ""
    assert "identity_missing" in caplog.text
    db.execute("INSERT INTO orders VALUES (11)", "ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    db.execute("UPDATE orders SET note = 'changed' WHERE id = 11")
    rig.wait(lambda p: table(p, "orders").note == "" and rig.destination.applied_rows.get("orders") == 2)
    assert rig.wait_caught_up().ready


def test_another_publication_is_configured(rig: Published, db: Database) -> None:
    """After a change of its name the publication is another one, and what it streamed before is not known."""
    rig.sql("CREATE PUBLICATION another_one FOR TABLE orders, items")
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    rig.external("another_one")
    rig.start()
    rig.code("orders", "publication_changed")


def test_a_managed_publication_is_dropped_while_running(rig: Published, db: Database) -> None:
    """It is made again, and every table is copied again by policy, with the rows that were not streamed."""
    rig.copy_again()
    rig.start()
    rig.wait_caught_up()
    rig.sql("DROP PUBLICATION {p}")
    db.execute("INSERT INTO orders VALUES (11)")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") > 1 and rig.destination.copies_of("items") > 1)
    assert [c[3] for c in rig.destination.copies if c[0] == "orders"][-1] == 11
    db.execute("INSERT INTO orders VALUES (12)")
    rig.wait_caught_up()


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("orders (id), items", "SET TABLE orders (id, note), items", "publication_membership_changed"),
        ("orders (id, note), items", "SET TABLE orders (id), items", "publication_membership_changed"),
        ("orders WHERE (id < 5), items", "SET TABLE orders, items", "row_filter_changed"),
        ("orders, items", "SET (publish = 'insert, update, delete')", "publication_changed"),
        ("orders, items", "DROP TABLE orders", "table_not_published"),
    ],
)
def test_an_external_publication_is_changed_while_running(
    rig: Published, before: LiteralString, after: LiteralString, code: str
) -> None:
    """A limit that changes, or a table that leaves, parks the table without a restart."""
    rig.external()
    rig.sql(f"CREATE PUBLICATION {{p}} FOR TABLE {before}")
    rig.start()
    rig.wait_caught_up()
    rig.sql(f"ALTER PUBLICATION {{p}} {after}")
    rig.code("orders", code)


def test_a_table_leaves_an_external_publication_and_returns(rig: Published, db: Database) -> None:
    """It is parked while it is out, over a restart as well. After its return the policy copies it again."""
    rig.external()
    rig.copy_again()
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    rig.start()
    rig.wait_caught_up()
    rig.sql("ALTER PUBLICATION {p} DROP TABLE orders")
    db.execute("INSERT INTO orders VALUES (11)")
    assert rig.parked("orders").code == "table_not_published"
    rig.stop()
    rig.start()
    assert rig.parked("orders").code == "table_not_published"
    rig.sql("ALTER PUBLICATION {p} ADD TABLE orders")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)
    assert [c[3] for c in rig.destination.copies if c[0] == "orders"] == [10, 11]


def test_an_external_publication_is_dropped_while_running(rig: Published, db: Database) -> None:
    """Every table is parked: none is `Ready` while nothing of it is streamed."""
    rig.external()
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    rig.start()
    rig.wait_caught_up()
    rig.sql("DROP PUBLICATION {p}")
    rig.code("orders", "publication_missing")
    rig.code("items", "publication_missing")


def test_a_new_table_of_an_external_publication_is_taken_up(rig: Published, db: Database) -> None:
    """A selected table that is added to the publication is copied and streamed without a restart."""
    rig.external()
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders")
    rig.start()
    rig.wait_caught_up()
    db.execute("INSERT INTO items VALUES (1)")
    rig.sql("ALTER PUBLICATION {p} ADD TABLE items")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("items") == 1)
    db.execute("INSERT INTO items VALUES (2)")
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)


def test_a_table_leaves_a_published_schema(rig: Published, db: Database) -> None:
    """A table that moves to a schema that is not published is parked under its new name."""
    rig.external()
    rig.config = replace(rig.config, selects=lambda t: t.name in ("orders", "items"))
    db.execute("CREATE SCHEMA elsewhere")
    rig.sql("CREATE PUBLICATION {p} FOR TABLES IN SCHEMA public")
    rig.start()
    rig.wait_caught_up()
    db.execute("ALTER TABLE orders SET SCHEMA elsewhere")
    error = rig.parked("orders")
    assert error.code == "table_not_published"
    assert '"elsewhere"."orders"' in error.solution


def test_tables_renamed_in_the_publication_go_on(rig: Published, db: Database) -> None:
    """A rename, or another schema, of a table that stays a member loses nothing and parks nothing."""
    rig.config = replace(rig.config, selects=lambda t: t.name in ("orders", "items", "renamed"))
    db.execute("CREATE SCHEMA elsewhere")
    rig.start()
    rig.wait_caught_up()
    db.execute("ALTER TABLE orders RENAME TO renamed", "ALTER TABLE renamed SET SCHEMA elsewhere")
    db.execute("INSERT INTO elsewhere.renamed VALUES (11)")
    rig.wait(lambda p: any(str(t.table) == "elsewhere.renamed" for t in p.tables))
    progress = rig.wait_caught_up()
    assert {t.phase for t in progress.tables} == {"Ready"}
    assert rig.destination.copies_of("orders") == 1


def test_a_table_made_again_is_another_table(rig: Published, db: Database) -> None:
    """A table that is dropped and made again between two looks is copied, and the old one is forgotten."""
    rig.start()
    first = rig.wait_caught_up()
    db.execute("DROP TABLE orders", "CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)
    after = rig.wait_caught_up()
    assert {t.id for t in after.tables} != {t.id for t in first.tables}
    assert len(after.tables) == 2


def test_nothing_remains_of_tables_that_are_dropped(rig: Published, db: Database) -> None:
    """When the last table is dropped at the source none is shown as `Ready`."""
    rig.start()
    rig.wait_caught_up()
    db.execute("DROP TABLE orders", "DROP TABLE items")
    rig.wait(lambda p: not p.tables)


def test_operations_that_are_not_published_are_not_copied_away(rig: Published, db: Database) -> None:
    """A table whose updates are not streamed is not copied again while that is so, and is once they are."""
    rig.external()
    rig.copy_again()
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    rig.start()
    rig.wait_caught_up()
    rig.sql("ALTER PUBLICATION {p} SET (publish = 'insert')")
    rig.wait(lambda p: all(t.error is not None and t.error.code == "publication_operations" for t in p.tables))
    db.execute("UPDATE orders SET note = 'missed'")
    rig.sql("ALTER PUBLICATION {p} SET (publish = 'insert, update, delete, truncate')")
    rig.wait(lambda p: p.ready)
    assert rig.destination.copies_of("orders") == 2


def test_the_missing_publication_is_told_at_start(rig: Published) -> None:
    """An External publication that does not exist refuses the start."""
    rig.external()
    with pytest.raises(NeedsOperator) as caught:
        rig.start()
    assert caught.value.code == "publication_missing"


@pytest.fixture(scope="module")
def older() -> Iterator[EmbeddedPostgres]:
    """A server that cannot decode WAL from before its publication was made."""
    with temporary_postgres(version=16) as server:
        yield server


@pytest.mark.parametrize("running", [False, True], ids=["stopped", "running"])
def test_a_publication_made_again_on_an_older_server(older: EmbeddedPostgres, tmp_path: Path, running: bool) -> None:
    """Its slot cannot be read: no start makes the tables ready, and by policy they are copied again, with a new slot.

    A running engine may have parked every table before the session fails. No table depends on the slot then, so that
    the next start makes a new one.
    """
    db = Database(older, "postgres")
    db.execute("DROP TABLE IF EXISTS orders, items")
    rig = make(db, tmp_path)
    try:
        rig.start()
        rig.wait_caught_up()
        if not running:
            rig.stop()
        rig.sql("DROP PUBLICATION {p}")
        db.execute("INSERT INTO orders VALUES (11)")
        rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
        if running:
            with pytest.raises(SlotLost):
                rig.wait(lambda p: False)
            rig.stop()
        for _ in range(2):
            if refused := _refusal(rig):
                assert "levada resync MANIFEST --all" in refused.hint
                rig.running = None
            else:
                assert running
                rig.code("orders", "publication_changed")
                rig.code("items", "publication_changed")
                rig.stop()
        rig.config = replace(rig.config, slot=replace(rig.config.slot, resync_when_lost=True))
        rig.copy_again()
        rig.start()
        rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)
        db.execute("INSERT INTO orders VALUES (12)")
        rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    finally:
        rig.stop()
        with db.connect() as connection:
            drop_slot(connection, rig.config.slot.name, terminate=True)
        rig.sql("DROP PUBLICATION {p}")


def _refusal(rig: Published) -> SlotLost | None:
    try:
        rig.start()
    except SlotLost as refused:
        return refused
    return None


def test_every_table_is_asked_to_be_copied_again_on_an_older_server(older: EmbeddedPostgres, tmp_path: Path) -> None:
    """`levada resync --all` is the way out under Hold: the next start makes a slot that can be read."""
    db = Database(older, "postgres")
    db.execute("DROP TABLE IF EXISTS orders, items")
    rig = make(db, tmp_path)
    try:
        rig.start()
        ids = [t.id for t in rig.wait_caught_up().tables]
        rig.stop()
        rig.sql("DROP PUBLICATION {p}")
        db.execute("INSERT INTO orders VALUES (11)")
        store = rig.store()
        for table_id in ids:
            store.request_table_action(table_id, TableAction.RESYNC)
        rig.start()
        rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)
        db.execute("INSERT INTO orders VALUES (12)")
        rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    finally:
        rig.stop()
        with db.connect() as connection:
            drop_slot(connection, rig.config.slot.name, terminate=True)
        rig.sql("DROP PUBLICATION {p}")


def test_an_engine_with_iceberg_copies_again_by_policy(engine: Engine, db: Database) -> None:
    """Rows that were written while their table, or the publication, was away are in the lake, and equal."""
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "INSERT INTO a SELECT i, 'v' FROM generate_series(1, 1000) i",
        "INSERT INTO b SELECT i, 'v' FROM generate_series(1, 1000) i",
    )
    publication = f"levada_{db.name}"
    engine.spec["source"] = {
        "host": "127.0.0.1",
        "port": db.server.port,
        "database": db.name,
        "credentialsSecretRef": {"name": "pg"},
        "tls": {"mode": "Disable"},
        "slot": {"name": f"levada_{db.name}"},
        "publication": {"name": publication},
    }
    engine.spec["tables"] = {"include": [{"schema": "public", "name": "*"}]}
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()

    def alter(*statements: str) -> None:
        with db.connect() as connection:
            for statement in statements:
                connection.execute(statement.replace("{p}", publication).encode())

    alter("ALTER PUBLICATION {p} DROP TABLE a")
    db.execute("UPDATE a SET v = 'away' WHERE id <= 500")
    alter("ALTER PUBLICATION {p} ADD TABLE a")
    engine.wait_log("public.a was added to publication")
    engine.wait_caught_up()
    engine.assert_equal("a", "b")
    assert engine.stop() == 0
    alter("DROP PUBLICATION {p}")
    db.execute("DELETE FROM b WHERE id <= 100", "INSERT INTO a VALUES (2000, 'new')")
    engine.start()
    engine.wait_log("public.b was copied with another publication")
    engine.wait_caught_up()
    engine.assert_equal("a", "b")
