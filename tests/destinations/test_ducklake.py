"""DuckLake as a destination: a catalog in PostgreSQL, read and written further by DuckDB's own extension."""

from __future__ import annotations

import datetime as dt
import math
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.destinations.memory import MemoryRows, Stream
from tests.servers.ducklake import DuckLake
from tests.servers.s3 import BUCKET, REGION, ObjectStore

from levada.destinations.ducklake import DuckLakeDestination
from levada.destinations.ducklake.intact import read_intact
from levada.destinations.ducklake.snapshot import NextSnapshot
from levada.destinations.ducklake.state import State
from levada.destinations.ducklake.statistics import TableStats, describe_files
from levada.destinations.ducklake.types import from_text, to_text
from levada.errors import DestinationChanged, LevadaError
from levada.postgres.silence import WatchedConnection
from levada.schema import ColumnType, Kind, ReplicatedTableSchema, TableTarget
from levada.testing import column, table
from levada.values import Durability, Lsn, QualifiedTable, TableId, TableMode, Watermark

ORDERS = table(column(1, "id", Kind.INT8), column(2, "item", Kind.TEXT), column(3, "note", Kind.TEXT))


def copy(
    lake: DuckLake,
    destination: DuckLakeDestination,
    schema: ReplicatedTableSchema = ORDERS,
    n: int = 3,
    *,
    mode: TableMode = TableMode.UPSERT,
    lsn: int = 1000,
) -> Stream:
    """Copy rows 1 to n. The stream returned has the changes after that."""
    rows = [{"id": i, "item": f"item {i}", "note": "x" * 100} for i in range(1, n + 1)]
    target = TableTarget.of(schema, mode)
    assert (
        destination.write_table_rows(target, MemoryRows(schema, rows[::2], rows[1::2]), lake.mark(lsn))
        is Durability.DURABLE
    )
    return Stream(schema, lsn=lsn, taken=lsn, mode=mode)


def apply(lake: DuckLake, destination: DuckLakeDestination, stream: Stream, *, epoch: int = 1) -> None:
    """Apply what the stream has since the last batch."""
    batch = stream.batch()
    assert destination.write_events(batch, lake.mark(batch.until, epoch)) is Durability.DURABLE


def test_copy_then_changes(ducklake: DuckLake) -> None:
    """A copy and a batch of changes leave the last state of each row, and a new process reads the watermark."""
    lake = ducklake
    destination = lake.destination()
    stream = copy(lake, destination)
    assert destination.applied(ORDERS.id) == lake.mark(1000)
    assert lake.items() == {1: "item 1", 2: "item 2", 3: "item 3"}
    stream.update(id=1, item="A", note="n")
    stream.delete(id=2)
    stream.insert(id=4, item="d", note=None)
    apply(lake, destination, stream)
    assert lake.items() == {1: "A", 3: "item 3", 4: "d"}
    assert lake.destination().applied(ORDERS.id) == lake.mark(stream.taken)
    assert lake.destination().applied(TableId(1)) is None


WIDE = table(
    column(1, "id", Kind.INT8),
    column(2, "b", Kind.BOOL),
    column(3, "i2", Kind.INT2),
    column(4, "i4", Kind.INT4),
    column(5, "f4", Kind.FLOAT4),
    column(6, "f8", Kind.FLOAT8),
    column(7, "n", Kind.DECIMAL, precision=38, scale=10),
    column(8, "small", Kind.DECIMAL, precision=9, scale=2),
    column(9, "t", Kind.TEXT),
    column(10, "bytes", Kind.BYTEA),
    column(11, "d", Kind.DATE),
    column(12, "clock", Kind.TIME),
    column(13, "ts", Kind.TIMESTAMP),
    column(14, "tz", Kind.TIMESTAMPTZ),
    column(15, "u", Kind.UUID),
    column(16, "j", Kind.JSON),
    column(17, "texts", Kind.ARRAY, element=ColumnType(Kind.TEXT)),
    column(18, "ids", Kind.ARRAY, element=ColumnType(Kind.UUID)),
    name="public.wide",
)
BIG = Decimal("9999999999999999999999999999.9999999999")
VALUES: dict[str, list[Any]] = {
    "b": [True, False, None],
    "i2": [-32768, 32767, 0, 9, 10, -9, -10],
    "i4": [-(2**31), 2**31 - 1, 0, 9, 10, 100],
    "f4": [float("nan"), float("inf"), -float("inf"), -0.0, 0.1, 1e30, 9.5, 10.25],
    "f8": [float("nan"), float("inf"), -float("inf"), -0.0, 0.1, 1e300, 5e-324, 9.5, 10.25],
    "n": [BIG, BIG.copy_negate(), *(Decimal(f"{n}.{n:010}") for n in (0, 1, 9, 10))],
    "small": [Decimal("-9999999.99"), Decimal("9999999.99"), Decimal("0.01"), Decimal("-0.01"), Decimal("9.50")],
    "t": ["", "a", "Z", "é", "\U0001f600", "x" * 5000 + "b", "x" * 5000 + "a", "\uffff", "'q'", "NULL", "10", "9"],
    "bytes": [b"", b"\x00", b"\xff" * 3, b"\x80", b"y" * 6000],
    "d": [dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), dt.date(2024, 2, 29)],
    "clock": [dt.time(0), dt.time(23, 59, 59, 999999), dt.time(12, 0, 0, 1), dt.time(9)],
    "ts": [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(1969, 12, 31, 23, 0, 0, 5)],
    "tz": [
        dt.datetime(1, 1, 1, tzinfo=dt.UTC),
        dt.datetime(9999, 12, 31, tzinfo=dt.UTC),
        dt.datetime(2024, 7, 1, 12, 0, 0, 123456, tzinfo=dt.UTC),
    ],
    "u": [str(uuid.UUID(int=n)) for n in (0, 1, 2**127, 2**128 - 1, 2**127 - 1)],
    "j": ["{}", '{"a": 1e400}', '"\\ud800"', "null", "[1, 2]", '{"k": "\\u0000"}'],
    "texts": [[], [""], ["a", None], [None], ["\x7f", "é"]],
    "ids": [[], [None], [str(uuid.UUID(int=7)), None]],
}


def wide_rows() -> list[dict[str, Any]]:
    """Rows with each value of each column, with NULL in all of them at first."""
    rows: list[dict[str, Any]] = [{"id": 0}]
    for name, values in VALUES.items():
        rows += [{"id": len(rows) + i, name: v} for i, v in enumerate(values)]
    return rows


def check_filters(connection: duckdb.DuckDBPyConnection, name: str, without: str = "") -> None:
    """Check that filters and bounds give the same rows as on a copy of the table in memory, which has no statistics.

    ``without`` is a column that is not checked.
    """
    connection.execute(f"CREATE OR REPLACE TABLE memory.main.plain AS SELECT * FROM {name}")
    columns = [c for (c, *_) in connection.execute(f"DESCRIBE {name}").fetchall() if c != without]
    wrong = []
    for c in columns:
        texts = [f"{c} IS NULL", f"{c} IS NOT NULL"]
        values = connection.execute(f"SELECT DISTINCT {c}::varchar, typeof({c}) FROM memory.main.plain").fetchall()
        for value, kind in values:
            if value is not None:
                quoted = "'" + value.replace("'", "''") + "'::" + kind
                texts += [f"{c} {op} {quoted}" for op in ("=", "<", ">=")]
        asked = [f"SELECT list(id ORDER BY id), count({c}) FROM TABLE_ WHERE {text}" for text in texts]
        asked += [f"SELECT count(*), min({c})::varchar, max({c})::varchar FROM TABLE_"]
        for query in asked:
            seen = connection.execute(query.replace("TABLE_", name)).fetchall()
            if seen != connection.execute(query.replace("TABLE_", "memory.main.plain")).fetchall():
                wrong.append((query, str(seen)[:100]))
    assert not wrong, "\n".join(map(str, wrong))


def test_every_value_is_found_by_every_filter(ducklake: DuckLake) -> None:
    """Readers skip files by their statistics. No filter on any type misses a row, whatever files the rows are in."""
    destination, rows = ducklake.destination(), wide_rows()
    parts = [rows[i::7] for i in range(7)]
    destination.write_table_rows(TableTarget.of(WIDE), MemoryRows(WIDE, *parts), ducklake.mark(1000))
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.wide")
    stream = Stream(WIDE)
    for row in rows[:90:6]:
        stream.insert(**{**dict.fromkeys(c.name for c in WIDE.columns), **row, "id": row["id"] + 1000})
        apply(ducklake, destination, stream)
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.wide")
        connection.execute("CALL ducklake_merge_adjacent_files('lake')")
        # DuckDB 1.5.5 does not find every value in a BLOB column of a Parquet file that it has written itself.
        check_filters(connection, "shop_public.wide", without="bytes")


def changed(destination: DuckLakeDestination) -> str:
    """Return the code of the error that the check of the table raises."""
    with pytest.raises(DestinationChanged) as caught:
        destination.maintain(ORDERS.id)
    return caught.value.code


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
    ],
)
@pytest.mark.parametrize("inlined", [False, True])
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


@pytest.mark.parametrize(
    "call",
    [
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)",
        "CHECKPOINT",
    ],
)
@pytest.mark.parametrize("restart", [False, True])
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


def code_of(run: Callable[[], object]) -> str:
    """Return the code of the error that the call raises."""
    with pytest.raises(LevadaError) as caught:
        run()
    return caught.value.code


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


def test_an_old_driver_writes_nothing(ducklake: DuckLake) -> None:
    """After a newer driver has written a table, batches, copies, swaps and drops of an older one are refused."""
    old, new = ducklake.destination(work="old"), ducklake.destination(work="new")
    stream = copy(ducklake, old)
    target, rows = TableTarget.of(ORDERS), MemoryRows(ORDERS, [{"id": 5, "item": "shadow", "note": None}])
    assert old.copy_replacement(target, rows, ducklake.mark(1000))
    stream.insert(id=4, item="new", note=None)
    apply(ducklake, new, stream, epoch=2)
    stream.insert(id=6, item="late", note=None)
    for run in (
        lambda: apply(ducklake, old, stream),
        lambda: old.swap_replacement(ORDERS.id, ducklake.mark(5000)),
        lambda: old.drop_table_for_copy(target, 1),
        lambda: old.write_table_rows(target, rows, ducklake.mark(5000)),
    ):
        assert code_of(run) == "stale_epoch"
    assert ducklake.items() == {1: "item 1", 2: "item 2", 3: "item 3", 4: "new"}


def test_catalogs_that_cannot_be_written(ducklake: DuckLake) -> None:
    """Another version, another data path and a missing one are errors before anything is written."""
    assert code_of(ducklake.destination({"dataPath": ""}).startup) == "data_path_unusable"
    ducklake.destination().startup()
    ducklake.destination({"dataPath": ""}).startup()
    assert code_of(ducklake.destination({"dataPath": "/elsewhere"}).startup) == "data_path_mismatch"
    ducklake.db.execute("UPDATE lake.ducklake_metadata SET value = '1.1' WHERE key = 'version'")
    assert code_of(ducklake.destination().startup) == "catalog_unsupported"


def test_a_catalog_that_duckdb_has_made(ducklake: DuckLake) -> None:
    """Levada writes to a catalog that DuckDB's extension created, next to its tables."""
    ducklake.folder.mkdir()
    with ducklake.duckdb(DATA_PATH=f"'{ducklake.folder}'") as connection:
        connection.execute("CREATE TABLE mine AS SELECT range AS a FROM range(100)")
    destination = ducklake.destination({"dataPath": ""})
    stream = copy(ducklake, destination)
    stream.delete(id=3)
    apply(ducklake, destination, stream)
    assert ducklake.items() == {1: "item 1", 2: "item 2"}
    assert ducklake.sql("SELECT count(*) FROM mine") == [(100,)]


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


DEFAULTS = [
    (Kind.TEXT, "it's NULL", "it's NULL"),
    (Kind.TEXT, "NULL", "NULL"),
    (Kind.TEXT, "", ""),
    (Kind.BOOL, "f", False),
    (Kind.INT2, "-5", -5),
    (Kind.FLOAT8, "NaN", "NaN"),
    (Kind.FLOAT8, "-Infinity", -math.inf),
    (Kind.BYTEA, "\\x00ff5c", b"\x00\xff\\"),
    (Kind.DATE, "1969-12-31", dt.date(1969, 12, 31)),
    (Kind.TIME, "23:59:59.5", dt.time(23, 59, 59, 500000)),
    (Kind.TIMESTAMP, "2020-01-01 00:00:00.000001", dt.datetime(2020, 1, 1, 0, 0, 0, 1)),
    (Kind.TIMESTAMPTZ, "2020-01-01 00:00:00+02", dt.datetime(2019, 12, 31, 22, tzinfo=dt.UTC)),
    (Kind.UUID, "00000000-0000-0000-0000-00000000000a", "00000000-0000-0000-0000-00000000000a"),
    (Kind.JSON, '{"a": 1}', '{"a": 1}'),
]


def test_defaults_of_added_columns(ducklake: DuckLake) -> None:
    """Rows from before ADD COLUMN have its constant, of each type, in reads, in filters and in updated rows."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    added = [column(10 + i, f"c{i}", kind, missing_value=text) for i, (kind, text, _) in enumerate(DEFAULTS)]
    added.append(column(40, "n", Kind.DECIMAL, precision=10, scale=3, missing_value="-1.5"))
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, *added)))
    apply(ducklake, destination, stream)
    stream.update(id=1, item="one", note="n", unchanged=[c.attnum for c in added])
    stream.insert(id=4, item="four", note=None)
    apply(ducklake, destination, stream)
    expected = {**{f"c{i}": value for i, (_, _, value) in enumerate(DEFAULTS)}, "n": Decimal("-1.500")}
    for row in ducklake.rows():
        seen = {name: "NaN" if row[name] != row[name] else row[name] for name in expected}
        assert seen == (dict.fromkeys(expected) if row["id"] == 4 else expected)
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.orders")


def test_an_array_with_a_default_needs_a_resync(ducklake: DuckLake) -> None:
    """DuckDB reads the default of a list as NULL, so the change is refused, and nothing is written."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    tags = column(9, "tags", Kind.ARRAY, element=ColumnType(Kind.INT4), missing_value="{}")
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, tags)))
    stream.delete(id=1)
    assert code_of(lambda: apply(ducklake, destination, stream)) == "schema_change_unsupported"
    assert ducklake.items() == {1: "item 1", 2: "item 2", 3: "item 3"}


def test_columns_change_in_place(ducklake: DuckLake) -> None:
    """Renames, drops, wider types and a column that comes back under the old name keep each row's values."""
    schema = table(
        column(1, "id", Kind.INT2), column(2, "a", Kind.INT4), column(3, "b", Kind.TEXT), column(4, "f", Kind.FLOAT4)
    )
    destination, target = ducklake.destination(), TableTarget.of(schema)
    rows = [{"id": i, "a": i, "b": f"b{i}", "f": 0.5} for i in (1, 2)]
    destination.write_table_rows(target, MemoryRows(schema, rows), ducklake.mark(1000))
    stream = Stream(schema)
    stream.alter(
        table(
            column(1, "id", Kind.INT8),
            column(2, "renamed", Kind.INT8),
            column(4, "f", Kind.FLOAT8),
            column(5, "b", Kind.INT4),
        )
    )
    stream.update(id=1, renamed=2**40, f=1e300, b=7)
    apply(ducklake, destination, stream)
    assert ducklake.rows() == [
        {"id": 1, "renamed": 2**40, "f": 1e300, "b": 7},
        {"id": 2, "renamed": 2, "f": 0.5, "b": None},
    ]
    with ducklake.duckdb() as connection:
        check_filters(connection, "shop_public.orders")
        past = connection.execute("SELECT * FROM shop_public.orders AT (VERSION => 2) ORDER BY id").fetchall()
        assert past == [(1, 1, "b1", 0.5), (2, 2, "b2", 0.5)]


def test_odd_names(ducklake: DuckLake) -> None:
    """Names with quotes, dots, slashes and letters of any language are names like any other."""
    for i, name in enumerate(['a"b', "a.b", "../up", "Größe", "select", "x y", "100%", "a'b", "\U0001f600"]):
        schema = replace(ORDERS, id=TableId(500 + i), name=QualifiedTable("public", name))
        destination = ducklake.destination()
        stream = copy(ducklake, destination, schema)
        stream.delete(id=1)
        apply(ducklake, destination, stream)
        assert ducklake.items(name) == {2: "item 2", 3: "item 3"}
        destination.drop_table_for_copy(TableTarget.of(schema))
    inside = ducklake.folder.resolve()
    assert all(inside in file.resolve().parents for file in ducklake.folder.parent.rglob("*.parquet"))


def test_an_object_store(ducklake: DuckLake, s3: ObjectStore, tmp_path: Path) -> None:
    """Files go to an object store whose keys are in the Secret. DuckDB reads them where the store keeps them."""
    secret = tmp_path / "secret"
    secret.mkdir()
    for name, value in {"username": "postgres", "password": "unused", **s3.keys}.items():
        (secret / name).write_text(value)
    place = {"s3.endpoint": f"http://127.0.0.1:{s3.port}", "s3.region": REGION}
    settings = {"dataPath": f"s3://{BUCKET}/ducklake/", "properties": place}
    destination = ducklake.destination(settings, credentials=secret)
    stream = copy(ducklake, destination)
    stream.update(id=1, item="one", note=None, unchanged=[3])
    apply(ducklake, destination, stream)
    stream.update(id=1, item="uno", note=None, unchanged=[3])
    stream.delete(id=2)
    apply(ducklake, ducklake.destination(settings, credentials=secret, work="other"), stream)
    ducklake.options = {"DATA_PATH": f"'{s3.buckets / BUCKET}/ducklake/'", "OVERRIDE_DATA_PATH": "true"}
    assert {r["id"]: (r["item"], r["note"]) for r in ducklake.rows()} == {
        1: ("uno", "x" * 100),
        3: ("item 3", "x" * 100),
    }
    (secret / "s3.secret-access-key").write_text("wrong")
    stream.delete(id=3)
    late = ducklake.destination(settings, credentials=secret)
    assert code_of(lambda: apply(ducklake, late, stream)) in ("destination_denied", "destination_unavailable")


def test_orphans_are_no_damage(ducklake: DuckLake) -> None:
    """If DuckDB removes the files of a shadow copy as orphans, the copy is not valid, and the table stays."""
    destination = ducklake.destination()
    copy(ducklake, destination)
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "shadow", "note": None}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, ducklake.mark(1000))
    ducklake.sql("CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)")
    assert not destination.swap_replacement(ORDERS.id, ducklake.mark(2000))
    assert ducklake.items() == {1: "item 1", 2: "item 2", 3: "item 3"}


@given(days=st.integers(-2_440_588, 2_145_031_948), micros=st.integers(-(10**17), 10**17))
def test_bounds_are_the_texts_of_duckdb(days: int, micros: int) -> None:
    """Dates and timestamps of any era have DuckDB's texts, from which the same bounds are read again."""
    with duckdb.connect() as connection:
        query = "SELECT (DATE '1970-01-01' + ?::INT)::varchar, make_timestamp(?)::varchar"
        assert connection.execute(query, [days, micros]).fetchone() == (
            to_text("date", days),
            to_text("timestamp", micros),
        )
    for kind, value in (("date", days), ("timestamp", micros), ("timestamptz", micros), ("time", micros % 10**10)):
        assert from_text(kind, to_text(kind, value)) == value


@given(value=st.integers(-(10**38) + 1, 10**38 - 1), scale=st.integers(0, 38), text=st.text(), data=st.binary())
def test_bounds_survive_their_texts(value: int, scale: int, text: str, data: bytes) -> None:
    """Every bound of a decimal, an integer, a text and a blob is read again as it was."""
    name = f"decimal(38,{scale})"
    assert from_text(name, to_text(name, value)) == value
    assert from_text("int64", to_text("int64", value)) == value
    assert from_text("varchar", to_text("varchar", text.encode())) == text.encode()
    assert from_text("blob", to_text("blob", data)) == data


@pytest.fixture
def lost_answers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A call of the result loses the answer to the next commit of a snapshot, as a broken connection with TLS does."""
    state = {"asked": False, "armed": False}
    transaction, finish = WatchedConnection.transaction, NextSnapshot.finish

    @contextmanager
    def losing(self: WatchedConnection) -> Iterator[Any]:
        with transaction(self) as inner:
            yield inner
        if state["armed"]:
            state["armed"] = False
            raise psycopg.OperationalError("consuming input failed: SSL error: unexpected eof while reading")

    def finished(self: NextSnapshot) -> None:
        finish(self)
        state["armed"], state["asked"] = state["asked"], False

    monkeypatch.setattr(WatchedConnection, "transaction", losing)
    monkeypatch.setattr(NextSnapshot, "finish", finished)
    return lambda: state.update(asked=True)


def test_a_lost_answer_to_a_commit_keeps_its_files(ducklake: DuckLake, lost_answers: Callable[[], None]) -> None:
    """A batch and a copy that are committed without an answer stay as they are, and a repetition changes nothing."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    stream.update(id=1, item="A", note="n")
    batch = stream.batch()
    lost_answers()
    assert code_of(lambda: destination.write_events(batch, ducklake.mark(batch.until))) == "destination_unavailable"
    expected = {1: "A", 2: "item 2", 3: "item 3"}
    assert ducklake.items() == expected
    destination.write_events(batch, ducklake.mark(batch.until))
    assert ducklake.items() == expected
    lost_answers()
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "copied", "note": None}])
    run = partial(destination.write_table_rows, TableTarget.of(ORDERS), rows, ducklake.mark(9000))
    assert code_of(run) == "destination_unavailable"
    assert ducklake.items() == {7: "copied"}


def test_a_lost_answer_to_a_swap_keeps_its_files(ducklake: DuckLake, lost_answers: Callable[[], None]) -> None:
    """A shadow copy that is in the table without an answer is not added again, and its removal leaves the table."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    rows = MemoryRows(ORDERS, [{"id": 7, "item": "copied", "note": None}])
    assert destination.copy_replacement(TableTarget.of(ORDERS), rows, ducklake.mark(2000))
    lost_answers()
    swap = partial(destination.swap_replacement, ORDERS.id, ducklake.mark(2000))
    assert code_of(swap) == "destination_unavailable"
    assert swap() is False, "the resync starts again"
    destination.drop_replacement(ORDERS.id)
    assert ducklake.items() == {7: "copied"}
    stream = Stream(ORDERS, lsn=2000, taken=2000)
    stream.update(id=7, item="changed", note=None)
    apply(ducklake, destination, stream)
    assert ducklake.items() == {7: "changed"}
    twice = "SELECT path FROM lake.ducklake_data_file GROUP BY path HAVING count(*) > 1"
    assert ducklake.db.query(twice) == []


def test_a_column_that_is_added_during_a_batch_stays(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's column that comes between the read of the table and the commit is kept, also next to one of ours."""
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    describe, todo = describe_files, ["ALTER TABLE shop_public.orders ADD COLUMN mine INT DEFAULT 5"]

    def described(*values: Any) -> Any:
        if todo:
            ducklake.sql(todo.pop())
        return describe(*values)

    monkeypatch.setattr("levada.destinations.ducklake.writes.describe_files", described)
    stream.alter(replace(ORDERS, columns=(*ORDERS.columns, column(4, "ours", Kind.INT8))))
    stream.insert(id=4, item="d", note=None, ours=4)
    apply(ducklake, destination, stream)
    seen = {r["id"]: (r["mine"], r["ours"]) for r in ducklake.rows()}
    assert {k: seen[k] for k in (1, 4)} == {1: (5, None), 4: (seen[4][0], 4)}


def test_an_old_driver_that_waits_for_a_newer_one(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drop by an old driver that begins during a newer driver's commit is refused."""
    old, new = ducklake.destination(work="old"), ducklake.destination(work="new")
    stream = copy(ducklake, old)
    save, codes = State.save, []
    thread = threading.Thread(
        target=lambda: codes.append(code_of(lambda: old.drop_table_for_copy(TableTarget.of(ORDERS), 1)))
    )

    def saving(self: State, *values: Any) -> None:
        save(self, *values)
        if not codes and not thread.ident:
            thread.start()
            waits = "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%levada_tables%%'"
            while not ducklake.db.query(waits):
                pass

    monkeypatch.setattr(State, "save", saving)
    stream.insert(id=4, item="new", note=None)
    apply(ducklake, new, stream, epoch=2)
    thread.join()
    assert codes == ["stale_epoch"]
    assert len(ducklake.items()) == 4


def test_a_watermark_is_read_with_its_table(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit by the driver before, while the new one reads the table, is not taken for that of another writer."""
    old, new = ducklake.destination(work="old"), ducklake.destination(work="new")
    stream = copy(ducklake, old)
    stream.insert(id=4, item="late", note=None)
    thread = threading.Thread(target=lambda: apply(ducklake, old, stream))
    read = read_intact

    def reading(*values: Any) -> Any:
        if threading.current_thread() is not thread and not thread.ident:
            thread.start()
            thread.join(3)
        return read(*values)

    monkeypatch.setattr("levada.destinations.ducklake.destination.read_intact", reading)
    assert new.applied(ORDERS.id) == ducklake.mark(1000)
    thread.join()
    assert new.applied(ORDERS.id) == ducklake.mark(stream.taken)


def test_a_table_that_is_created_during_a_copy(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's table that gets the name between the check and the creation is not doubled."""
    destination = ducklake.destination()
    destination.startup()
    ducklake.sql("CREATE SCHEMA shop_public")
    begin, todo = NextSnapshot.begin, ["CREATE TABLE shop_public.orders AS SELECT 1 AS mine"]

    def beginning(*values: Any) -> NextSnapshot:
        if todo:
            ducklake.sql(todo.pop())
        return begin(*values)

    monkeypatch.setattr(NextSnapshot, "begin", beginning)
    assert code_of(lambda: copy(ducklake, destination)) == "table_not_ours"
    assert ducklake.sql("SELECT mine FROM shop_public.orders") == [(1,)]


def test_a_pooler_that_changes_the_session(ducklake: DuckLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each transaction may have another session, without the options and statements of an earlier one."""
    transaction = WatchedConnection.transaction

    @contextmanager
    def pooled(self: WatchedConnection) -> Iterator[Any]:
        self.pgconn.exec_(b"DISCARD ALL")
        with transaction(self) as inner:
            yield inner

    monkeypatch.setattr("levada.postgres.connection.SESSION_OPTIONS", "")
    monkeypatch.setattr(WatchedConnection, "transaction", pooled)
    for setting in ("statement_timeout = '20s'", "timezone = 'Asia/Tokyo'", "default_transaction_read_only = on"):
        ducklake.db.execute(f"ALTER DATABASE {ducklake.db.name} SET {setting}")
    destination = ducklake.destination()
    stream = copy(ducklake, destination)
    for i in range(12):
        stream.update(id=1, item=f"turn {i}", note="n")
        apply(ducklake, destination, stream)
    assert destination.applied(ORDERS.id) == ducklake.mark(stream.taken)
    with destination._database.transaction("looking") as connection:
        names = ("idle_in_transaction_session_timeout", "tcp_keepalives_idle", "statement_timeout")
        assert [connection.execute(f"SHOW {n}").fetchone() for n in names] == [("1min",), ("30",), ("0",)]


def test_bounds_of_floats_by_another_writer() -> None:
    """Bounds that another writer has stored for a float are dropped, because Levada's files have none."""
    before = TableStats(False, "1.0", "2.0")
    assert before.merged("float64", TableStats(True, None, None)) == TableStats(True, None, None)
