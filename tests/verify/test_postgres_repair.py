"""The repair of tables in PostgreSQL: odd keys and values, several passes, and an end in the middle."""

from __future__ import annotations

import threading
from typing import Any, LiteralString

import psycopg
import pytest
from tests.rigs.limits import PATIENT
from tests.rigs.pipeline import HELD, reach
from tests.rigs.replicated import Replicated, replicated
from tests.rigs.table_writers import delete_some, insert_some, update_some, writers
from tests.rigs.waiting import LIMIT_S, until

from levada.destinations.postgres import PostgresDestination
from levada.errors import LevadaError, Transient
from levada.verify.report import TableReport
from levada.verify.table import CompareLimits

__all__ = ["replicated"]


def assert_same(replicated: Replicated, row: LiteralString = "t::text") -> None:
    """Assert that the rows of both sides have the same text."""
    there = replicated.db.query(f"SELECT {row} FROM t ORDER BY 1")
    assert replicated.replica.query(f"SELECT {row} FROM shop_public.t ORDER BY 1") == there


@pytest.mark.nightly
def test_keys_that_are_equal_and_have_another_text(replicated: Replicated) -> None:
    """A row keeps its place if another writer wrote its key with other digits, also one that others refer to."""
    replicated.db.execute(
        "CREATE TABLE t (k float8, n numeric, v text, PRIMARY KEY (k, n))",
        "INSERT INTO t VALUES ('-0', '1.0', 'a'), ('NaN', 'NaN', 'b'), ('Infinity', '-1.50', 'c'), ('-0', '0', 'd')",
    )
    replicated.start()
    replicated.damage("CREATE TABLE of_t (k float8, n numeric, FOREIGN KEY (k, n) REFERENCES t)")
    replicated.damage("INSERT INTO of_t VALUES (0, 1)")
    replicated.damage("UPDATE t SET k = '0', n = '1.000' WHERE v = 'a'")
    replicated.damage("UPDATE t SET n = 'Infinity' WHERE v = 'b'")
    replicated.damage("UPDATE t SET n = '-1.5', v = '' WHERE v = 'c'")
    assert replicated.verify(repair=True).repaired_equal
    assert_same(replicated)


def test_text_that_a_format_could_mistake(replicated: Replicated) -> None:
    """Keys and values that look like NULL, an escape, the end of data or a frame are written as they are."""
    replicated.db.execute(
        "CREATE TABLE t (k text PRIMARY KEY, v text, a text[], b bytea)",
        r"""INSERT INTO t VALUES ('', '', NULL, NULL), ('~|', '0:|', ARRAY['0:|'], '\x'),
        (E'\\N', E'\\.', ARRAY[E'\\N', NULL, '', '{}', '"'], '\x00'), (E'\\x00', E'a\tb\nc\r', '{}', ''),
        (E'\u0001', E'\\000', ARRAY['NULL', 'null'], '\x5c4e'), (E'a"b''c,d', E'\u00e9|', ARRAY[E'\n'], '\x0a')""",
    )
    replicated.start()
    for statement in (
        "UPDATE t SET v = NULLIF(v, ''), a = NULL, b = coalesce(b, '')",
        "UPDATE t SET k = k || ' '",
        "DELETE FROM t",
    ):
        replicated.damage(statement)
        assert replicated.verify(repair=True).repaired_equal
        assert_same(replicated)


def test_the_passes_of_a_repair_are_counted(replicated: Replicated) -> None:
    """Each step says how many there are in all, and not how many are left."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 3000) g"
    )
    replicated.start()
    replicated.damage("UPDATE t SET v = NULL")
    steps: list[str] = []
    limits = CompareLimits(repaired_rows=1200)
    assert replicated.verify(repair=True, told=steps.append, limits=limits).repaired_equal
    assert_same(replicated)
    assert any(step.startswith("pass 2 of 3: writing") for step in steps), steps


def test_a_repair_that_ends_in_the_middle(replicated: Replicated, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows that it wrote stay, and the next process applies the changes since, whose long values are unchanged."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, long text)",
        "ALTER TABLE t ALTER long SET STORAGE EXTERNAL",
        "INSERT INTO t SELECT g, 'v', repeat('w', 9000) FROM generate_series(1, 200) g",
    )
    replicated.start()
    replicated.damage("UPDATE t SET v = 'x', long = 'x' WHERE id < 100; DELETE FROM t WHERE id > 150")

    def killed(*_: Any) -> None:
        raise Transient("verify_cancelled", "killed before the watermark is written")

    with monkeypatch.context() as patched:
        patched.setattr(PostgresDestination, "accept_repair", killed)
        with pytest.raises(Transient, match="killed before"):
            replicated.verify(repair=True)
    assert replicated.pipeline is not None
    replicated.pipeline.stop()
    replicated.db.execute("UPDATE t SET v = 'new' WHERE id > 90", "DELETE FROM t WHERE id = 5")
    replicated.start()
    assert_same(replicated)
    assert replicated.verify().equal


def test_a_repair_that_ends_in_the_middle_of_foreign_writes(
    replicated: Replicated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard that it has put back does not hide that rows which it has not written yet may differ."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 200) g"
    )
    replicated.start()
    replicated.damage("ALTER TABLE t DISABLE TRIGGER levada_guard; UPDATE t SET v = 'x' WHERE id < 100")

    def killed(*_: Any) -> None:
        raise Transient("verify_cancelled", "killed before any row is written")

    with monkeypatch.context() as patched:
        patched.setattr("levada.destinations.postgres.destination.repair_rows", killed)
        with pytest.raises(Transient, match="killed before"):
            replicated.verify(repair=True)
    assert replicated.pipeline is not None
    replicated.pipeline.stop()
    replicated.start(wait=False)
    parked = reach(replicated.pipeline, lambda p: p.tables and p.tables[0].error).tables[0].error
    assert parked is not None
    assert parked.code == "foreign_write"
    assert replicated.verify(repair=True).repaired_equal
    replicated.db.execute("UPDATE t SET v = 'new' WHERE id > 90")
    replicated.wait_caught_up()
    assert_same(replicated)


@pytest.mark.nightly
def test_two_repairs_together(replicated: Replicated) -> None:
    """One waits for the other, and finds nothing. Both delete more rows than a statement does."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT generate_series(1, 50)")
    replicated.start()
    replicated.damage("INSERT INTO t SELECT generate_series(100, 25099); DELETE FROM t WHERE id = 7")
    outcomes: list[TableReport | LevadaError] = []

    def repair() -> None:
        try:
            outcomes.append(replicated.verify(repair=True))
        except LevadaError as error:
            outcomes.append(error)

    threads = [threading.Thread(target=repair) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    reports = [outcome for outcome in outcomes if isinstance(outcome, TableReport)]
    assert sorted((r.repaired, r.equal or r.repaired_equal) for r in reports) == [(0, True), (25_001, True)], outcomes
    assert_same(replicated)


def test_a_parked_table_goes_on_after_its_repair(replicated: Replicated) -> None:
    """Its guard is there again, and the changes that it had not applied are not lost."""
    replicated.db.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t SELECT g, 'v' FROM generate_series(1, 300) g"
    )
    replicated.start()
    replicated.damage("DROP TRIGGER levada_guard ON t; UPDATE t SET v = 'theirs' WHERE id < 9")
    replicated.db.execute("INSERT INTO t VALUES (1000, 'new')", "UPDATE t SET id = 2000 WHERE id = 20")
    pipeline = replicated.pipeline
    assert pipeline is not None
    until(lambda: any(t.error is not None for t in pipeline.progress().tables))
    assert replicated.verify(repair=True).repaired_equal
    found = pipeline.progress()  # paced: a verification that has returned is in the progress
    assert found.tables[0].error is None, "an application that looks at once still sees the error"
    replicated.db.execute("INSERT INTO t VALUES (1001, 'new')")
    replicated.wait_caught_up()
    assert_same(replicated)


def test_a_parked_table_that_is_equal_goes_on_after_its_repair(replicated: Replicated) -> None:
    """There is no row to write, as after a repair that was killed before its end. The table has its guard again."""
    replicated.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 9)")
    replicated.start(default_table=HELD)
    replicated.damage("DROP TRIGGER levada_guard ON t")
    replicated.db.execute("INSERT INTO t VALUES (10)")
    assert replicated.pipeline is not None
    reach(replicated.pipeline, lambda p: any(t.is_parked for t in p.tables))
    replicated.damage("INSERT INTO t VALUES (10)")
    report = replicated.verify(repair=True)
    assert (report.equal, report.repaired) == (True, 0)
    replicated.db.execute("INSERT INTO t VALUES (11)")
    replicated.wait_caught_up()
    assert_same(replicated)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        replicated.replica.execute("DELETE FROM shop_public.t")


@pytest.mark.nightly
@pytest.mark.parametrize("ordering", ["Table", "Pipeline"])
def test_a_table_that_is_written_while_it_is_repaired(replicated: Replicated, ordering: str) -> None:
    """It is equal afterwards, also with the changes that waited for the repair."""
    replicated.db.execute(
        "CREATE TABLE t (id bigint GENERATED BY DEFAULT AS IDENTITY PRIMARY KEY, item text, v int DEFAULT 0)",
        "INSERT INTO t (item) SELECT 'v' || g FROM generate_series(1, 2000) g",
    )
    replicated.start(ordering, limits=PATIENT)
    with writers(replicated.db, insert_some, update_some, delete_some):
        for statement in (
            "UPDATE t SET item = 'x' WHERE id % 3 = 0",
            "DELETE FROM t WHERE id % 5 = 0",
            "DELETE FROM t",
        ):
            replicated.damage(statement)
            assert replicated.verify(repair=True).repaired_equal
    replicated.wait_caught_up()
    assert_same(replicated)
