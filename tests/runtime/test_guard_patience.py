"""The patience of the guard, which outlives the process."""

from __future__ import annotations

import pytest

from levada.runtime.config import GuardLimit
from levada.runtime.tables.guard_patience import Patience
from levada.status import GuardMeasure, GuardPolicy
from levada.stores import MemoryStorage, MemoryStore

RELEASE = GuardLimit(GuardMeasure.RETAINED_WAL, GuardPolicy.RELEASE_SLOT, 100)
PARK = GuardLimit(GuardMeasure.STAGING_FREE, GuardPolicy.PARK_SLOWEST, 100)
PATIENCE_S = 30.0


@pytest.fixture
def storage() -> MemoryStorage:
    """The content of the store, which outlives the processes."""
    return MemoryStorage()


def process(storage: MemoryStorage) -> Patience:
    """Return the patience of a process that has just started."""
    store = MemoryStore("shop", storage)
    store.next_epoch()
    store.load_fingerprints()
    return Patience(store)


def waited(patience: Patience, *figures: int, limit: GuardLimit = RELEASE) -> int | None:
    """Return after how many seconds the policy acts on figures that come every five seconds, None for never."""
    for n, figure in enumerate(figures):
        if patience.is_due(limit, figure, 1000.0 + 5 * n, PATIENCE_S):
            return 5 * n
    return None


def test_a_policy_acts_once_its_limit_was_passed_for_a_while(storage: MemoryStorage) -> None:
    """A figure that becomes better in that time is left alone, and so is one after an action."""
    assert waited(process(storage), *range(100, 120)) == 30
    better = process(storage)
    assert waited(better, 100, 100, 100, 100, 100, 100, 99) is None
    assert waited(better, *range(100, 106)) is None


def test_each_restart_shortens_the_patience(storage: MemoryStorage) -> None:
    """An engine that ends too early to act, again and again, acts at the first comparison of its fourth process."""
    assert waited(process(storage), 100, 101) is None
    assert waited(process(storage), 101, 101) is None
    assert waited(process(storage), 101, 101) is None
    assert waited(process(storage), 102) == 0
    assert waited(process(storage), *range(103, 120)) == 20


def test_a_figure_that_became_better_restores_the_patience(storage: MemoryStorage) -> None:
    """A restart after which the figure is better, or the limit is no longer passed, begins from the start."""
    for figure in (100, 101, 102, 90):
        assert waited(process(storage), figure) is None
    assert waited(process(storage), 91) is None
    left = process(storage)
    assert not left.is_due(RELEASE, 92, 0.0, PATIENCE_S)
    left.forget(RELEASE)
    assert waited(process(storage), *range(100, 120)) == 30


def test_a_limit_that_is_not_passed_after_a_restart_is_forgotten(storage: MemoryStorage) -> None:
    """The next process that passes it waits in full. Other limits keep their restarts."""
    for _ in range(2):
        assert waited(process(storage), 100) is None
        assert waited(process(storage), 50, limit=PARK) is None
    process(storage).forget(RELEASE)
    assert waited(process(storage), *range(100, 120)) == 30
    assert waited(process(storage), *[50] * 9, limit=PARK) == 10
