"""The locks and the rows of several small tables that are read together."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import LiteralString

import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada.copy.group_guard import GroupGuard, HeldTable, hold_tables
from levada.copy.guard import GUARDS, LOCKS, READERS, LockLimits
from levada.copy.read_rows import ReadRows, SnapshotReader, snapshot_reader
from levada.errors import LevadaError, Transient
from levada.postgres.catalog import published_tables, read_table_description
from levada.postgres.idle_connections import IdleReaders
from levada.postgres.slots import export_snapshot
from levada.values import TableId


@pytest.fixture
def tables(db: Database) -> dict[str, HeldTable]:
    """Two plain tables and a partitioned one, with two rows each."""
    db.execute(
        "CREATE TABLE a (id int PRIMARY KEY, note text)",
        "CREATE TABLE b (id int PRIMARY KEY, note text)",
        "CREATE TABLE p (id int PRIMARY KEY, note text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (2)",
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (2) TO (9)",
        "CREATE PUBLICATION pub FOR TABLE a, b, p WITH (publish_via_partition_root = true)",
        *(f"INSERT INTO {name} VALUES (1, 'x'), (2, 'y')" for name in ("a", "b", "p")),  # type: ignore[arg-type]  # names
    )
    made = {}
    with db.connection.connect() as connection:
        for published in published_tables(connection, "pub"):
            description = read_table_description(connection, published.id)
            made[published.name.name] = HeldTable(published, description, description.schema())
    return made


@contextmanager
def held(db: Database, tables: dict[str, HeldTable], limits: LockLimits = LOCKS) -> Iterator[GroupGuard]:
    """Hold the locks of the tables."""
    with IdleReaders(db.connection, GUARDS) as guards, hold_tables(guards, [*tables.values()], limits) as guard:
        assert guard.start() == {}
        yield guard


def ids(tables: dict[str, HeldTable]) -> list[TableId]:
    """Return the OIDs of the tables."""
    return [its.description.id for its in tables.values()]


CHANGES: tuple[tuple[LiteralString, ...], ...] = (
    ("TRUNCATE a", "a"),
    ("ALTER TABLE b ADD more int", "b"),
    ("VACUUM FULL a", "a"),
    ("ALTER TABLE p DETACH PARTITION p2", "p"),
    ("TRUNCATE p1", "p"),
)


@pytest.mark.parametrize(("statement", "changed"), CHANGES)
def test_a_table_that_changed_before_its_lock_is_the_only_one(
    db: Database, tables: dict[str, HeldTable], statement: LiteralString, changed: str
) -> None:
    """A statement between the snapshot and the locks is found in the catalog, for that table alone."""
    db.execute(statement)
    with (
        IdleReaders(db.connection, GUARDS) as guards,
        hold_tables(guards, [*tables.values()], LOCKS) as guard,
    ):
        found = guard.start()
        assert [*found] == [tables[changed].description.id]
        assert {error.code for error in found.values()} == {"table_changed"}


@pytest.mark.parametrize("statement", ["DROP TABLE b", "ALTER TABLE a RENAME TO c", "DROP TABLE p1"])
def test_a_table_that_is_gone_is_an_error(db: Database, tables: dict[str, HeldTable], statement: LiteralString) -> None:
    """PostgreSQL does not say which table it is, so none is locked."""
    db.execute(statement)
    with IdleReaders(db.connection, GUARDS) as guards, hold_tables(guards, [*tables.values()], LOCKS) as guard:
        with pytest.raises(LevadaError) as gone:
            guard.start()
        assert gone.value.code == "table_missing"


def test_unchanged_tables_are_released_without_an_error(db: Database, tables: dict[str, HeldTable]) -> None:
    """Rows that are written meanwhile are no change of a table, and neither is an attached partition of no table."""
    with held(db, tables) as guard:
        db.execute("INSERT INTO a VALUES (7)", "DELETE FROM p", "CREATE TABLE p3 (LIKE p)")
        assert guard.release(ids(tables)) == {}
        assert not guard.lost
        db.execute("TRUNCATE a")


def test_a_partition_that_is_attached_meanwhile_is_noticed(db: Database, tables: dict[str, HeldTable]) -> None:
    """ATTACH PARTITION waits for no reader."""
    with held(db, tables) as guard:
        db.execute("CREATE TABLE p3 (id int NOT NULL, note text)", "INSERT INTO p3 VALUES (11)")
        db.execute("ALTER TABLE p ATTACH PARTITION p3 FOR VALUES FROM (9) TO (20)")
        assert [*guard.release(ids(tables))] == [tables["p"].description.id]


@pytest.mark.parametrize(("statement", "of"), [("ALTER TABLE a ADD more int", "a"), ("TRUNCATE p2", "p")])
def test_all_locks_are_given_up_for_a_statement_that_waits(
    db: Database, tables: dict[str, HeldTable], statement: LiteralString, of: str
) -> None:
    """The statement goes on although a reader has its lock too, and the guard names its table."""
    waiting = threading.Thread(target=db.execute, args=(statement,))
    with held(db, tables, LockLimits(blocked_s=0.1)) as guard:
        reader = db.connection.connect(application=READERS)
        reader.execute("BEGIN; SELECT FROM public.a; SELECT FROM public.p2")
        waiting.start()
        until(lambda: guard.lost, bool)
        waiting.join()
        reader.close()
        assert guard.gave_way == tables[of].description.id
        errors = guard.release(ids(tables))
        assert errors.keys() == set(ids(tables))
        assert {error.code for error in errors.values()} == {"copy_yielded"}


def test_rows_are_read_in_one_session(db: Database, tables: dict[str, HeldTable]) -> None:
    """Each has those of the snapshot. One with too many bytes has no rows, and the next is read in another session."""
    db.execute("INSERT INTO b SELECT i, repeat('z', 1000000) FROM generate_series(10, 15) i")
    # A slot must exist before a snapshot is exported.
    with export_snapshot(db.connection, f"copy_{db.name}") as snapshot:
        db.execute("DELETE FROM a", "DELETE FROM p")
        reading = SnapshotReader(db.connection, snapshot, 1.0, 4_000_000)
        with snapshot_reader(reading) as reader:
            found = {name: reader.read(its.published, its.schema) for name, its in tables.items()}
    assert found["b"] is None
    for name in ("a", "p"):
        rows = found[name]
        assert isinstance(rows, ReadRows)
        assert rows.batches().read_all().sort_by("id").to_pylist() == [{"id": 1, "note": "x"}, {"id": 2, "note": "y"}]
        assert rows.progress().rows == 2


def test_a_locked_table_is_not_waited_for(db: Database, tables: dict[str, HeldTable]) -> None:
    """The reader's session waits as long as it may, and reads the next table in another one."""
    holder = db.connect()
    with export_snapshot(db.connection, f"copy_{db.name}") as snapshot, holder:
        holder.execute("BEGIN; LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        with snapshot_reader(SnapshotReader(db.connection, snapshot, 0.1, 4_000_000)) as reader:
            with pytest.raises(Transient) as locked:
                reader.read(tables["a"].published, tables["a"].schema)
            assert locked.value.code == "lock_timeout"
            rows = reader.read(tables["b"].published, tables["b"].schema)
            assert rows is not None
            assert rows.batches().read_all().num_rows == 2
