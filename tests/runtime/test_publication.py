"""Tables and their publication: a table that may miss changes is not `Ready`, one that must not be published waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, table, wait_for
from tests.rigs.waiting import until
from tests.runtime.publication_rig import Published

from levada.errors import Transient
from levada.runtime.config import RetryLimits
from levada.runtime.tables.rules import needs_resync
from levada.schema import TableTarget
from levada.stores.interface import TableAction
from levada.stores.phases import Errored
from levada.values import TableId

LEAVE_AND_RETURN = "BEGIN; ALTER PUBLICATION {p} DROP TABLE orders; ALTER PUBLICATION {p} ADD TABLE orders; COMMIT"
"""One transaction, because the pipeline adds a table that it sees to be missing."""


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Published]:
    """A pipeline of two small tables, not started, that looks at the publication often."""
    db.execute(
        "CREATE TABLE orders (id int PRIMARY KEY, note text)",
        "CREATE TABLE items (id int PRIMARY KEY)",
        "INSERT INTO orders SELECT i, 'n' FROM generate_series(1, 10) i",
    )
    made = Published(db, tmp_path)
    made.config = replace(made.config, discovery_s=0.5)
    yield made
    made.stop()


@pytest.mark.nightly
@pytest.mark.since(18)  # older servers cannot decode what was written before: tests/faults/test_publication.py
def test_a_publication_made_again_while_stopped(rig: Published, db: Database) -> None:
    """Every table is parked at the next start, before anything is applied. The policy may copy each again."""
    rig.start()
    rig.wait_caught_up()
    rig.stop()
    rig.sql("DROP PUBLICATION {p}")
    db.execute("INSERT INTO orders VALUES (11)")
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    db.execute("INSERT INTO orders VALUES (12)")
    rig.start()
    rig.code("orders", "publication_changed")
    rig.code("items", "publication_changed")
    assert "orders" not in rig.destination.applied_rows
    rig.stop()
    rig.config = replace(rig.config, slot=replace(rig.config.slot, resync_when_lost=True))
    rig.copy_again()
    rig.start()
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)
    assert [c[3] for c in rig.destination.copies if c[0] == "orders"] == [10, 12]


def test_a_table_without_identity_is_left_out(rig: Published, db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """It stops no other table, now or at the next start, its updates work, and it is taken up once it has a key."""
    rig.config = replace(rig.config, selects=Only("orders", "items", "scratch"))
    rig.start()
    rig.wait_caught_up()
    db.execute("CREATE TABLE scratch (id int)", "INSERT INTO scratch VALUES (1)", "CREATE TABLE later (id int)")
    rig.stop()
    rig.start()
    rig.wait_caught_up()
    db.execute("UPDATE scratch SET id = 2", "INSERT INTO orders VALUES (11)")
    rig.wait(lambda p: rig.destination.applied_rows.get("orders") == 1)
    assert "public.scratch" in caplog.text
    assert "identity_missing" in caplog.text
    db.execute("ALTER TABLE scratch ADD PRIMARY KEY (id)")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("scratch") == 1)


@pytest.mark.parametrize("trigger", [True, False])
def test_a_table_that_loses_its_identity_is_parked_alone(rig: Published, db: Database, trigger: bool) -> None:
    """Its UPDATEs work again at once, or within a second without the trigger. It is copied once it has an identity."""
    rig.config = replace(rig.config, ddl_trigger=trigger)
    rig.start()
    rig.wait_caught_up()
    assert bool(db.query("SELECT FROM pg_event_trigger")) is trigger
    db.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    if not trigger:
        until(lambda: db.query("SELECT FROM pg_publication_tables WHERE tablename = 'orders'"), lambda found: not found)
    db.execute("UPDATE orders SET note = 'new'", "INSERT INTO items VALUES (1)")
    error = rig.parked("orders")
    assert "replica identity" in error.reason
    assert error.code == "table_not_published"
    assert error.solution.startswith('ALTER TABLE "public"."orders" REPLICA IDENTITY FULL; ')
    rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1 and table(p, "items").phase == "Ready")
    db.execute('ALTER TABLE "public"."orders" REPLICA IDENTITY FULL')
    rig.wait(lambda p: db.query("SELECT FROM pg_publication_tables WHERE tablename = 'orders'") != [])


@pytest.mark.since(15)
def test_a_lost_identity_is_seen_to_though_the_publication_was_locked(rig: Published, db: Database) -> None:
    """The trigger waits for no other session, and the engine takes the table out once that one has ended.

    Until then the table has an identity with which its UPDATEs do not fail. Afterwards it has its own one again.
    """
    rig.start()
    rig.wait_caught_up()
    db.execute("CREATE TABLE aside (id int)")
    with db.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(f"ALTER PUBLICATION {rig.publication} ADD TABLE aside".encode())
        db.execute("ALTER TABLE orders DROP CONSTRAINT orders_pkey")
        members = "SELECT FROM pg_publication_rel WHERE prrelid = 'orders'::regclass"
        assert db.query(members)
        db.execute("UPDATE orders SET note = 'meanwhile'")
        holder.execute("ROLLBACK")
    until(lambda: db.query(members), lambda found: not found)
    assert db.query("SELECT relreplident::text FROM pg_class WHERE relname = 'orders'") == [("d",)]
    db.execute("UPDATE orders SET note = 'new'")
    rig.code("orders", "table_not_published")


@pytest.mark.nightly
def test_a_refused_copy_is_no_damage_of_an_earlier_one(rig: Published, db: Database) -> None:
    """A table whose resync waits for an identity has this error after a restart too, whatever it missed before."""
    rig.start()
    rig.wait_caught_up()
    db.execute("INSERT INTO orders VALUES (11)", "ALTER TABLE orders DROP CONSTRAINT orders_pkey")
    rig.code("orders", "table_not_published")
    orders = TableId(db.query("SELECT 'orders'::regclass::oid")[0][0])
    rig.store().request_table_action(orders, TableAction.RESYNC)
    rig.wait(lambda p: "lacks" in getattr(table(p, "orders").error, "reason", ""))
    rig.stop()
    rig.start()
    rig.wait(lambda p: any(t.table.name == "items" and t.phase == "Ready" for t in p.tables))
    assert "lacks" in rig.parked("orders").reason
    db.execute("ALTER TABLE orders ADD PRIMARY KEY (id)")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)


def test_a_table_without_identity_is_left_out_of_inserts_too(rig: Published, db: Database) -> None:
    """It is not added while only INSERTs are published, so its updates work when the others are published again.

    A table that waits for its first copy is copied then without a request.
    """
    rig.config = replace(rig.config, selects=Only("orders", "items", "nokey", "later"))
    db.execute("CREATE TABLE nokey (id int)", "INSERT INTO nokey VALUES (1)")
    rig.start()
    rig.wait_caught_up()
    rig.sql("ALTER PUBLICATION {p} SET (publish = 'insert')")
    db.execute("CREATE TABLE later (id int PRIMARY KEY)")
    error = rig.parked("later")
    assert error.code == "publication_operations"
    published = db.query("SELECT tablename FROM pg_publication_tables WHERE pubname = %s ORDER BY 1", rig.publication)
    assert published == [("items",), ("later",), ("orders",)]
    statement, _, effect = error.solution.partition("; ")
    assert "copied" in effect
    db.execute(statement)  # type: ignore[arg-type]  # as a user would
    db.execute("UPDATE nokey SET id = 2", "DELETE FROM nokey")
    rig.wait(lambda p: table(p, "later").phase == "Ready")
    rig.code("orders", "publication_changed")


def test_tables_that_the_role_may_not_publish_or_read_hold_up_no_other(
    role: str, rig: Published, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out or stream on, now and after a restart. The status says so, and a copy parks its table alone."""
    db.execute(f"ALTER ROLE {role} REPLICATION", f"GRANT CREATE ON DATABASE {db.name} TO {role}")
    db.execute(*[f"ALTER TABLE {t} OWNER TO {role}" for t in ("orders", "items")])
    rig.config = replace(
        rig.config,
        source=replace(db.connection, user=role),
        selects=Only("orders", "items", "other_owner", "later"),
    )
    rig.start()
    rig.wait_caught_up()
    db.execute(
        "BEGIN; CREATE TABLE other_owner (id int PRIMARY KEY); CREATE TABLE later (id int PRIMARY KEY); "
        f"ALTER TABLE later OWNER TO {role}; COMMIT"
    )
    seen = rig.wait(lambda p: p.ready and rig.destination.copies_of("later") == 1)
    error = seen.publication.error
    assert error is not None
    assert error.code == "publication_incomplete"
    assert "public.other_owner" in error.reason
    assert f'ALTER PUBLICATION "{rig.publication}" ADD TABLE ONLY "public"."other_owner";' in error.solution
    assert caplog.text.count("lacks public.other_owner") == 1
    db.execute(f"REVOKE SELECT ON orders FROM {role}")
    db.execute("ALTER TABLE items ENABLE ROW LEVEL SECURITY", "ALTER TABLE items FORCE ROW LEVEL SECURITY")
    rig.stop()
    rig.start()
    assert rig.wait_caught_up().publication.error is not None
    db.execute(*[f"INSERT INTO {t} VALUES (100)" for t in ("orders", "items", "later")])
    rig.wait(lambda p: p.ready and all(rig.destination.applied_rows.get(t) for t in ("orders", "items", "later")))

    store, ids = rig.store(), {t.table.name: t.id for t in rig.wait_caught_up().tables}
    dropped = list(rig.destination.dropped)
    for name, code in (("orders", "select_privilege_missing"), ("items", "row_security")):
        store.request_table_action(ids[name], TableAction.RESYNC)
        error = rig.parked(name)
        assert error.code == code
        assert f"levada retry MANIFEST public.{name}" in error.solution
    assert rig.destination.dropped == dropped
    db.execute(f"GRANT SELECT ON orders TO {role}", "ALTER TABLE items DISABLE ROW LEVEL SECURITY")
    for name in ("orders", "items"):
        store.request_table_action(ids[name], TableAction.RETRY)
    rig.wait(lambda p: p.ready and all(rig.destination.copies_of(t) == 2 for t in ("orders", "items")))
    db.execute(f"ALTER TABLE other_owner OWNER TO {role}")
    rig.wait(lambda p: p.ready and p.publication.error is None and rig.destination.copies_of("other_owner") == 1)


def test_a_copy_after_the_loss_is_retried(rig: Published, db: Database) -> None:
    """A requested copy that fails once is made again by itself: the gap before it does not park the table again."""
    rig.config = replace(rig.config, retries=RetryLimits(delay_s=3.0))
    rig.start()
    rig.wait_caught_up()
    rig.sql(LEAVE_AND_RETURN)
    rig.code("orders", "publication_membership_changed")

    drop = rig.destination.drop_table_for_copy

    def fail(target: TableTarget, epoch: int | None = None) -> None:
        rig.destination.drop_table_for_copy = drop  # type: ignore[method-assign]  # as before
        raise Transient("destination_unavailable", "the destination does not answer")

    rig.destination.drop_table_for_copy = fail  # type: ignore[method-assign]  # it fails once
    [(orders,)] = db.query("SELECT 'orders'::regclass::oid")
    rig.store().request_table_action(TableId(orders), TableAction.RESYNC)
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)


def test_an_error_after_the_loss_leaves_the_table_parked(rig: Published, db: Database) -> None:
    """A batch that fails after its table was found to miss changes does not bring the table back by a retry."""
    rig.start()
    rig.wait_caught_up()
    running, failing = threading.Event(), threading.Event()

    def fail(name: str) -> None:
        running.set()
        wait_for(failing)
        raise Transient("destination_unavailable", "the destination does not answer")

    rig.destination.before_apply = fail
    db.execute("INSERT INTO orders VALUES (11)")
    wait_for(running)
    rig.sql(LEAVE_AND_RETURN)
    rig.code("orders", "publication_membership_changed")
    failing.set()
    rig.stop()
    store = rig.store()
    store.load_table_replication_states()
    assert [
        p.code for p in store.get_table_replication_states().values() if isinstance(p, Errored) and needs_resync(p)
    ] == ["publication_membership_changed"]


@pytest.mark.since(18)
def test_a_stream_that_begins_without_its_publication_waits_for_it(rig: Published, db: Database) -> None:
    """Before version 18 the slot is lost. From then on it can be read once the publication is there again."""
    rig.external()
    rig.copy_again()
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    rig.start()
    rig.wait_caught_up()
    rig.sql("DROP PUBLICATION {p}")
    db.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s", db.name)
    seen = rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == "publication_missing")
    assert seen.error is None
    db.execute("INSERT INTO orders VALUES (11)")
    rig.sql("CREATE PUBLICATION {p} FOR TABLE orders, items")
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") == 2)
    assert [c[3] for c in rig.destination.copies if c[0] == "orders"] == [10, 11]
