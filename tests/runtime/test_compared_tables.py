"""A lost slot whose policy is Compare: each table is compared with the source, and only what differs is written."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rigs.pipeline import reach
from tests.rigs.replicated import Replicated, replicated
from tests.rigs.waiting import until

from levada.runtime.config import TableConfig
from levada.status import Progress, RetryPolicy
from levada.values import CopyMode, QualifiedTable

__all__ = ["replicated"]

TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v text, long text)",
    "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
    "INSERT INTO t SELECT g, 'v', repeat('w', 9000) FROM generate_series(1, 100) g",
    "CREATE TABLE quiet (id int PRIMARY KEY)",
    "INSERT INTO quiet SELECT generate_series(1, 10)",
)
GAP = (
    "UPDATE t SET v = 'new' WHERE id <= 10",
    "DELETE FROM t WHERE id BETWEEN 11 AND 20",
    "UPDATE t SET id = id + 1000 WHERE id BETWEEN 21 AND 30",
    "INSERT INTO t VALUES (101, 'v', repeat('x', 9000))",
)
"""Changes of every kind that no slot has kept. 10 + 10 + 2 * 10 + 1 keys differ after them."""


def lose_slot(replicated: Replicated) -> None:
    """Drop the slot of a pipeline that does not run, and change the source afterwards."""
    assert replicated.pipeline is not None
    replicated.pipeline.stop()
    replicated.db.execute(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
    )
    replicated.db.execute(*GAP)


def versions(replicated: Replicated, name: str = "t") -> set[Any]:
    """Return the versions of the rows at the destination: a row that is written again gets another one."""
    return set(replicated.replica.query(f"SELECT id, xmin::text FROM shop_public.{name}"))  # type: ignore[arg-type]


def assert_equal(replicated: Replicated) -> None:
    """Assert that both tables have the source's rows."""
    for name in ("t", "quiet"):
        query = f"SELECT x::text FROM {{}}{name} x ORDER BY 1"
        here, there = query.format("shop_public."), query.format("")
        assert replicated.replica.query(here) == replicated.db.query(there)  # type: ignore[arg-type]


def waits(progress: Progress) -> bool:
    """Return True if both tables wait for their comparison."""
    return [t.error.code for t in progress.tables if t.error] == ["comparison_pending"] * 2


def test_only_rows_that_differ_are_written(replicated: Replicated) -> None:
    """Changes of every kind that were missed are written. A row that did not change keeps its version: no copy."""
    replicated.db.execute(*TABLES)
    replicated.start(compare=True)
    rows, quiet = versions(replicated), versions(replicated, "quiet")
    lose_slot(replicated)
    replicated.start(compare=True)
    assert_equal(replicated)
    assert len(rows - versions(replicated)) == 30
    assert versions(replicated, "quiet") == quiet
    # A large value that did not change is not in the stream, and comes from the repaired row.
    replicated.db.execute("UPDATE t SET v = 'later' WHERE id > 90", "DELETE FROM t WHERE id = 101")
    replicated.wait_caught_up()
    assert_equal(replicated)
    assert replicated.verify().equal


def test_a_pending_comparison_outlives_the_process(replicated: Replicated) -> None:
    """Until its comparison a table stays parked, through restarts and retries. Its changes are staged."""
    replicated.db.execute(*TABLES)
    replicated.start(compare=True)
    rows = versions(replicated)
    lose_slot(replicated)
    with replicated.db.connect() as writer, writer.transaction():
        # No snapshot is made while a transaction that writes is open.
        replicated.start(wait=False, compare=True)
        pipeline = replicated.pipeline
        assert pipeline is not None
        reach(pipeline, waits)
        writer.execute("INSERT INTO quiet VALUES (11)")
        pipeline.stop()
        replicated.start(wait=False, compare=True)
        pipeline = replicated.pipeline
        reach(pipeline, waits)
        assert len(pipeline.retry()) == 2
        reach(pipeline, waits)
        assert versions(replicated) == rows
    replicated.wait_caught_up()
    assert_equal(replicated)
    assert len(rows - versions(replicated)) == 30


@pytest.mark.parametrize("policy", ["resync", "compare"])
def test_a_table_that_is_not_copied_keeps_its_rows(replicated: Replicated, policy: str) -> None:
    """The stream has brought them, and a copy would leave them out: the table is parked until a resync is requested."""
    part = {"tables": {QualifiedTable("public", "t"): TableConfig(copy_mode=CopyMode.NONE)}}
    replicated.db.execute(*TABLES)
    replicated.start(**{policy: True}, **part)
    replicated.db.execute("INSERT INTO t SELECT g, 'v', '' FROM generate_series(200, 209) g")
    replicated.wait_caught_up()
    rows = versions(replicated)
    assert len(rows) == 10
    lose_slot(replicated)
    for _ in range(2):
        replicated.start(wait=False, **{policy: True}, **part)
        pipeline = replicated.pipeline
        assert pipeline is not None
        found = reach(pipeline, lambda p: [t.phase for t in p.tables] == ["Ready", "Errored"])
        [error] = [t.error for t in found.tables if t.error]
        assert (error.code, error.retry_policy) == ("slot_lost", RetryPolicy.NO_RETRY)
        assert "levada resync MANIFEST public.t" in error.solution
        assert versions(replicated) == rows
        pipeline.stop()


@pytest.mark.nightly
def test_a_slot_lost_while_running(replicated: Replicated) -> None:
    """The running pipeline makes another slot, compares its tables, and goes on without a restart."""
    replicated.db.execute(*TABLES)
    replicated.start(compare=True)
    rows, pipeline = versions(replicated), replicated.pipeline
    assert pipeline is not None

    def lose() -> bool:
        with replicated.db.connect() as session:
            session.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
            found = session.execute(
                "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots"
                " WHERE database = current_database() AND NOT active AND NOT temporary"
            )
            return found.rowcount == 1

    until(lose, bool)
    replicated.db.execute(*GAP)
    until(lambda: replicated.replica.query("SELECT count(*) FROM shop_public.t WHERE id = 101"), lambda n: n == [(1,)])
    replicated.wait_caught_up()
    assert_equal(replicated)
    assert len(rows - versions(replicated)) == 30


@pytest.mark.nightly
def test_all_tables_in_one_call(replicated: Replicated) -> None:
    """A destination that gets all tables in one call waits for the comparisons of all, and goes on with each change."""
    replicated.db.execute(*TABLES)
    replicated.start("Pipeline", compare=True)
    rows = versions(replicated)
    lose_slot(replicated)
    replicated.db.execute("INSERT INTO quiet VALUES (11)")
    replicated.start("Pipeline", compare=True)
    replicated.db.execute("INSERT INTO quiet VALUES (12)", "UPDATE t SET v = 'later' WHERE id > 90")
    replicated.wait_caught_up()
    assert_equal(replicated)
    assert len(rows - versions(replicated)) == 30 + 10


@pytest.mark.nightly
def test_tables_that_have_no_key(replicated: Replicated) -> None:
    """A table without a key, whose destination keeps every change, is copied again, although its rows are equal."""
    replicated.db.execute(*TABLES, "CREATE TABLE log (line text)", "ALTER TABLE log REPLICA IDENTITY FULL")
    replicated.db.execute("INSERT INTO log VALUES ('a'), ('a')")
    replicated.start(compare=True)
    lose_slot(replicated)
    replicated.start(wait=False, compare=True)
    assert replicated.pipeline is not None
    reach(replicated.pipeline, lambda p: [t.phase for t in p.tables] == ["Ready"] * 3)
    replicated.db.execute("INSERT INTO log VALUES ('b')")
    replicated.wait_caught_up()
    assert_equal(replicated)
    assert replicated.replica.query("SELECT line FROM shop_public.log ORDER BY 1") == [("a",), ("a",), ("b",)]


@pytest.mark.nightly
def test_partitions_that_were_exchanged(replicated: Replicated) -> None:
    """Partitions that left, came or were emptied without a slot: the table equals the source, and stays so."""
    replicated.db.execute(
        *TABLES,
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE p2 PARTITION OF parts FOR VALUES FROM (100) TO (200)",
        "CREATE TABLE p3 PARTITION OF parts FOR VALUES FROM (200) TO (300)",
        "INSERT INTO parts SELECT g, 'v' FROM generate_series(1, 299) g",
    )
    replicated.start(compare=True)
    lose_slot(replicated)
    replicated.db.execute(
        "ALTER TABLE parts DETACH PARTITION p1",
        "CREATE TABLE p1b (id int PRIMARY KEY, v text)",
        "INSERT INTO p1b SELECT g, 'b' FROM generate_series(1, 50) g",
        "ALTER TABLE parts ATTACH PARTITION p1b FOR VALUES FROM (0) TO (100)",
        "TRUNCATE p2",
        "INSERT INTO parts VALUES (150, 'after')",
        "DROP TABLE p3",
        "DROP TABLE p1",
    )
    replicated.start(wait=False, compare=True)
    assert replicated.pipeline is not None
    reach(replicated.pipeline, lambda p: [t.phase for t in p.tables] == ["Ready"] * 3)
    replicated.db.execute("INSERT INTO parts VALUES (60, 'later')", "UPDATE parts SET v = 'u' WHERE id = 3")
    replicated.wait_caught_up()
    query = "SELECT id, v FROM {}parts ORDER BY 1"
    expected = replicated.db.query(query.format(""))  # type: ignore[arg-type]
    assert len(expected) == 52
    assert replicated.replica.query(query.format("shop_public.")) == expected  # type: ignore[arg-type]


@pytest.mark.sampled
@pytest.mark.parametrize(
    "change",
    [
        pytest.param("ALTER TABLE t ADD added int DEFAULT 7", id="columns"),
        pytest.param("TRUNCATE t", id="truncated"),
        pytest.param("ALTER TABLE t ALTER v TYPE varchar(99), ALTER id TYPE bigint", id="types"),
    ],
)
def test_a_table_that_cannot_be_compared_is_copied(replicated: Replicated, change: str) -> None:
    """A table whose columns changed in the gap, or that was emptied, is equal afterwards. The other one stays."""
    replicated.db.execute(*TABLES)
    replicated.start(compare=True)
    quiet = versions(replicated, "quiet")
    lose_slot(replicated)
    replicated.db.execute(change)  # type: ignore[arg-type]  # of a parameter
    replicated.start(wait=False, compare=True)
    pipeline = replicated.pipeline
    assert pipeline is not None
    reach(pipeline, lambda p: [t.phase for t in p.tables] == ["Ready", "Ready"])
    replicated.wait_caught_up()
    assert_equal(replicated)
    assert versions(replicated, "quiet") == quiet
