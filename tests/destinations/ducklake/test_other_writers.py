"""DuckDB and its users write to the same catalog of DuckLake."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import LiteralString

import pytest
from psycopg import sql
from tests.destinations.ducklake.steps import ORDERS, apply, changed, check_filters, code_of, copy
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.ducklake import DuckLake

from levada.errors import DestinationChanged, Transient
from levada.schema import TableTarget
from levada.schema.partitions import Region
from levada.values import Lsn, QualifiedTable, TableId, TableMode, Watermark


@pytest.mark.parametrize(
    ("statement", "code"),
    [
        ("INSERT INTO shop_public.orders VALUES (9, 'x', 'y')", "foreign_write"),
        ("DELETE FROM shop_public.orders WHERE id = 1", "foreign_write"),
        ("UPDATE shop_public.orders SET item = 'x' WHERE id = 1", "foreign_write"),
        ("ALTER TABLE shop_public.orders DROP COLUMN note", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders RENAME COLUMN note TO n", "foreign_schema_change"),
        ("ALTER TABLE shop_public.orders SET PARTITIONED BY (item)", "foreign_table_change"),
        ("ALTER TABLE shop_public.orders ALTER COLUMN item SET NOT NULL", "foreign_table_change"),
        ("DROP TABLE shop_public.orders", "destination_table_missing"),
        ("ALTER TABLE shop_public.orders RENAME TO moved", "foreign_schema_change"),
    ],
)
@pytest.mark.parametrize("inlined", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_another_writer_parks_the_table(ducklake: DuckLake, statement: str, code: str, inlined: bool) -> None:
    """A change by DuckDB, also one that it stores in the catalog, is never overwritten. A copy replaces it."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    with ducklake.duckdb(DATA_INLINING_ROW_LIMIT=100 if inlined else 0) as connection:
        connection.execute(statement)
    assert changed(destination) == code
    stream.update(id=1, item="A", note="n")
    with pytest.raises(DestinationChanged) as caught:
        apply(ducklake, destination, stream)
    assert caught.value.code == code
    destination.drop_table_for_copy(TableTarget.of(ORDERS), 1)
    stream = copy(ducklake, destination, n=2, lsn=5000)
    stream.delete(id=1)
    apply(ducklake, destination, stream)
    assert ducklake.items() == {2: "item 2"}
    if "RENAME TO moved" in statement:
        assert len(ducklake.items("moved")) == 3, "a table that a user moved away is left alone"


def test_a_watermark_that_has_moved_back(ducklake: DuckLake) -> None:
    """A driver that has seen a later one writes nothing: the changes between the two are not staged any more."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    stream.insert(id=4, item="d", note=None)
    apply(ducklake, destination, stream)
    ducklake.db.execute("UPDATE lake.levada_tables SET lsn = lsn - 1")
    stream.insert(id=5, item="e", note=None)
    assert changed(destination) == "table_rolled_back"
    assert code_of(partial(apply, ducklake, destination, stream)) == "table_rolled_back"
    assert 5 not in ducklake.items()


@pytest.mark.nightly
def test_a_catalog_that_was_created_again(ducklake: DuckLake) -> None:
    """A table of another catalog with the ID of ours is neither written nor dropped, however much it looks alike."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination, n=0)
    tables = ducklake.db.query("SELECT table_name::text FROM information_schema.tables WHERE table_schema = 'lake'")
    with ducklake.db.connect() as connection:
        for (name,) in tables:
            if name != "levada_tables":
                connection.execute(sql.SQL("DROP TABLE lake.{}").format(sql.Identifier(name)))
    ducklake.options["DATA_PATH"] = f"'{ducklake.folder}'"
    with ducklake.duckdb(DATA_INLINING_ROW_LIMIT=0) as session:
        session.execute("CREATE SCHEMA shop_public")
        session.execute("CREATE TABLE shop_public.orders (id BIGINT, item VARCHAR, note VARCHAR)")
    other = ducklake.destination()
    assert changed(other) == "destination_table_missing"
    stream.insert(id=1, item="a", note=None)
    with pytest.raises(DestinationChanged):
        apply(ducklake, destination, stream)
    for epoch in (None, 1):
        assert code_of(partial(other.drop_table_for_copy, TableTarget.of(ORDERS), epoch)) == "table_not_ours"
    assert ducklake.items() == {}
    ducklake.sql("ALTER TABLE shop_public.orders RENAME TO mine")
    copy(ducklake, other)
    assert (len(ducklake.items()), len(ducklake.items("mine"))) == (3, 0)


@pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
def test_a_catalog_with_another_encoding(ducklake: DuckLake, encoding: LiteralString) -> None:
    """A database that cannot hold every name and every bound is refused before anything is written."""
    ducklake.db.execute(f"CREATE DATABASE encoded ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'")
    destination = ducklake.destination({"catalog": {"database": "encoded"}})
    try:
        for call in (destination.startup, destination.check):
            assert code_of(call) == "catalog_unsupported"
    finally:
        destination.shutdown()
        ducklake.db.execute("DROP DATABASE encoded WITH (FORCE)")


@pytest.mark.nightly
def test_what_another_writer_may_do(ducklake: DuckLake) -> None:
    """Other tables, a new column, comments and settings leave the table as it is."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    with ducklake.duckdb() as connection:
        connection.execute("CREATE TABLE shop_public.mine (a INT)")
        connection.execute("INSERT INTO shop_public.mine VALUES (1)")
        connection.execute("COMMENT ON TABLE shop_public.orders IS 'orders'")
        connection.execute("ALTER TABLE shop_public.orders ADD COLUMN seen INT DEFAULT 5")
        connection.execute("CREATE VIEW shop_public.few AS SELECT id FROM shop_public.orders")
    stream.insert(id=7, item="seven", note=None)
    apply(ducklake, destination, stream)
    assert {r["id"]: r["seen"] for r in ducklake.rows()} == {1: 5, 2: 5, 3: 5, 7: 5}
    with ducklake.duckdb() as connection:
        connection.execute("INSERT INTO shop_public.mine VALUES (2)")
        assert connection.execute("SELECT * FROM shop_public.mine ORDER BY 1").fetchall() == [(1,), (2,)]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "call",
    [
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
        "CHECKPOINT",
    ],
)
@pytest.mark.parametrize("restart", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_compaction_by_the_user(ducklake: DuckLake, call: str, restart: bool) -> None:
    """The rows are found where DuckDB's compaction has moved them, also after their former files are removed."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination, n=9)
    for i in range(1, 6):
        stream.update(id=i, item=f"first {i}", note="n")
        stream.insert(id=20 + i, item=f"new {i}", note=None)
        apply(ducklake, destination, stream)
    before = ducklake.rows()
    with ducklake.duckdb() as connection:
        connection.execute(call)
        connection.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
        connection.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    assert ducklake.rows() == before
    if restart:
        destination = ducklake.destination()
    destination.maintain(ORDERS.id)
    stream.update(id=1, item="second", note=None, unchanged=[3])
    stream.delete(id=2)
    stream.update(old={"id": 21}, id=31, item="moved", note=None)
    stream.delete(id=9)
    apply(ducklake, destination, stream)
    rows = {r["id"]: (r["item"], r["note"]) for r in ducklake.rows()}
    assert rows[1] == ("second", "n")
    assert rows.keys() == {1, 3, 4, 5, 6, 7, 8, 22, 23, 24, 25, 31}
    assert ducklake.sql("SELECT count(*), min(id), max(id) FROM shop_public.orders") == [(12, 1, 31)]


@pytest.mark.nightly
def test_duckdb_goes_on_writing(ducklake: DuckLake) -> None:
    """Tables that Levada has made are ordinary tables to DuckDB: inserts, updates, columns, time travel, drops."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    stream.delete(id=1)
    apply(ducklake, destination, stream)
    with ducklake.duckdb() as connection:
        run = connection.execute
        (before,) = run("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')").fetchone() or (0,)
        run("INSERT INTO shop_public.orders VALUES (0, 'zero', ''), (99, NULL, NULL)")
        run("UPDATE shop_public.orders SET item = 'three' WHERE id = 3")
        run("ALTER TABLE shop_public.orders ADD COLUMN more INT DEFAULT 5")
        run("INSERT INTO shop_public.orders VALUES (100, 'hundred', '', 6)")
        found = run("SELECT id, item, more FROM shop_public.orders ORDER BY id").fetchall()
        assert found == [(0, "zero", 5), (2, "item 2", 5), (3, "three", 5), (99, None, 5), (100, "hundred", 6)]
        assert run("SELECT min(id), max(id), min(item) FROM shop_public.orders").fetchall() == [(0, 100, "hundred")]
        past = run(f"SELECT id FROM shop_public.orders AT (VERSION => {before - 1}) ORDER BY id").fetchall()
        assert past == [(1,), (2,), (3,)]
        check_filters(connection, "shop_public.orders")
        run("DELETE FROM shop_public.orders WHERE id < 50")
        assert run("SELECT rowid >= 0, id FROM shop_public.orders ORDER BY id").fetchall() == [(True, 99), (True, 100)]
        run("DROP TABLE shop_public.orders")


def test_tables_of_others_are_left_alone(ducklake: DuckLake) -> None:
    """A table of the user, in any case of letters, and one of another pipeline are neither written nor dropped."""
    destination, target = ducklake.destination(), TableTarget.of(ORDERS)
    destination.startup()
    ducklake.sql("CREATE SCHEMA shop_public")
    ducklake.sql("CREATE TABLE shop_public.ORDERS AS SELECT 1 AS mine")
    rows = MemoryRows(ORDERS, [])
    assert code_of(lambda: destination.check_place(target)) == "table_not_ours"
    assert code_of(lambda: destination.drop_table_for_copy(target, 1)) == "table_not_ours"
    assert code_of(lambda: destination.write_table_rows(target, rows, ducklake.mark(1))) == "table_not_ours"
    assert ducklake.sql("SELECT mine FROM shop_public.orders") == [(1,)]
    ducklake.sql("DROP TABLE shop_public.orders")
    copy(ducklake, destination)
    other = ducklake.destination(pipeline="other", work="other")
    assert code_of(lambda: other.drop_table_for_copy(target, 9)) == "table_not_ours"
    assert code_of(lambda: other.write_table_rows(target, rows, Watermark("other", 9, Lsn(1)))) == "table_not_ours"
    assert len(ducklake.rows()) == 3


def test_commits_at_the_same_time(ducklake: DuckLake) -> None:
    """Several tables of Levada and a writer of DuckDB commit to one catalog, and nothing of anyone is lost."""
    schemas = [replace(ORDERS, id=TableId(100 + i), name=QualifiedTable("public", f"t{i}")) for i in range(3)]
    destination = ducklake.destination()
    streams = [copy(ducklake, destination, schema) for schema in schemas]
    ducklake.sql("CREATE TABLE mine (a INT)")
    failed: list[BaseException] = []

    def run(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    def stream_changes(stream: Stream) -> None:
        for i in range(15):
            stream.update(id=1, item=f"turn {i}", note="n")
            stream.insert(id=100 + i, item="i", note=None)
            apply(ducklake, destination, stream)

    def duckdb_inserts() -> None:
        with ducklake.duckdb() as connection:
            connection.execute("SET ducklake_max_retry_count = 100")
            for i in range(15):
                connection.execute(f"INSERT INTO mine VALUES ({i})")

    works: list[Callable[[], None]] = [duckdb_inserts, *(partial(stream_changes, s) for s in streams)]
    threads = [threading.Thread(target=run, args=[work]) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    for schema in schemas:
        items = ducklake.items(schema.name.name)
        assert (items[1], len(items)) == ("turn 14", 18)
    assert ducklake.sql("SELECT count(*), sum(a) FROM mine") == [(15, 105)]


def test_orphans_are_no_damage(ducklake: DuckLake) -> None:
    """If DuckDB removes the files of a shadow copy as orphans, the copy is not valid, and the table stays."""
    destination = ducklake.destination()
    copy(ducklake, destination)
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "shadow", "note": None}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, ducklake.mark(1000))
    ducklake.sql("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")
    assert not destination.swap_replacement(ORDERS.id, ducklake.mark(2000))
    assert ducklake.items() == {1: "item 1", 2: "item 2", 3: "item 3"}


def test_a_clean_up_while_keys_are_read_is_no_damage(ducklake: DuckLake) -> None:
    """A compaction replaces the files of a removed partition's rows and removes them. The table is read again."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination, n=3)
    stream.insert(id=20, item="new", note=None)
    apply(ducklake, destination, stream)
    target, everything = TableTarget.of(ORDERS, TableMode.UPSERT), Region(((),))
    reading = destination.keys_in(target, everything)
    next(reading)
    with ducklake.duckdb() as connection:
        connection.execute("CALL ducklake_merge_adjacent_files('lake')")
        connection.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
        connection.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    with pytest.raises(Transient, match="removed while they were read"):
        list(reading)
    again = [key for batch in destination.keys_in(target, everything) for key in batch["id"].to_pylist()]
    assert sorted(again) == [1, 2, 3, 20]
