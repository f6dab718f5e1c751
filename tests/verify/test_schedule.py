"""Verifications that the manifest asks for, in a running pipeline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.rigs.verified_shop import Shop
from tests.rigs.waiting import LIMIT_S

from levada.errors import Transient
from levada.runtime.config import TableConfig, VerifyConfig
from levada.status import Progress, TableProgress
from levada.values import QualifiedTable, TableMode

T, U = QualifiedTable("public", "t"), QualifiedTable("public", "u")


def prepare(shop: Shop, **config: Any) -> None:
    """Make two tables, and start."""
    shop.config = config
    for table in "tu":
        shop.db.execute(
            f"CREATE TABLE {table} (id bigint PRIMARY KEY, a text)",  # type: ignore[arg-type]  # made of constants
            f"INSERT INTO {table} SELECT g, 'a' || g FROM generate_series(1, 100) g",  # type: ignore[arg-type]  # made of constants
        )
    shop.start()
    shop.wait_caught_up()


def of(progress: Progress, table: QualifiedTable) -> TableProgress:
    """Return a table's progress."""
    return next(t for t in progress.tables if t.table == table)


def reconfigure(shop: Shop, **changes: Any) -> None:
    """Change the running pipeline's configuration."""
    assert shop.pipeline is not None
    shop.pipeline.reconfigure(replace(shop.pipeline.config, **changes))


def verified(table: QualifiedTable, equal: bool) -> Callable[[Progress], bool]:
    """Return a predicate: the table was compared with this result."""

    def is_verified(progress: Progress) -> bool:
        result = of(progress, table).verified
        return result is not None and result.equal is equal

    return is_verified


@pytest.mark.nightly
def test_the_schedule_finds_a_difference_and_its_end(shop: Shop) -> None:
    """Each table is compared again and again. The table that differs is not Ready until it was copied again."""
    prepare(shop, verify=VerifyConfig(every_s=2.0))
    shop.wait(lambda p: verified(T, True)(p) and verified(U, True)(p))
    shop.sql("UPDATE {t} SET a = 'theirs' WHERE id = 5")
    found = of(shop.wait(verified(T, False)), T)
    assert found.verified is not None
    assert (found.verified.differences, found.differs) == (1, True)
    assert of(shop.wait(verified(U, True)), U).verify_error is None
    reconfigure(shop, verify=VerifyConfig(), tables={T: TableConfig(resync_nonce=1)})
    shop.wait(lambda p: of(p, T).resync_nonce == 1 and of(p, T).resync is None)
    shop.wait_caught_up()
    assert of(shop.wait(lambda p: of(p, T).verified is None), T).phase == "Ready"
    assert shop.verify().equal


@pytest.mark.nightly
def test_a_nonce_is_handled_once_also_by_the_next_process(shop: Shop) -> None:
    """A request is kept until its comparison has ended, also while the table is suspended. Its result is kept too."""
    prepare(shop)
    reconfigure(shop, tables={T: TableConfig(verify_nonce=7, suspended=True)})
    shop.wait(lambda p: of(p, T).suspended)
    with pytest.raises(Transient) as refused:
        shop.verify()
    assert (refused.value.code, "set suspend: false" in refused.value.hint) == ("verify_not_ready", True)
    shop.stop()
    shop.config = {"tables": {T: TableConfig(verify_nonce=7)}}
    shop.start()
    done = of(shop.wait(lambda p: bool(p.tables) and of(p, T).verify_nonce == 7), T)
    assert done.verified is not None
    assert (done.verified.equal, done.verified.rows) == (True, 100)
    assert done.verify_tried is not None
    shop.stop()
    shop.start()
    kept = of(shop.wait(lambda p: bool(p.tables) and of(p, T).phase == "Ready"), T)
    assert (kept.verified, kept.verify_tried, kept.verify_nonce) == (done.verified, done.verify_tried, 7)
    assert of(shop.wait(lambda p: True), U).verified is None


@pytest.mark.nightly
def test_a_failed_comparison_is_reported(shop: Shop) -> None:
    """A request for a table that cannot be compared is handled, with the error in the status."""
    prepare(shop, tables={U: TableConfig(mode=TableMode.CHANGELOG)})
    reconfigure(shop, tables={U: TableConfig(mode=TableMode.CHANGELOG, verify_nonce=1)})
    failed = of(shop.wait(lambda p: of(p, U).verify_nonce == 1), U)
    assert failed.verify_error is not None
    assert failed.verify_error.code == "verify_unsupported"


@pytest.mark.nightly
def test_a_command_ends_a_comparison_of_the_schedule(shop: Shop) -> None:
    """Both never compare at the same time, and the command does not wait for a long comparison of the schedule."""
    prepare(shop)
    assert shop.pipeline is not None
    assert shop.pipeline._replication is not None
    verifier = shop.pipeline._replication.verifier
    ended, entered, left = threading.Event(), threading.Event(), threading.Event()

    def scheduled() -> None:
        with verifier.turns.offer(ended) as taken:
            assert taken
            entered.set()
            ended.wait(LIMIT_S)
        left.set()

    thread = threading.Thread(target=scheduled)
    thread.start()
    entered.wait(LIMIT_S)
    with verifier.turns.offer(threading.Event()) as taken:
        assert not taken
    assert shop.verify().equal
    assert left.is_set()
    thread.join()
