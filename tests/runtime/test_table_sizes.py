"""The sizes of tables, which are read a part at a time, and the snapshot that shows a catalog unchanged."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database

from levada.postgres.catalog import read_snapshot, read_table_ids
from levada.runtime.source.table_sizes import TableSizes
from levada.values import QualifiedTable, TableId


@pytest.fixture
def tables(db: Database) -> dict[str, TableId]:
    """Five tables, of which the last one is partitioned and has one row in a partition."""
    db.execute(
        *[f"CREATE TABLE t{n} (id int)" for n in range(4)],  # type: ignore[arg-type]  # numbers
        "CREATE TABLE t4 (id int) PARTITION BY LIST (id)",
        "CREATE TABLE part PARTITION OF t4 DEFAULT",
        "INSERT INTO t4 VALUES (1)",
        "INSERT INTO t0 VALUES (1)",
    )
    with db.connection.connect() as c:
        names = [QualifiedTable("public", f"t{n}") for n in range(5)]
        return {name.name: table for name, table in read_table_ids(c, names).items()}


def test_sizes_take_turns(db: Database, tables: dict[str, TableId]) -> None:
    """All are read at first. Then each is read again within as many turns as there are parts, and new ones at once."""
    sizes = TableSizes(most=2)
    ids = list(tables.values())
    with db.connection.connect() as c:
        first = sizes.read(c, ids[:4])
        assert first == {tables["t0"]: 8192, tables["t1"]: 0, tables["t2"]: 0, tables["t3"]: 0}
        turn = sizes.read(c, ids)
        assert len(turn) == 3
        assert turn[tables["t4"]] == 8192
        assert turn.keys() | sizes.read(c, ids).keys() == set(ids)


def test_a_locked_table_keeps_only_its_own_part_unread(db: Database, tables: dict[str, TableId]) -> None:
    """The next turn reads others."""
    sizes, ids = TableSizes(most=2), list(tables.values())[:4]
    with db.connection.connect() as c, db.connect() as holder, holder.transaction():
        sizes.read(c, ids)
        holder.execute("LOCK TABLE t0, t1, t2, t3")
        assert sizes.read(c, ids) == {}
        free = sizes.read(c, [tables["t4"]])
    assert free == {tables["t4"]: 8192}


def test_the_snapshot_of_an_unchanged_catalog(db: Database) -> None:
    """It is the same until a transaction ends, also one that began before another, and reading changes nothing."""
    with db.connection.connect() as c, db.connect() as older, db.connect() as newer:
        older.execute("BEGIN; CREATE TABLE older (id int)")
        newer.execute("BEGIN; CREATE TABLE newer (id int)")
        seen = [read_snapshot(c)]
        c.execute("SELECT count(*) FROM pg_class")
        assert read_snapshot(c) == seen[0]
        for session in (newer, older):
            session.execute("COMMIT")
            seen.append(read_snapshot(c))
    assert None not in seen
    assert len(set(seen)) == 3
