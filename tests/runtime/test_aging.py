"""The figures of a pipeline whose supervisor waits, so that it publishes none."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.pipeline import Only, Rig, table
from tests.rigs.waiting import LIMIT_S
from tests.runtime import samples

from levada.runtime.limits import Limits
from levada.runtime.report.aging import aged
from levada.runtime.report.metrics import metric_families
from levada.status import CatchUpProgress, CatchUpState, Progress, ResyncProgress, ResyncStep
from levada.stores import MemoryStorage, MemoryStore
from levada.stores.storage import Change, Key, Versions


class Silent(MemoryStorage):
    """Answers no write while it is away, as a database behind a network that drops packets."""

    def __init__(self) -> None:
        super().__init__()
        self.back = threading.Event()
        self.back.set()

    def update(self, epoch: int | None, keys: Collection[Key[Any]], change: Change) -> dict[Key[Any], Versions]:
        assert self.back.wait(LIMIT_S)
        return super().update(epoch, keys, change)


@pytest.fixture
def storage(rig: Rig) -> Iterator[Silent]:
    """The storage of a running pipeline that has caught up. Its figures age after a moment."""
    storage = Silent()
    rig.store = lambda: MemoryStore("shop", storage)
    rig.change(limits=Limits(aging_s=0.2), selects=Only("orders"))
    rig.start()
    rig.wait_caught_up()
    yield storage
    storage.back.set()


def lag(progress: Progress) -> float:
    """Return the lag that is published for table orders."""
    return table(progress, "orders").lag_seconds or 0.0


def test_the_lag_grows_while_the_store_does_not_answer(rig: Rig, storage: Silent, db: Database) -> None:
    """No figure says that the table has caught up, as the changes of that time are unknown. Afterwards it has again."""
    storage.back.clear()
    db.execute("INSERT INTO orders VALUES (11)")
    first = rig.wait(lambda p: lag(p) > 0.2 and p.catch_up is None)
    assert table(first, "orders").catch_up is None
    then = rig.wait(lambda p: lag(p) > lag(first) + 0.2)
    shown = {s.name: s.value for family in metric_families(then) for s in family.samples}
    assert shown["levada_table_lag_seconds"] == lag(then)
    storage.back.set()
    rig.wait(lambda p: lag(p) == 0 and p.at > then.at and table(p, "orders").catch_up is not None)
    rig.wait_caught_up()


def test_figures_of_a_minute_ago_say_nothing_of_now() -> None:
    """Lags grow, what had caught up does so no more, copies have no rate. Parked tables have no outlook."""
    caught_up = CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0)
    copying = samples.copying(percent=50.0, seconds_left=9.0, rows_per_second=5.0)
    before = samples.progress(
        samples.table("idle", lag_seconds=0.0, catch_up=caught_up),
        samples.table("copied", phase="DataSync", lag_seconds=None, copy=copying),
        samples.table("parked", phase="Errored", lag_seconds=2.0, error=samples.error()),
        samples.table("resynced", lag_seconds=0.5, resync=ResyncProgress(ResyncStep.COPYING, copying)),
        catch_up=caught_up,
    )
    later = aged(before, 60.0, before.capture.rows + 120)
    never = CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE)
    assert [t.lag_seconds for t in later.tables] == [60.0, None, 62.0, 60.5]
    assert [t.catch_up for t in later.tables] == [never, None, None, never]
    assert (later.catch_up, later.capture.rows_per_second) == (never, 2.0)
    slow = replace(copying, seconds_left=None, rows_per_second=0.0)
    resync = later.tables[3].resync
    assert resync is not None
    assert (later.tables[1].copy, resync.copy) == (slow, slow)
    assert aged(before, 20.0, before.capture.rows).catch_up is None
