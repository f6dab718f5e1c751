"""Rows before an ALTER TABLE have the old columns, rows after it the new ones, wherever the ALTER is."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.rigs.capture import Capture
from tests.rigs.database import Database

from levada.schema import IdentityKind
from levada.schema.stored_types import ColumnChoice
from levada.segments import Manifest
from levada.values import SnapshotId, TableId

BASE = "CREATE TABLE a (id int PRIMARY KEY, x int, y text)"


@pytest.fixture(params=[True, False], ids=["messages", "catalog"])
def capture(db: Database, tmp_path: Path, request: pytest.FixtureRequest) -> Capture:
    """With the source's own word on each ALTER TABLE, and without."""
    return Capture(db, tmp_path / "staging", ddl_messages=request.param)


def versions(capture: Capture, table: TableId) -> list[list[str]]:
    """The columns of each version that was announced, in order."""
    return [r.schema.arrow.names for m in capture.log.list() for r in m.relations if r.schema.id == table]


def test_changes_between_transactions(capture: Capture, db: Database) -> None:
    """Add, drop, rename and retype: each is one version, and the rows follow their columns."""
    db.execute(BASE)
    capture.prepare()
    with capture.running():
        for statement in (
            "INSERT INTO a VALUES (1, 1, 'one')",
            "ALTER TABLE a ADD z int DEFAULT 7",
            "INSERT INTO a VALUES (2, 2, 'two', 2)",
            "ALTER TABLE a RENAME x TO w",
            "INSERT INTO a VALUES (3, 3, 'three', 3)",
            "ALTER TABLE a DROP y",
            "INSERT INTO a VALUES (4, 4, 4)",
            "ALTER TABLE a ALTER w TYPE bigint",
            "INSERT INTO a VALUES (5, 5, 5)",
        ):
            db.execute(statement)
            capture.catch_up()
    assert capture.error is None
    assert capture.failures == []
    assert capture.replayed("a") == capture.source("a")
    assert versions(capture, capture.table("a"))[-4:] == [
        ["id", "x", "y", "z"],
        ["id", "w", "y", "z"],
        ["id", "w", "z"],
        ["id", "w", "z"],
    ]
    numbers = [s.snapshot_id for s in capture.store.get_table_schemas()]
    assert numbers == sorted(set(numbers))


def test_changes_within_a_transaction(capture: Capture, db: Database) -> None:
    """Several ALTERs between the rows of one transaction make as many versions, all of that transaction's LSN."""
    db.execute(BASE)
    capture.prepare()
    with capture.running(), db.connect() as c:
        c.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
        with c.transaction():
            c.execute("INSERT INTO a VALUES (2, 2, 'two')")
            c.execute("ALTER TABLE a ADD z int")
            c.execute("INSERT INTO a VALUES (3, 3, 'three', 3)")
            c.execute("ALTER TABLE a ADD v int DEFAULT 9")
            c.execute("INSERT INTO a VALUES (4, 4, 'four', 4, 4)")
        capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")
    relations = [r for m in capture.log.list() for r in m.relations][-2:]
    assert [r.schema.arrow.names[3:] for r in relations] == [["z"], ["z", "v"]]
    assert [(r.schema.snapshot_id - r.commit_lsn, r.ordinal) for r in relations] == [(0, 1), (1, 2)]


def test_a_replay_makes_the_same_versions(capture: Capture, db: Database, tmp_path: Path) -> None:
    """A replay finds the versions that a lost session wrote to the store, and does not number them again."""
    db.execute(BASE)
    capture.prepare()

    def fail(manifest: Manifest) -> None:
        raise RuntimeError("here")

    with capture.running(), db.connect() as c:
        c.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
    capture.new_worker(segment_staged=fail)
    with capture.running(), db.connect() as c:
        with c.transaction():
            c.execute("INSERT INTO a VALUES (2, 2, 'two')")
            c.execute("ALTER TABLE a ADD z int")
            c.execute("INSERT INTO a VALUES (3, 3, 'three', 3)")
            c.execute("ALTER TABLE a ADD v int")
            c.execute("INSERT INTO a VALUES (4, 4, 'four', 4, 4)")
        capture.until(lambda: capture.error is not None)
    [lost] = [m for m in capture.log.list() if m not in capture.segments]
    capture.log.remove(lost)
    known = capture.store.get_table_schemas()
    capture.new_worker()
    with capture.running():
        # The last segment was never acknowledged: its removal is as if it had never been written.
        capture.catch_up()
    assert capture.replayed("a") == capture.source("a")
    assert capture.store.get_table_schemas() == known


def test_identity_changes_are_versions(capture: Capture, db: Database) -> None:
    """A new replica identity is a new version. From there on, deletes have the whole old row."""
    db.execute(BASE)
    capture.prepare()
    with capture.running():
        for statement in (
            "INSERT INTO a VALUES (1, 1, 'one'), (2, 2, 'two'), (3, 3, 'three')",
            "DELETE FROM a WHERE id = 1",
            "ALTER TABLE a REPLICA IDENTITY FULL",
            "DELETE FROM a WHERE id = 2",
            "CREATE UNIQUE INDEX by_x ON a (x)",
            "ALTER TABLE a ALTER x SET NOT NULL",
            "ALTER TABLE a REPLICA IDENTITY USING INDEX by_x",
            "DELETE FROM a WHERE id = 3",
        ):
            db.execute(statement)
            capture.catch_up()
    assert capture.error is None
    deletes = [(r["_levada_old_kind"], r["id"], r["x"], r["y"]) for r in capture.rows("a") if r["_levada_op"] == "D"]
    assert deletes == [("K", 1, None, None), ("O", 2, 2, "two"), ("K", None, 3, None)]
    last = {(v.identity, v.key, v.identity_attnums): None for v in capture.store.get_table_schemas()}
    assert list(last) == [
        (IdentityKind.PRIMARY_KEY, (1,), (1,)),
        (IdentityKind.FULL, (1,), (1, 2, 3)),
        (IdentityKind.INDEX, (2,), (2,)),
    ]


def test_the_catalog_may_be_ahead(capture: Capture, db: Database) -> None:
    """Read long after: versions are those of their time, though the catalog has moved on."""
    db.execute(BASE)
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
    db.execute(
        "INSERT INTO a VALUES (2, 2, 'two')",
        "ALTER TABLE a RENAME x TO w",
        "INSERT INTO a VALUES (3, 3, 'three')",
        "ALTER TABLE a ADD z int",
        "INSERT INTO a VALUES (4, 4, 'four', 4)",
        "ALTER TABLE a RENAME z TO q",
        "ALTER TABLE a DROP y",
        "INSERT INTO a VALUES (5, 5, 5)",
        "ALTER TABLE a RENAME TO moved",
        "INSERT INTO moved VALUES (6, 6, 6)",
    )
    with capture.running():
        capture.catch_up()
    assert capture.error is None
    assert capture.failures == []
    assert capture.replayed("moved") == capture.source("moved")
    assert {v.name.name for v in capture.store.get_table_schemas()} == {"a"}


def test_a_locked_table_stops_no_other(capture: Capture, db: Database) -> None:
    """Its owner may hold the lock for hours. The columns of the others are read meanwhile."""
    db.execute(BASE, "CREATE TABLE locked (id int PRIMARY KEY)")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
        with db.connect() as connection, connection.transaction():
            connection.execute("LOCK TABLE locked")
            db.execute("ALTER TABLE a ADD z int DEFAULT 7", "INSERT INTO a VALUES (2, 2, 'two', 2)")
            capture.catch_up()
    assert capture.failures == []
    assert capture.replayed("a") == capture.source("a")


def test_a_key_with_a_generated_column_fails_its_table(capture: Capture, db: Database) -> None:
    """The generated column is not streamed, and several rows have the same value of the other one."""
    db.execute("CREATE TABLE a (id int, x int, g int GENERATED ALWAYS AS (x % 2) STORED, PRIMARY KEY (id, g))")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1, 1), (1, 2)")
        capture.catch_up()
    assert [error.code for _, error in capture.failures] == ["identity_missing"]
    assert not capture.store.get_table_schemas()


def test_a_primary_key_that_is_dropped_under_full_is_no_key(capture: Capture, db: Database) -> None:
    """RELATION messages do not change with the key. Two rows can have the same values in its columns from then on."""
    db.execute(BASE, "ALTER TABLE a REPLICA IDENTITY FULL")
    capture.prepare()
    with capture.running():
        db.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
        db.execute("ALTER TABLE a DROP CONSTRAINT a_pkey", "INSERT INTO a VALUES (1, 2, 'two')")
        capture.catch_up()
    found = [s for _, s in sorted((s.snapshot_id, s) for s in capture.store.get_table_schemas())]
    assert [s.key for s in found] == [(1,), ()]


def test_a_dropped_table_keeps_its_changes(capture: Capture, db: Database) -> None:
    """Changes of a table that is gone by the time they are read are staged all the same."""
    db.execute(BASE, "CREATE TABLE b (id int PRIMARY KEY)")
    capture.prepare()
    [(number,)] = db.query("SELECT 'a'::regclass::oid")
    db.execute("INSERT INTO a VALUES (1, 1, 'one')", "DROP TABLE a", "INSERT INTO b VALUES (1)")
    with capture.running():
        capture.catch_up()
    assert capture.error is None
    assert [f.rows for m in capture.log.list() for f in m.files if f.table == number] == [1]


def test_what_cannot_be_told_parks_the_table_alone(db: Database, tmp_path: Path) -> None:
    """Without messages, a column that is dropped and added again under its name fails its table, and no other table.

    A new session resumes the table after its state was reset.
    """
    capture = Capture(db, tmp_path / "staging")
    db.execute(BASE, "CREATE TABLE b (id int PRIMARY KEY)")
    capture.prepare()
    with capture.running() as worker:
        db.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
        db.execute("ALTER TABLE a DROP y", "ALTER TABLE a ADD y text")
        db.execute("INSERT INTO a VALUES (2, 2, '2')", "INSERT INTO b VALUES (1)", "INSERT INTO a VALUES (3, 3, '3')")
        capture.catch_up()
        [(table, error)] = capture.failures
        assert (table, error.code) == (capture.table("a"), "schema_change_ambiguous")
        assert "resync" in error.hint
        assert capture.column("b", "id") == [1]
        assert capture.column("a", "id") == [1]
        capture.store.clear_table_copy_state(table)
        sessions = worker.position.segments
        worker.reopen()
        db.execute("INSERT INTO b VALUES (2)")
        capture.wait(lambda p: p.segments > sessions)
        capture.until(lambda: not worker._reopen.is_set())
        db.execute("INSERT INTO a VALUES (4, 4, 'four')")
        capture.catch_up()
    assert len(capture.failures) == 1
    latest = capture.log.list()[-1]
    (version,) = (v.schema() for v in latest.versions)
    assert version.arrow.names == ["id", "x", "y"]
    assert [c.attnum for c in version.columns] == [1, 2, 4]
    assert version.snapshot_id >= SnapshotId(latest.start_lsn)


def test_excluded_columns_are_never_staged(db: Database, tmp_path: Path) -> None:
    """A column that is left out is in no version and no file, and a change of it alone is no version."""
    capture = Capture(db, tmp_path / "staging")
    db.execute(BASE)
    capture.prepare()
    capture.excluded_columns = lambda table: frozenset({"x"})
    with capture.running():
        db.execute("INSERT INTO a VALUES (1, 1, 'one')", "ALTER TABLE a ALTER x TYPE bigint")
        db.execute("INSERT INTO a VALUES (2, 1, 'two')")
        capture.catch_up()
    assert versions(capture, capture.table("a")) == [["id", "y"]]
    assert [(r["id"], r["y"]) for r in capture.rows("a")] == [(1, "one"), (2, "two")]


def test_versions_keep_their_excluded_columns_until_others_are_set(db: Database, tmp_path: Path) -> None:
    """A change of the configuration alone changes no version. Columns that are set apply from the next session on."""
    capture = Capture(db, tmp_path / "staging")
    db.execute(BASE)
    capture.prepare()
    configured = frozenset({"x"})
    capture.excluded_columns = lambda table: configured
    with capture.running() as worker:
        db.execute("INSERT INTO a VALUES (1, 1, 'one')")
        capture.catch_up()
        configured = frozenset({"y"})
        db.execute("ALTER TABLE a ADD z int", "INSERT INTO a VALUES (2, 2, 'two', 2)")
        capture.catch_up()
        assert versions(capture, capture.table("a")) == [["id", "y"], ["id", "y", "z"]]
        session = worker.position.sessions + 1
        worker.choose_columns(capture.table("a"), ColumnChoice(frozenset({"z"})))
        worker.reopen()
        capture.wait(lambda position: position.sessions >= session)
        db.execute("INSERT INTO a VALUES (3, 3, 'three', 3)")
        capture.catch_up()
    assert versions(capture, capture.table("a"))[-1] == ["id", "x", "y"]
    newest = capture.log.list()[-1].versions[0].schema()
    assert newest.excluded_columns == {"z"}
