"""Tables whose new names the manifest does not select."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig
from tests.rigs.recording import Recording

from levada.destinations import TargetName
from levada.status import Progress
from levada.stores.interface import TableAction
from levada.values import QualifiedTable, TableId


class _Placed(Recording):
    """A destination with one table for each name."""

    def target_name(self, table: QualifiedTable, name: QualifiedTable) -> TargetName | None:
        return TargetName(str(name), str(name))


def _app(table: QualifiedTable) -> bool:
    return table.schema == "app"


@pytest.fixture
def app(rig: Rig, db: Database, tmp_path: Path) -> Rig:
    """A pipeline of all tables of a schema, not started."""
    db.execute("CREATE SCHEMA app", "CREATE SCHEMA other", "CREATE TABLE app.t (id int PRIMARY KEY)")
    db.execute("CREATE TABLE app.quiet (id int PRIMARY KEY)")
    rig.config = replace(rig.config, selects=_app, discovery_s=0.2)
    return rig


@pytest.mark.sampled
@pytest.mark.parametrize("restarts", [False, True], ids=["running", "stopped"])
@pytest.mark.parametrize(
    ("away", "back", "now"),
    [
        ("ALTER SCHEMA app RENAME TO app_v2", "ALTER SCHEMA app_v2 RENAME TO app", "app_v2.t"),
        ("ALTER TABLE app.t SET SCHEMA other", "ALTER TABLE other.t SET SCHEMA app", "other.t"),
    ],
    ids=["schema", "table"],
)
def test_a_table_that_leaves_the_selection_waits(
    app: Rig, db: Database, away: LiteralString, back: LiteralString, now: str, restarts: bool
) -> None:
    """It is parked under its former name, also by a restart, until its name is selected. It then has every change."""
    app.start()
    app.wait_caught_up()
    if restarts:
        app.stop()
    db.execute(away)
    if restarts:
        app.start()
    found = app.wait(lambda p: any(t.error for t in p.tables if str(t.table) == "app.t"))
    error = next(t.error for t in found.tables if str(t.table) == "app.t")
    assert error is not None
    assert error.code == "table_renamed"
    assert now in error.solution
    db.execute(f"INSERT INTO {now} VALUES (1)")  # type: ignore[arg-type]  # a name of this module
    db.execute(back)
    app.wait(lambda p: not any(t.error for t in p.tables))
    app.wait_caught_up()
    assert app.destination.applied_rows == {"t": 1}
    assert app.destination.copies_of("t") == 1


def test_a_table_that_leaves_the_selection_before_its_copy_is_not_copied(app: Rig, db: Database) -> None:
    """A name that the manifest does not select is not read. Once the table has its name again, it is copied.

    Until then it waits, also after restarts.
    """

    waiting = {"t", "quiet"}

    def move(copied: str) -> None:
        app.destination.before_copy = lambda table: None
        waiting.remove(copied)
        db.execute(f"ALTER TABLE app.{min(waiting)} SET SCHEMA other")  # type: ignore[arg-type]  # a name of this module

    app.config = replace(app.config, copy_tables=1, discovery_s=3600.0)
    app.destination.before_copy = move
    app.start()
    app.wait(lambda p: [t.error.code for t in p.tables if t.error] == ["table_renamed"])
    assert waiting.isdisjoint(copy[0] for copy in app.destination.copies)
    for _ in range(2):
        app.stop()
        app.start()
        app.wait(lambda p: [t.error.code for t in p.tables if t.error] == ["table_renamed"])
    app.stop()
    db.execute(f"ALTER TABLE other.{min(waiting)} SET SCHEMA app")  # type: ignore[arg-type]  # a name of this module
    app.start()
    app.wait(lambda p: p.ready and waiting <= {copy[0] for copy in app.destination.copies})


def test_a_table_that_was_not_copied_yet_is_not_forgotten(app: Rig, db: Database) -> None:
    """It has a new name that is not selected, since the engine was stopped. It waits, as one that was copied does."""
    app.config = replace(app.config, default_table=replace(app.config.default_table, suspended=True))
    app.start()
    app.wait(lambda p: len(p.tables) == 2)
    app.stop()
    db.execute("ALTER TABLE app.t SET SCHEMA other")
    app.start()
    app.wait(lambda p: {(str(t.table), t.error.code) for t in p.tables if t.error} == {("app.t", "table_renamed")})


def test_a_table_that_was_renamed_twice_waits_also_after_a_restart(app: Rig, db: Database) -> None:
    """The manifest means it by its second name, which no copy had."""
    app.start()
    app.wait_caught_up()
    app.change(selects=lambda table: str(table) in ("app.t", "app.u", "app.quiet"))
    db.execute("ALTER TABLE app.t RENAME TO u")
    app.wait(lambda p: any(str(t.table) == "app.u" for t in p.tables))
    app.change(selects=lambda table: str(table) in ("app.u", "app.quiet"))
    app.stop()
    db.execute("ALTER TABLE app.u RENAME TO v")
    app.start()
    app.wait(lambda p: {(str(t.table), t.error.code) for t in p.tables if t.error} == {("app.u", "table_renamed")})
    # Neither the source nor a version in the store has the name that its status shows.
    shown = QualifiedTable("app", "u")
    assert app.running is not None
    assert app.running.resync([shown]) == (shown,)


def test_a_renamed_table_goes_on_or_is_given_up_by_the_manifest(app: Rig, db: Database) -> None:
    """It goes on under its new name once that is selected. Without its former name it is forgotten."""
    app.start()
    app.wait_caught_up()
    db.execute("ALTER SCHEMA app RENAME TO app_v2")
    app.wait(lambda p: len([t for t in p.tables if t.error]) == 2)
    app.change(selects=lambda table: str(table) in ("app_v2.t", "app.quiet"))
    app.wait(lambda p: {(str(t.table), t.phase) for t in p.tables} >= {("app_v2.t", "Ready")})
    app.change(selects=lambda table: str(table) == "app_v2.t")
    app.wait(lambda p: [str(t.table) for t in p.tables] == ["app_v2.t"])
    assert app.destination.copies_of("t") == 1


@pytest.mark.nightly
def test_the_command_of_a_parked_table_reaches_it_under_its_new_name(app: Rig, db: Database) -> None:
    """Another table may have the former name, and must not be copied instead. A retry returns to before the error."""
    swap = (
        "BEGIN; ALTER TABLE app.t RENAME TO swapped; ALTER TABLE app.quiet RENAME TO t;"
        " ALTER TABLE app.swapped RENAME TO quiet; COMMIT"
    )

    def names_itself(progress: Progress, name: str) -> bool:
        errors = [t.error.solution for t in progress.tables if t.error and t.table.name == name]
        return [f"MANIFEST app.{name}" in error for error in errors] == [True]

    app.start()
    app.wait_caught_up()
    db.execute("INSERT INTO app.t VALUES (1)", "ALTER TABLE app.t ADD n int GENERATED ALWAYS AS IDENTITY")
    app.wait(lambda p: names_itself(p, "t"))
    db.execute(swap)
    app.wait(lambda p: names_itself(p, "quiet"))
    app.stop()
    db.execute(swap)
    app.start()
    app.wait(lambda p: names_itself(p, "t"))
    table = TableId(db.query("SELECT 'app.t'::regclass::oid")[0][0])
    app.store().request_table_action(table, TableAction.RESYNC)
    app.wait(lambda p: p.ready and app.destination.copies_of("t") == 2)


def test_a_table_that_another_one_replaces_is_forgotten(rig: Rig, db: Database) -> None:
    """The manifest means the table that has the name now."""
    rig.config = replace(rig.config, selects=Only("orders"), discovery_s=0.2)
    rig.start()
    rig.wait_caught_up()
    db.execute(
        "BEGIN; ALTER TABLE orders RENAME TO orders_old; CREATE TABLE orders (id int PRIMARY KEY);"
        " INSERT INTO orders VALUES (1); COMMIT"
    )
    rig.wait(lambda p: rig.destination.copies_of("orders") == 2 and p.ready)
    assert len(rig.wait_caught_up().tables) == 1


def test_a_renamed_table_has_its_name_without_a_row(rig: Rig, db: Database) -> None:
    """The comparison of the catalog finds the name, without the event trigger as well."""
    rig.config = replace(rig.config, selects=Only("orders", "bills"), ddl_trigger=False)
    rig.start()
    rig.wait_caught_up()
    db.execute("ALTER TABLE orders RENAME TO bills")
    rig.wait(lambda p: [str(t.table) for t in p.tables] == ["public.bills"])


@pytest.mark.nightly
def test_a_table_without_a_place_that_also_misses_changes_says_so(rig: Rig, db: Database) -> None:
    """The copy that its error asks for waits for the place. Once it has another one, it is copied."""
    rig.config = replace(rig.config, selects=Only("orders", "bills"), discovery_s=0.2)
    rig.destination = _Placed()
    rig.start()
    rig.wait_caught_up()
    db.execute("BEGIN; ALTER TABLE orders RENAME TO bills; CREATE TABLE orders (id int PRIMARY KEY); COMMIT")
    table = TableId(db.query("SELECT 'orders'::regclass::oid")[0][0])

    def parked(progress: Progress, code: str) -> bool:
        return any(t.id == table and t.error is not None and t.error.code == code for t in progress.tables)

    rig.wait(lambda p: parked(p, "destination_collision"))
    db.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    rig.wait(lambda p: parked(p, "table_not_published"))
    db.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    db.execute(f"ALTER PUBLICATION levada_{db.name} ADD TABLE ONLY orders")  # type: ignore[arg-type]  # a fixture's name
    rig.store().request_table_action(table, TableAction.RESYNC)
    rig.wait(lambda p: parked(p, "destination_collision"))
    rig.say("orders", destination_table="orders_new")
    rig.wait(lambda p: p.ready)
