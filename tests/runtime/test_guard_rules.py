"""The guard's rules: which limits are in force, and which tables are parked for one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.config import GuardLimit
from levada.runtime.tables.guard_rules import (
    Holding,
    amount_text,
    figures,
    in_force,
    most_severe,
    pauses_copies,
    recedes,
    relief,
    slowest,
)
from levada.status import GuardMeasure, GuardPolicy, SlotProgress
from levada.values import TableId

STAGED, FREE = GuardMeasure.STAGED, GuardMeasure.STAGING_FREE
WAL, PERCENT = GuardMeasure.RETAINED_WAL, GuardMeasure.RETAINED_WAL_PERCENT
PARK = GuardPolicy.PARK_SLOWEST


def slot(retained: int, lag: int, safe: int | None = None) -> SlotProgress:
    """Return a sample of a slot."""
    return SlotProgress("s", lag_bytes=lag, retained_bytes=retained, safe_wal_bytes=safe)


def parked(limit: GuardLimit, figure: int, sample: SlotProgress | None, *holdings: Holding, durable: bool) -> list[int]:
    """Return the tables that are parked."""
    return [h.table for h in slowest(limit, figure, sample, holdings, durable=durable)]


def held(table: int, *, wal: int = 0, staged: int = 0) -> Holding:
    """Return what a table holds."""
    return Holding(TableId(table), shadow=False, wal=wal, staged=staged)


def test_unknown_figures_are_left_out() -> None:
    """A source without max_slot_wal_keep_size has no percentage, an object store no free space."""
    assert figures(None, 5, None) == {STAGED: 5}
    assert figures(slot(30, 0), 5, 7) == {STAGED: 5, FREE: 7, WAL: 30}
    assert figures(slot(30, 0, safe=70), 5, None) == {STAGED: 5, WAL: 30, PERCENT: 30}
    assert figures(slot(30, 0, safe=-5), 5, None)[PERCENT] == 100


def test_a_policy_ends_a_tenth_below_its_limit() -> None:
    """Between the two it stays as it was, and without a figure too."""
    limit = GuardLimit(STAGED, GuardPolicy.WARN, 100)
    assert in_force([limit], {STAGED: 99}, frozenset()) == frozenset()
    assert in_force([limit], {STAGED: 100}, frozenset()) == {limit}
    assert in_force([limit], {STAGED: 90}, {limit}) == {limit}
    assert in_force([limit], {STAGED: 89}, {limit}) == frozenset()
    assert in_force([limit], {}, {limit}) == {limit}
    assert in_force([], {STAGED: 100}, {limit}) == frozenset()


def test_free_space_counts_downwards() -> None:
    """Its limit is passed when less is free, and it has receded when more is."""
    limit = GuardLimit(FREE, GuardPolicy.WARN, 100)
    assert in_force([limit], {FREE: 101}, frozenset()) == frozenset()
    assert in_force([limit], {FREE: 100}, frozenset()) == {limit}
    assert in_force([limit], {FREE: 110}, {limit}) == {limit}
    assert in_force([limit], {FREE: 111}, {limit}) == frozenset()
    assert recedes(FREE, 5, 6)
    assert not recedes(FREE, 5, 5)
    assert recedes(WAL, 6, 5)


def test_the_most_severe_policy_includes_the_milder_ones() -> None:
    """Copies are paused from PauseCopies on."""
    limits = [GuardLimit(STAGED, policy, 1) for policy in (GuardPolicy.WARN, GuardPolicy.RELEASE_SLOT, PARK)]
    assert most_severe(limits) is GuardPolicy.RELEASE_SLOT
    assert most_severe([]) is None
    assert [pauses_copies(policy) for policy in (None, *GuardPolicy)] == [False, False, True, True, True]


def test_tables_that_hold_the_most_are_parked_for_staged_changes() -> None:
    """As many as bring the figure below the limit, and none that holds nothing."""
    limit = GuardLimit(STAGED, PARK, 100)
    tables = [held(1, staged=20), held(2, staged=90), held(3, staged=30), held(4)]
    assert parked(limit, 140, None, *tables, durable=True) == [2]
    assert parked(limit, 200, None, *tables, durable=True) == [2, 3]
    assert parked(GuardLimit(FREE, PARK, 1000), 0, None, *tables, durable=True) == [2, 3, 1]


def test_no_table_is_parked_for_what_others_write() -> None:
    """No table is parked if the staged changes are less than a tenth of what is missing.

    Other data fills the volume.
    """
    tables = [held(1, staged=20), held(2, staged=90)]
    assert parked(GuardLimit(FREE, PARK, 1000), 0, None, *tables, durable=True) == [2, 1]
    assert parked(GuardLimit(FREE, PARK, 1001), 0, None, *tables, durable=True) == []
    assert parked(GuardLimit(FREE, PARK, 10_000), 9_900, None, *tables, durable=True) == [2, 1]


def test_tables_that_hold_wal_are_parked_on_scratch_staging_alone() -> None:
    """With durable staging none holds WAL. A table that holds less than is wanted goes on."""
    limit = GuardLimit(WAL, PARK, 100)
    tables = [held(1, wal=10), held(2, wal=95), held(3, wal=120)]
    assert parked(limit, 120, slot(120, 120), *tables, durable=False) == [3, 2]
    assert parked(limit, 120, slot(120, 120), *tables, durable=True) == []
    percent = GuardLimit(PERCENT, PARK, 50)
    assert parked(percent, 60, slot(120, 120, safe=80), *tables, durable=False) == [3, 2]


@given(
    st.lists(st.integers(0, 10**12), max_size=30),
    st.integers(1, 10**12),
    st.integers(0, 10**13),
)
def test_enough_is_parked_and_not_more(staged: list[int], limit: int, figure: int) -> None:
    """Without the last parked table, the figure would still be beyond the relief. With all, it is not, if it can be."""
    of = GuardLimit(STAGED, PARK, limit)
    figure = max(figure, limit)
    chosen = slowest(of, figure, None, [held(i, staged=n) for i, n in enumerate(staged)], durable=True)
    freed = [h.staged for h in chosen]
    assert freed == sorted(freed, reverse=True)
    if chosen:
        assert figure - sum(freed[:-1]) > relief(of)
    if figure - sum(freed) > relief(of):
        assert sum(freed) == sum(staged)


def test_an_amount_has_a_unit_that_shows_it() -> None:
    """A limit of some kilobytes is not 0.0 MiB, and one of terabytes is no number of seven digits."""
    staged = GuardMeasure.STAGED
    amounts = (20, 60_000, 2 << 20, 200 << 30, 3 << 40)
    texts = ["20 B", "58.6 KiB", "2.0 MiB", "200.0 GiB", "3.0 TiB"]
    assert [amount_text(staged, amount) for amount in amounts] == texts
    assert amount_text(GuardMeasure.RETAINED_WAL_PERCENT, 80) == "80 %"
