"""Verifications that are ended, or overtaken by a copy, while they wait or read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from tests.rigs.database import Database
from tests.rigs.verified_shop import Shop
from tests.rigs.waiting import LIMIT_S, until

from levada.copy.guard import LockLimits
from levada.destinations.verification import Comparison
from levada.errors import Transient
from levada.runtime.config import TableConfig
from levada.runtime.limits import Limits
from levada.values import QualifiedTable
from levada.verify.table import VerifyOptions

COMPUTING = "starts_with(query, 'COPY (SELECT 1') AND state = 'active'"
T = QualifiedTable("public", "t")


def prepare(shop: Shop) -> None:
    """Make a table, and start."""
    shop.db.execute("CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t SELECT generate_series(1, 100), 'a'")
    shop.start()
    shop.wait_caught_up()


def sessions(db: Database, condition: str) -> int:
    """Return the number of other sessions of the database."""
    [(found,)] = db.query(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND "
        + condition  # type: ignore[operator]  # a constant of a test
    )
    return int(found)


@contextmanager
def verifying(shop: Shop, outcome: list[object]) -> Iterator[threading.Event]:
    """Verify in a thread during the block, and wait for its end. Yield the event that cancels it."""
    assert shop.pipeline is not None
    assert shop.pipeline._replication is not None
    verifier, cancelled = shop.pipeline._replication.verifier, threading.Event()

    def run() -> None:
        try:
            outcome.append(verifier.run(T, VerifyOptions(), cancelled))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield cancelled
    except BaseException:
        cancelled.set()
        raise
    finally:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def was_cancelled(outcome: list[object]) -> bool:
    """Return True if the verification ended by its cancellation."""
    return len(outcome) == 1 and isinstance(outcome[0], Transient) and outcome[0].code == "verify_cancelled"


@pytest.mark.nightly
def test_a_cancellation_does_not_wait_for_a_transaction(shop: Shop) -> None:
    """It ends while a transaction is open, and leaves no slot and no session behind. The table goes on."""
    prepare(shop)
    outcome: list[object] = []
    with shop.db.connect() as long, long.transaction():
        long.execute("INSERT INTO t VALUES (1000, 'x')")
        with verifying(shop, outcome) as cancelled:
            creating = "starts_with(query, 'CREATE_REPLICATION_SLOT') AND state = 'active'"
            until(lambda: sessions(shop.db, creating))
            cancelled.set()
        assert was_cancelled(outcome)
        until(lambda: not sessions(shop.db, creating))
        slots = shop.db.query("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
        assert slots == [(f"levada_{shop.db.name}",)]
    assert shop.verify().equal


def test_a_cancellation_ends_the_statement_at_the_source(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stops to compute checksums, so that it does not keep the table's lock until they are complete."""
    prepare(shop)
    monkeypatch.setattr("levada.destinations.checksum_sql.ChecksumSql.chunks", lambda *_: "SELECT 1, 1, pg_sleep(600)")
    outcome: list[object] = []
    with verifying(shop, outcome) as cancelled:
        until(lambda: sessions(shop.db, COMPUTING))
        cancelled.set()
    assert was_cancelled(outcome)
    until(lambda: not sessions(shop.db, COMPUTING))


@pytest.mark.nightly
def test_an_exclusive_lock_ends_the_statement_at_the_source(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ALTER TABLE waits for no longer than for a copy. The comparison begins again after it."""
    shop.config["limits"] = Limits(locks=LockLimits(blocked_s=1.0))
    prepare(shop)
    chunks = "levada.destinations.checksum_sql.ChecksumSql.chunks"
    with monkeypatch.context() as slowly:
        slowly.setattr(chunks, lambda *_: "SELECT 1, 1, pg_sleep(600) FROM public.t")
        outcome: list[object] = []
        with verifying(shop, outcome):
            until(lambda: sessions(shop.db, COMPUTING))
            slowly.undo()
            with shop.db.connect() as connection:
                connection.execute("SET statement_timeout = '60s'")
                connection.execute("ALTER TABLE t ADD COLUMN b int")
    assert getattr(outcome[0], "equal", False), outcome


@pytest.mark.nightly
def test_a_result_of_an_earlier_copy_is_not_recorded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the table is copied again while it is compared, the comparison begins again."""
    prepare(shop)
    shop.sql("DELETE FROM {t} WHERE id = 5")
    from levada.runtime.verifications import verifier

    compare, compared, copied = verifier.compare, threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        found = compare(*arguments)
        compared.set()
        assert copied.wait(LIMIT_S)
        return found

    monkeypatch.setattr(verifier, "compare", slowly)
    outcome: list[object] = []
    with verifying(shop, outcome):
        assert compared.wait(LIMIT_S)
        assert shop.pipeline is not None
        shop.pipeline.reconfigure(replace(shop.pipeline.config, tables={T: TableConfig(resync_nonce=1)}))
        shop.wait(lambda p: p.tables[0].resync_nonce == 1 and p.tables[0].resync is None)
        copied.set()
    assert getattr(outcome[0], "equal", False), outcome
    verified = shop.wait(lambda p: p.tables[0].verified is not None).tables[0].verified
    assert verified is not None
    assert verified.equal


@pytest.mark.nightly
def test_a_snapshot_that_another_writer_removed(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its missing files are no damage of the table. The comparison begins again with the current snapshot."""
    prepare(shop)
    from levada.destinations.iceberg.fixed_table import IcebergSnapshot

    chunks, removed = IcebergSnapshot.chunks, threading.Event()

    def after_removal(self: IcebergSnapshot, comparison: Comparison) -> pa.Table:
        if not removed.is_set():
            removed.set()
            [tag] = [r.name for r in shop.sql("SELECT name FROM {t}.refs") if r.name != "main"]
            shop.db.execute("UPDATE t SET a = 'b' WHERE id > 50")
            shop.wait_caught_up()
            shop.sql(
                f"ALTER TABLE {{t}} DROP TAG `{tag}`;"
                "CALL {c}.system.rewrite_data_files(table => {p}, options => map('rewrite-all', 'true'));"
                "CALL {c}.system.expire_snapshots(table => {p}, older_than => TIMESTAMP '2100-01-01', retain_last => 1)"
            )
        return chunks(self, comparison)

    monkeypatch.setattr(IcebergSnapshot, "chunks", after_removal)
    report = shop.verify()
    assert removed.is_set()
    assert report.equal, report


@pytest.mark.nightly
def test_maintenance_removes_the_tag_of_a_killed_verification(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the table is never verified again. The tag of a verification that runs stays."""
    shop.settings, shop.config = {"maintenance": {"compactEverySeconds": 1}}, {"maintenance_s": 0.5}
    prepare(shop)
    shop.sql("ALTER TABLE {t} CREATE TAG `levada-verify-1`; ALTER TABLE {t} CREATE TAG theirs")
    from levada.destinations.iceberg.fixed_table import IcebergSnapshot

    chunks, refs = IcebergSnapshot.chunks, "SELECT name FROM {t}.refs WHERE name LIKE 'levada-verify-%'"

    def after_maintenance(self: IcebergSnapshot, comparison: Comparison) -> pa.Table:
        shop.sql("ALTER TABLE {t} CREATE TAG `levada-verify-2`")
        until(lambda: len(shop.sql(refs)) == 1)
        return chunks(self, comparison)

    until(lambda: not shop.sql(refs))
    monkeypatch.setattr(IcebergSnapshot, "chunks", after_maintenance)
    assert shop.verify().equal
    assert {r.name for r in shop.sql("SELECT name FROM {t}.refs")} == {"main", "theirs"}
