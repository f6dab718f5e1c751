"""Verification of tables while their pipeline runs."""

from __future__ import annotations

import threading

import pytest
from tests.rigs.verified_shop import Shop
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import NeedsOperator, Transient
from levada.runtime.stages.messages import TableFailed
from levada.runtime.verifications.messages import HoldReleased
from levada.runtime.verifications.moment import Release
from levada.values import Lsn, QualifiedTable
from levada.verify.differences import Kind
from levada.verify.report import TableReport


def test_equal_tables_are_equal(shop: Shop) -> None:
    """A table that was copied and then changed equals the source, with the number of its rows."""
    shop.db.execute(
        "CREATE TABLE t (id bigint PRIMARY KEY, item text)",
        "INSERT INTO t SELECT g, 'v' || g FROM generate_series(1, 3000) g",
    )
    shop.start()
    shop.wait_caught_up()
    shop.db.execute(
        "UPDATE t SET item = NULL WHERE id = 7", "DELETE FROM t WHERE id > 2990", "UPDATE t SET id = -id WHERE id = 8"
    )
    report = shop.verify()
    assert report.equal, report
    assert (report.source_rows, report.lake_rows) == (2990, 2990)
    shop.sql("UPDATE {t} SET item = 'theirs' WHERE id = 5")
    report = shop.verify()
    assert report.counts[Kind.CHANGED] == 1
    assert report.to_json()["examples"] == [{"kind": "changed", "key": {"id": "5"}, "columns": ["item"]}]
    assert shop.pipeline is not None
    told = shop.wait(lambda p: p.tables[0].verified is not None and not p.tables[0].verified.equal)
    verified = told.tables[0].verified
    assert verified is not None
    assert (verified.lsn, verified.rows, verified.differences) == (report.lsn, 2990, 1)
    report = shop.verify(show_values=True)
    assert report.to_json()["examples"][0]["values"] == {"item": {"source": "v5", "destination": "theirs"}}


@pytest.mark.nightly
def test_odd_names(shop: Shop) -> None:
    """Names that are keywords, parts of the statements or need quotes are names like any other."""
    shop.db.execute(
        "CREATE TYPE pair AS (a int, b text)",
        'CREATE TABLE t ("select" int, "a.b" text, "c`d" text, "e""f" text, "i" pair[], "e" text[], "f0" int,'
        ' "key_hash" int, shown text, "%s {x}" text, "Ünï" text, path text,'
        ' PRIMARY KEY ("e""f", "select"))',
        """INSERT INTO t SELECT g, 'x', 'y', 'it''s "' || g, ARRAY[ROW(g, NULL)::pair], ARRAY['z', NULL], g, g,
        's', 'p', 'u', 'p' FROM generate_series(1, 40) g""",
    )
    shop.start()
    shop.wait_caught_up()
    report = shop.verify()
    assert report.equal, report
    shop.sql("UPDATE {t} SET `a.b` = 'theirs' WHERE `select` = 3")
    report = shop.verify()
    assert report.to_json()["examples"] == [
        {"kind": "changed", "key": {'e"f': "it's \"3", "select": "3"}, "columns": ["a.b"]}
    ]
    assert shop.verify(repair=True).repaired_equal


@pytest.mark.nightly
def test_nothing_is_left_behind(shop: Shop) -> None:
    """A verification removes its tag, that of a killed verification, and its slots."""
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop.start()
    shop.wait_caught_up()
    shop.sql("ALTER TABLE {t} CREATE TAG `levada-verify-1`; ALTER TABLE {t} CREATE TAG theirs")
    assert shop.verify().equal
    assert {row.name for row in shop.sql("SELECT name FROM {t}.refs")} == {"main", "theirs"}
    slots = shop.db.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(f"levada_{shop.db.name}",)]


@pytest.mark.nightly
def test_a_long_transaction_holds_no_table(shop: Shop) -> None:
    """A verification waits for a transaction that was open before it. The table applies changes meanwhile."""
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    shop.start()
    shop.wait_caught_up()
    reports: list[TableReport] = []
    with shop.db.connect() as long:
        with long.transaction():
            long.execute("INSERT INTO t VALUES (2)")
            thread = threading.Thread(target=lambda: reports.append(shop.verify()))
            thread.start()
            creating = "starts_with(query, 'CREATE_REPLICATION_SLOT') AND state = 'active'"
            until(lambda: shop.db.query(f"SELECT FROM pg_stat_activity WHERE {creating}"))
            shop.db.execute("INSERT INTO t VALUES (3)")
            shop.wait_caught_up()
            assert [row.id for row in shop.sql("SELECT id FROM {t} ORDER BY id")] == [1, 3]
            assert not reports
        thread.join()
    assert [(r.equal, r.source_rows) for r in reports] == [(True, 3)]


@pytest.mark.nightly
def test_a_table_that_is_parked_meanwhile_is_reported_as_parked(shop: Shop) -> None:
    """If a table is parked between the hold and the cut, the comparison begins again and names the error."""
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 50)")
    shop.start()
    shop.wait_caught_up()
    pipeline = shop.pipeline
    assert pipeline is not None
    assert pipeline._replication is not None
    verifier, name = pipeline._replication.verifier, QualifiedTable("public", "t")
    held = verifier._hold(name, threading.Event())
    assert held.parked == ""
    failed = TableFailed(held.table, NeedsOperator("staging_full", "the guard parks it"))
    pipeline._inbox.ask(failed).answer.result(LIMIT_S)
    release = Release(lambda: verifier.inbox.put(HoldReleased(held.table, repaired=False)), LIMIT_S)
    with pytest.raises(Transient) as again:
        verifier._reach(held.table, name, Lsn(1), release, threading.Event())
    assert again.value.code == "table_changed"
    release.now()
    shop.db.execute("INSERT INTO t VALUES (51)")
    report = shop.verify()
    assert report.parked == "staging_full"
    assert report.differences == 1
