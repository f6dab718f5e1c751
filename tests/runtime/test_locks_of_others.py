"""Another session holds for long what a statement of Levada's needs: the engine goes on, and its end does not wait."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, LiteralString

import pytest
from tests.rigs.database import Database, StartPostgres, log_of
from tests.rigs.pipeline import Only, Rig

from levada.errors import Transient
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.ddl import install_ddl_trigger, remove_ddl_trigger
from levada.postgres.generated_columns import settle_generated
from levada.postgres.publication_owners import mark_publication
from levada.postgres.publications import drop_publication
from levada.runtime.config import PublicationConfig
from levada.runtime.source.preparation import check_source
from levada.values import GeneratedColumns, PipelineOwner

_WAITED: Final = re.compile(r"still waiting for .*\n(?:.*DETAIL: .*\n)?.*STATEMENT:\s+(?!CREATE_REPLICATION_SLOT)(.*)")
"""A wait that the server logs after 10 s, ten times the limit. The creation of a slot waits for transactions."""
_OBJECTS: Final[dict[str, LiteralString]] = {
    "publication": "ALTER PUBLICATION shop SET TABLE orders",
    "comment": "COMMENT ON PUBLICATION shop IS 'of a person'",
    "options": "ALTER PUBLICATION shop SET (publish = 'insert, update, delete, truncate')",
    "trigger": "ALTER EVENT TRIGGER levada_ddl ENABLE",
    "schema": "COMMENT ON SCHEMA levada_ddl IS 'of a person'",
    "table": "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE",
    "catalog": "LOCK TABLE pg_publication IN SHARE ROW EXCLUSIVE MODE",
}
HELD: Final = [
    pytest.param(statement, id=name, marks=[] if name == "publication" else pytest.mark.nightly)
    for name, statement in _OBJECTS.items()
]


@pytest.fixture(scope="module")
def server(start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """A server that logs each long wait for a lock."""
    with start_postgres(settings={"log_lock_waits": "on", "deadlock_timeout": "10s"}) as started:
        yield started


@pytest.fixture
def db(server: EmbeddedPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    """A database of a test on that server."""
    postgres, name = Database(server, "postgres"), f"t{abs(hash(request.node.name))}"
    postgres.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]  # digits
    made = Database(server, name)
    yield made
    made.close()
    postgres.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[arg-type]  # digits
    postgres.close()


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> Iterator[Rig]:
    """A pipeline of three tables, the last of which is made later."""
    made = Rig(db, tmp_path)
    selects = Only("orders", "items", "later")
    made.change(selects=selects, discovery_s=0.2, publication=PublicationConfig("shop"))
    yield made
    made.stop()


@pytest.mark.parametrize("statement", HELD)
def test_what_another_session_holds_stops_nothing(
    rig: Rig, db: Database, server: EmbeddedPostgres, statement: LiteralString
) -> None:
    """An engine applies changes meanwhile, ends, is checked and starts. Each of its statements has a limit."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE TABLE items (id int PRIMARY KEY)")
    rig.start()
    rig.wait_caught_up()
    before = len(log_of(server))
    with db.connect() as holder:
        holder.execute("BEGIN")
        holder.execute(statement)
        db.execute("CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO items VALUES (1)")
        rig.wait(lambda p: rig.destination.applied_rows.get("items") == 1)
        rig.stop()
        check_source(rig.config, begun=True)
        rig.start()
        db.execute("INSERT INTO items VALUES (2)")
        rig.wait(lambda p: rig.destination.applied_rows.get("items") == 2)
        rig.stop()
        holder.execute("ROLLBACK")
    rig.start()
    rig.wait(lambda p: rig.destination.copies_of("later") == 1)
    rig.wait_caught_up()
    rig.stop()
    assert _WAITED.findall(log_of(server)[before:]) == []


@pytest.mark.parametrize("statement", HELD[:-2])
def test_each_change_of_a_held_object_has_a_limit(
    db: Database, server: EmbeddedPostgres, statement: LiteralString
) -> None:
    """A change that waits for another session is refused as Transient, or is none."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY)", "CREATE PUBLICATION shop FOR TABLE orders")
    with db.connection.connect() as c, db.connect() as holder:
        assert install_ddl_trigger(c)
        before = len(log_of(server))
        holder.execute("BEGIN")
        holder.execute(statement)
        for change in (
            lambda: mark_publication(c, "shop", PipelineOwner("uid", "shop")),
            lambda: settle_generated(c, ["shop"], GeneratedColumns.REPLICATE, lambda: None),
            lambda: drop_publication(c, "shop"),
            lambda: remove_ddl_trigger(c, wait_s=0),
        ):
            with suppress(Transient):
                change()
        holder.execute("ROLLBACK")
    assert _WAITED.findall(log_of(server)[before:]) == []
