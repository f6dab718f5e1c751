"""A table's rows as of an exported snapshot, through the tasks of each runner."""

from __future__ import annotations

import os
import re
import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from tests.rigs.database import Database
from tests.rigs.process_tasks import CopyOf
from tests.rigs.waiting import LIMIT_S, until

from levada.copy.guard import READERS
from levada.copy.in_process import IN_PROCESS
from levada.copy.plan import RangeLimits
from levada.copy.snapshot import SnapshotRows
from levada.copy.tasks import TaskRunner
from levada.errors import NeedsOperator, Transient, Unrepresentable
from levada.values import OnUnrepresentable

nightly_in_spark = pytest.mark.parametrize(
    "runner", ["processes", pytest.param("spark", marks=pytest.mark.nightly)], indirect=True
)
"""For what Spark's tasks do as other tests here have them do."""


def rows_of(copy: SnapshotRows) -> list[dict[str, Any]]:
    """All rows, through map_partitions, in the order of their first column."""
    tables = copy.map_partitions(lambda reader: reader.read_all())
    rows = pa.concat_tables(tables).to_pylist() if tables else []
    return sorted(rows, key=lambda row: str(next(iter(row.values()))))


@pytest.mark.nightly
def test_rows_are_those_of_the_snapshot(db: Database, copy_of: CopyOf) -> None:
    """Commits, updates, deletes and truncates after the snapshot change nothing that the copy reads."""
    db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, v text)",
        "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 1000) g",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    copy = copy_of("t")
    db.execute("DELETE FROM t WHERE id <= 500", "UPDATE t SET v = 'new'", "INSERT INTO t VALUES (5000, 'late')")
    rows = rows_of(copy)
    assert len(rows) == 1000
    assert {(r["id"], r["v"]) for r in rows} == {(i, f"v{i}") for i in range(1, 1001)}


@pytest.mark.parametrize("runner", ["processes"], indirect=True)
def test_a_small_table_is_read_in_this_process(db: Database, copy_of: CopyOf) -> None:
    """Its ranges are, in one session that the next copy takes too. A larger table has a process of its own."""
    db.execute(
        "CREATE TABLE t (id bigint, part int) PARTITION BY LIST (part)",
        *(f"CREATE TABLE t_{i} PARTITION OF t FOR VALUES IN ({i})" for i in range(3)),
        "INSERT INTO t SELECT g, g % 3 FROM generate_series(1, 300) g",
        "CREATE PUBLICATION pub FOR TABLE t WITH (publish_via_partition_root)",
    )

    def read(reader: pa.RecordBatchReader) -> tuple[int, int]:
        return os.getpid(), reader.read_all().num_rows

    sessions = set()
    for _ in range(2):
        found = copy_of("t", in_process_bytes=1 << 20).map_partitions(read)
        assert found == [(os.getpid(), 100)] * 3
        sessions.add(tuple(db.query("SELECT pid FROM pg_stat_activity WHERE application_name ~ %s", f":{READERS}$")))
    assert [len(pids) for pids in sessions] == [1]
    IN_PROCESS.close()
    assert {pid for pid, _ in copy_of("t", in_process_bytes=8192).map_partitions(read)}.isdisjoint({os.getpid()})


@nightly_in_spark
def test_many_ranges_have_every_row_once(db: Database, copy_of: CopyOf) -> None:
    """A table that is read in several ranges gives each row exactly once, also from blocks added since the plan."""
    db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, pad text)",
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 20000) g",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    copy = copy_of("t", connections=7, limits=RangeLimits(min_bytes=64 << 10))
    assert len(copy.ranges) == 7
    counts = copy.map_partitions(lambda reader: pa.compute.sum(reader.read_all()["id"]).as_py())
    assert len(counts) == 7
    assert sum(counts) == sum(range(1, 20001))
    progress = copy.progress()
    assert (progress.rows, progress.percent, progress.seconds_left) == (20000, 100, 0)


@pytest.mark.sampled
def test_partitions_row_filter_and_column_list(db: Database, copy_of: CopyOf) -> None:
    """Of a root the leaves are read, whatever the order of their columns, with the publication's filter and columns."""
    db.execute(
        "CREATE TABLE t (id bigint, region text, v int, secret text) PARTITION BY LIST (region)",
        "CREATE TABLE t_a PARTITION OF t FOR VALUES IN ('a')",
        "CREATE TABLE t_rest PARTITION OF t DEFAULT PARTITION BY RANGE (id)",
        "CREATE TABLE t_low (secret text, v int, region text, id bigint)",
        "ALTER TABLE t_rest ATTACH PARTITION t_low FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE t_empty PARTITION OF t_rest FOR VALUES FROM (100) TO (200)",
        "INSERT INTO t SELECT g, CASE WHEN g % 2 = 0 THEN 'a' ELSE 'b' END, g, 's' FROM generate_series(1, 99) g",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "CREATE PUBLICATION pub FOR TABLE t (id, region, v) WHERE (v > 50) WITH (publish_via_partition_root = true)",
    )
    rows = rows_of(copy_of("t"))
    assert sorted(r["id"] for r in rows) == list(range(51, 100))
    assert set(rows[0]) == {"id", "region", "v"}


@pytest.mark.sampled
def test_odd_names(db: Database, copy_of: CopyOf) -> None:
    """Quotes, upper case, spaces, percent signs and letters of any script are names like others."""
    db.execute(
        'CREATE SCHEMA "Große ""Daten"""',
        'CREATE TABLE "Große ""Daten"""."Tab le" ("Ключ %s" int PRIMARY KEY, "sel""ect" text, "a.b" date[])',
        'INSERT INTO "Große ""Daten"""."Tab le" VALUES (1, $$x$$, $${2024-02-29}$$)',
        'CREATE PUBLICATION pub FOR TABLE "Große ""Daten"""."Tab le"',
    )
    rows = rows_of(copy_of("Tab le"))
    assert rows == [{"Ключ %s": 1, 'sel"ect': "x", "a.b": [datetime(2024, 2, 29).date()]}]


@pytest.mark.sampled
def test_values_are_those_of_the_stream(db: Database, copy_of: CopyOf) -> None:
    """Types that Arrow has not are PostgreSQL's own text, as the output function has it: no cast, no padding lost."""
    db.execute(
        "CREATE TYPE mood AS ENUM ('ok', 'so so')",
        "CREATE TYPE pair AS (a int, b text)",
        "CREATE TABLE t (id int, i inet, c char(5), m mood, p pair, e pair, iv interval, n numeric, d numeric(10,2),"
        " at timestamptz, b bool, by bytea, r int4range)",
        "INSERT INTO t VALUES (1, '1.2.3.4', 'ab', 'so so', '(1,\"x y\")', '(,)', '1 day 2 hours', 1e20, 12.5,"
        " '2024-01-02 03:04:05.000006+00', true, '\\x00ff', '[1,5)')",
        "INSERT INTO t (id) VALUES (2)",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    first, second = rows_of(copy_of("t"))
    assert first == {
        "id": 1,
        "i": "1.2.3.4",
        "c": "ab   ",
        "m": "so so",
        "p": '(1,"x y")',
        "e": "(,)",
        "iv": "1 day 02:00:00",
        "n": "100000000000000000000",
        "d": Decimal("12.50"),
        "at": datetime(2024, 1, 2, 3, 4, 5, 6, UTC),
        "b": True,
        "by": b"\x00\xff",
        "r": "[1,5)",
    }
    assert all(v is None for k, v in second.items() if k != "id")


@pytest.mark.sampled
def test_empty_table(db: Database, copy_of: CopyOf) -> None:
    """A table without rows, blocks or key gives no rows, and is complete."""
    db.execute("CREATE TABLE t (a int)", "CREATE PUBLICATION pub FOR TABLE t")
    copy = copy_of("t")
    assert rows_of(copy) == []
    assert copy.progress().percent == 100
    assert copy_of("t").batches().read_all().num_rows == 0


@pytest.mark.sampled
def test_rows_committed_between_plan_and_snapshot(db: Database, copy_of: CopyOf) -> None:
    """A table that was empty when its size was read loses nothing of what is in the snapshot."""
    db.execute("CREATE TABLE t (a int)", "CREATE PUBLICATION pub FOR TABLE t")
    copy = copy_of("t")
    db.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    later = copy_of("t")
    later.ranges = copy.ranges
    assert len(rows_of(later)) == 1000


def test_batches_and_spark_have_the_same_rows(db: Database, copy_of: CopyOf, runner: TaskRunner) -> None:
    """The reader in this process and the DataFrame hold what the partitions hold."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, at timestamp, d numeric(8,3), tags text[])",
        "INSERT INTO t SELECT g, 'v' || g, '2024-01-01'::timestamp + g * interval '1s', g / 8.0, ARRAY['a', NULL]"
        " FROM generate_series(1, 3000) g",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    expected = rows_of(copy_of("t"))
    here = copy_of("t")
    assert sorted(here.batches().read_all().to_pylist(), key=lambda r: str(r["id"])) == expected
    assert here.progress().rows == 3000
    if runner.spark is None:
        # A destination reads a DataFrame only if it asks for a session.
        with pytest.raises(NeedsOperator) as refused:
            copy_of("t").to_spark()
        assert refused.value.code == "spark_not_requested"
        assert "spark=True" in refused.value.hint
    else:
        frame = copy_of("t").to_spark()
        # Nothing of the connection, which may have a password, is in a query plan.
        assert not re.search("[A-Za-z0-9+/]{60}", frame._jdf.queryExecution().toString())
        assert sorted((r.asDict() for r in frame.collect()), key=lambda r: str(r["id"])) == expected
        db.execute("TRUNCATE t")
        assert copy_of("t").to_spark().count() == 0


def test_unrepresentable_values(db: Database, copy_of: CopyOf) -> None:
    """A value without a place stops the copy, names the column and the ways out, or is NULL and counted, or text."""
    db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, fine date, odd date)",
        "INSERT INTO t VALUES (1, '2024-01-01', 'infinity'), (2, '2024-01-02', '2024-01-02')",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    with pytest.raises(Unrepresentable) as raised:
        rows_of(copy_of("t"))
    assert "odd" in raised.value.message
    assert "fine" not in raised.value.message
    assert raised.value.hint == (
        "give the column the type Text in columns.types of the table's TableSync, or "
        'set spec.onUnrepresentable to "Null" (in quotes), which copies tables again: levada plan MANIFEST'
        " lists them. Or change the values, then: levada retry MANIFEST public.t"
    )
    nulled = copy_of("t", policy=OnUnrepresentable.NULL)
    assert [r["odd"] for r in rows_of(nulled)] == [None, datetime(2024, 1, 2).date()]
    assert nulled.progress().unrepresentable == 1
    text = copy_of("t", policy=OnUnrepresentable.TEXT)
    assert [r["odd"] for r in rows_of(text)] == ["infinity", "2024-01-02"]


@pytest.mark.sampled
def test_no_policy_makes_a_key_null(db: Database, copy_of: CopyOf) -> None:
    """Rows whose keys have no place in their type would be one row: they stop the copy also under Null."""
    db.execute(
        "CREATE TABLE t (day date PRIMARY KEY)",
        "INSERT INTO t VALUES ('infinity'), ('-infinity')",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    with pytest.raises(Unrepresentable) as raised:
        rows_of(copy_of("t", policy=OnUnrepresentable.NULL))
    assert "Null" not in raised.value.hint
    text = copy_of("t", policy=OnUnrepresentable.TEXT)
    assert sorted(r["day"] for r in rows_of(text)) == ["-infinity", "infinity"]


def test_errors_keep_their_type(db: Database, copy_of: CopyOf) -> None:
    """A task's exception arrives unchanged: Levada's errors with code and hint, others with their trace."""
    db.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "CREATE PUBLICATION pub FOR TABLE t")

    def refuse(reader: pa.RecordBatchReader) -> None:
        raise NeedsOperator("lake_full", "no space", hint="buy a disk")

    with pytest.raises(NeedsOperator) as raised:
        copy_of("t").map_partitions(refuse)
    assert (raised.value.code, raised.value.hint) == ("lake_full", "buy a disk")

    def fail(reader: pa.RecordBatchReader) -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError) as other:
        copy_of("t").map_partitions(fail)
    assert "in fail" in other.value.__notes__[0]


def test_a_changed_table_is_copied_again(db: Database, copy_of: CopyOf) -> None:
    """A column that is no longer there under its name is no error of the table: the copy is retried."""
    db.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "CREATE PUBLICATION pub FOR TABLE t")
    copy = copy_of("t")
    db.execute("ALTER TABLE t RENAME COLUMN id TO other")
    with pytest.raises(Transient) as raised:
        rows_of(copy)
    assert raised.value.code == "table_changed"


def test_transient_failures_are_tried_again(db: Database, copy_of: CopyOf, tmp_path: Path) -> None:
    """A range whose task failed with Transient is read again, and counts once."""
    db.execute(
        "CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1, 10)", "CREATE PUBLICATION pub FOR TABLE t"
    )
    marker = tmp_path / "failed-once"

    def fail_once(reader: pa.RecordBatchReader) -> int:
        rows = reader.read_all().num_rows
        if not marker.exists():
            marker.touch()
            raise Transient("connection_cut", "once")
        return rows

    copy = copy_of("t")
    assert copy.map_partitions(fail_once) == [10]
    assert copy.progress().rows == 10


def test_snapshot_that_is_gone_is_not_tried_again(db: Database, copy_of: CopyOf) -> None:
    """When the holder of the snapshot is gone, the whole copy must restart: Transient ``snapshot_gone``."""
    db.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "CREATE PUBLICATION pub FOR TABLE t")
    copy = copy_of("t")
    db.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE database = %s", db.name)
    with db.connect() as c:
        slots = "SELECT 1 FROM pg_replication_slots WHERE database = %s"
        until(lambda: not c.execute(slots, [db.name]).fetchone())
    with pytest.raises(Transient) as raised:
        rows_of(copy)
    assert raised.value.code == "snapshot_gone"


@nightly_in_spark
def test_cancel_ends_a_copy_that_hangs(db: Database, copy_of: CopyOf, tmp_path: Path) -> None:
    """Setting the event ends a copy whose tasks would never end, and leaves no connection of it."""
    db.execute("CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)", "CREATE PUBLICATION pub FOR TABLE t")
    cancelled = threading.Event()
    begun = tmp_path / "begun"

    def hang(reader: pa.RecordBatchReader) -> None:
        reader.read_next_batch()
        begun.touch()
        threading.Event().wait()

    copy = copy_of("t", cancelled=cancelled)
    raised: list[BaseException] = []

    def run() -> None:
        try:
            copy.map_partitions(hang)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    until(begun.exists, alive=thread.is_alive, report=lambda: repr(raised))
    cancelled.set()
    thread.join(LIMIT_S)
    assert not thread.is_alive()
    assert isinstance(raised[0], Transient)
    assert raised[0].code == "copy_cancelled"
    with db.connect() as c:
        mine = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'levada:copy' AND datname = %s"
        until(lambda: c.execute(mine, [db.name]).fetchone(), lambda found: found == (0,))


@pytest.mark.sampled
def test_connections_are_bounded(db: Database, copy_of: CopyOf) -> None:
    """With one connection, no two ranges are read at the same time, whatever Spark has slots for."""
    db.execute(
        "CREATE TABLE t (id bigint, pad text)",
        "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 3000) g",
        "CREATE PUBLICATION pub FOR TABLE t",
    )
    uri = db.uri

    def busy(reader: pa.RecordBatchReader) -> int:
        import psycopg

        reader.read_next_batch()
        with psycopg.connect(uri, autocommit=True) as c:
            # The server's process for the range before may still be ending. One that is being read stays.
            sessions = (
                "SELECT count(*) FROM pg_stat_activity"
                " WHERE application_name = 'levada:copy' AND datname = current_database()"
            )
            return until(lambda: c.execute(sessions).fetchall()[0][0], lambda count: count == 1)

    copy = copy_of("t", connections=1, limits=RangeLimits(64 << 10, 64 << 10))
    assert len(copy.ranges) > 3
    assert set(copy.map_partitions(busy)) == {1}


@pytest.mark.sampled
def test_results_can_be_files(db: Database, copy_of: CopyOf, tmp_path: Path) -> None:
    """The use it is made for: each task writes a file and returns its description."""
    db.execute(
        "CREATE TABLE t (id int)", "INSERT INTO t SELECT generate_series(1, 100)", "CREATE PUBLICATION pub FOR TABLE t"
    )
    folder = str(tmp_path)

    def write(reader: pa.RecordBatchReader) -> str:
        path = f"{folder}/part.parquet"
        with parquet.ParquetWriter(path, reader.schema) as writer:
            for batch in reader:
                writer.write_batch(batch)
        return path

    [path] = copy_of("t").map_partitions(write)
    assert parquet.read_table(path).num_rows == 100
