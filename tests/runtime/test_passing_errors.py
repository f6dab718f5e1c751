"""A running pipeline whose source fails for a cause that a person can end. It names the cause, waits, and goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from tests.rigs.database import Database, StartPostgres
from tests.rigs.pipeline import Only, Rig, table
from tests.runtime.publication_rig import Published
from tests.servers.pgbouncer import pgbouncer
from tests.servers.stalling_proxy import stalling_proxy

from levada.errors import Transient
from levada.postgres.failures import source_error
from levada.status import ErrorProgress
from levada.stores import PostgresStore

DAMAGES: tuple[tuple[Callable[[Path], object], str], ...] = (
    (lambda segment: segment.write_bytes(bytes(segment.stat().st_size)), "source_internal_error"),
    (lambda segment: segment.unlink(), "source_error"),
)
"""Damages of a segment of WAL, with the code of the error. The SQLSTATEs are XX000 and 58P01."""


def stream_error(rig: Rig, code: str) -> ErrorProgress:
    """Wait until the stream has failed with this code. Return its error, which is retried."""
    error = rig.wait(lambda p: p.capture.error is not None and p.capture.error.code == code).capture.error
    assert error is not None
    assert error.next_retry is not None
    return error


def end_streams(db: Database) -> None:
    """End all walsenders, so that the next ones read the catalog and the WAL again."""
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_type = 'walsender'")


def test_no_sqlstate_ends_a_running_engine() -> None:
    """Whatever a statement of the stream or the store fails with, it is tried again, and says what to do."""
    for state in sorted(psycopg.errors._sqlcodes):
        error = source_error("streaming", state, "sensitive")
        assert error.passes, state
        assert error.hint or isinstance(error, Transient), state
        assert ("sensitive" in error.message) == (not state.startswith("22")), state


@pytest.mark.nightly
def test_an_address_that_leads_to_a_pooler_for_a_while(db: Database, tmp_path: Path) -> None:
    """The stream, the store and a new copy wait until the address leads to the server again."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
    with pgbouncer(db) as pooler, stalling_proxy(db.server.port) as proxy:
        rig = Rig(db, tmp_path)
        source = replace(db.connection, port=proxy.port)
        rig.config = replace(rig.config, source=source, discovery_s=0.2)
        rig.store = lambda: PostgresStore(source, "shop")
        rig.start()
        rig.wait_caught_up()
        proxy.lead_to(pooler)
        stream_error(rig, "pooler_unsupported")
        db.execute("INSERT INTO orders VALUES (1)", "CREATE TABLE items (id int PRIMARY KEY)")
        rig.wait(lambda p: p.store.error is not None)
        proxy.lead_to(db.server.port)
        rig.wait(lambda p: p.ready and rig.destination.copies_of("items") == 1)
        rig.wait_caught_up()
        rig.stop()
        assert rig.destination.applied_rows == {"orders": 1}


def test_rights_that_are_revoked_for_a_while(db: Database, tmp_path: Path) -> None:
    """The catalog and the store in the source are closed to the role, and all goes on once they are open again."""
    rights = ("SELECT ON pg_catalog.pg_publication", "USAGE ON SCHEMA levada")
    role = f"role_of_{db.name}"
    with db.connect() as admin:
        admin.execute(f"CREATE ROLE {role} LOGIN REPLICATION")
        admin.execute(f"GRANT CREATE ON DATABASE {db.name} TO {role}")
        admin.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        admin.execute(f"ALTER TABLE orders OWNER TO {role}")
        rig = Rig(db, tmp_path)
        source = replace(db.connection, user=role)
        rig.config = replace(rig.config, source=source, selects=Only("orders"))
        rig.store = lambda: PostgresStore(source, "shop")
        rig.start()
        rig.wait_caught_up()
        for right in rights:
            admin.execute(f"REVOKE {right} FROM PUBLIC, {role}")
        end_streams(db)
        admin.execute("INSERT INTO orders VALUES (1)")
        stream_error(rig, "insufficient_privilege")
        for right in rights:
            admin.execute(f"GRANT {right} TO PUBLIC, {role}")
        rig.wait_caught_up()
        rig.stop()
        assert rig.destination.applied_rows == {"orders": 1}
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_wal_that_cannot_be_read_for_a_while(start_postgres: StartPostgres, tmp_path: Path) -> None:
    """A segment that is damaged or missing is named until it is back, and its change then arrives."""
    with start_postgres() as server, stalling_proxy(server.port) as proxy:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE orders (id int PRIMARY KEY)")
        rig = Rig(db, tmp_path)
        source = replace(db.connection, port=proxy.port)
        rig.config = replace(rig.config, source=source, selects=Only("orders"))
        rig.start()
        rig.wait_caught_up()
        for number, (damage, code) in enumerate(DAMAGES):
            proxy.lead_to(1)
            stream_error(rig, "source_unreachable")
            with db.connect() as admin:
                admin.execute("INSERT INTO orders VALUES (%s)", [number])
                name = admin.execute("SELECT pg_walfile_name(pg_switch_wal())").fetchone()
                admin.execute("CHECKPOINT")
            assert name is not None
            segment = server.data / "pg_wal" / name[0]
            kept = segment.rename(server.data.parent / name[0])
            segment.write_bytes(kept.read_bytes())
            damage(segment)
            proxy.lead_to(server.port)
            stream_error(rig, code)
            kept.rename(segment)
            rig.wait_caught_up()
        rig.stop()
        assert rig.destination.applied_rows == {"orders": len(DAMAGES)}


@pytest.fixture
def filtered(db: Database, tmp_path: Path) -> Iterator[Published]:
    """A pipeline of two tables, one of which a publication filters by a division. Not started."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, pieces int)", "CREATE TABLE items (id int PRIMARY KEY)")
    made = Published(db, tmp_path)
    made.external()
    made.sql("CREATE PUBLICATION {p} FOR TABLE orders WHERE (100 / pieces > 1), items")
    yield made
    made.stop()


@pytest.mark.since(15)
def test_a_row_filter_that_fails_in_the_stream(filtered: Published, db: Database) -> None:
    """The stream waits and names the filter. Its hint, followed as printed, copies all tables once and goes on."""
    rig = filtered
    rig.config = replace(rig.config, slot=replace(rig.config.slot, resync_when_lost=True))
    rig.start()
    rig.wait_caught_up()
    db.execute("INSERT INTO orders VALUES (1, 0)", "INSERT INTO items VALUES (1)")
    error = stream_error(rig, "row_filter_failed")
    assert "public.orders WHERE ((100 / pieces) > 1)" in error.reason
    assert "SQLSTATE 22012" in error.reason
    rig.sql("ALTER PUBLICATION {p} SET TABLE orders WHERE (pieces < 50), items")
    rig.wait(lambda p: p.capture.error is not None and "(pieces < 50)" in p.capture.error.reason)
    drop = error.solution.partition("then: ")[2].partition(", and ")[0]
    with db.connect() as admin:
        admin.execute(drop.encode())
    rig.wait(lambda p: p.ready and rig.destination.copies_of("orders") > 1 and rig.destination.copies_of("items") > 1)
    assert [rows for name, _, _, rows in rig.destination.copies if name == "orders"][-1] == 1


@pytest.mark.since(15)
def test_a_row_filter_that_fails_in_a_copy(filtered: Published, db: Database) -> None:
    """Its table alone is parked, with the filter."""
    db.execute("INSERT INTO orders VALUES (1, 0)", "INSERT INTO items VALUES (1)")
    filtered.start()
    error = filtered.parked("orders")
    assert error.code == "row_filter_failed"
    assert "((100 / pieces) > 1)" in error.reason
    filtered.wait(lambda p: table(p, "items").phase == "Ready")
