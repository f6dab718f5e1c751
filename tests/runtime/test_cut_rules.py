"""The names of cuts, and which of them are dropped."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.cli.cuts import lines, listed
from levada.errors import NeedsOperator
from levada.runtime.stages.lake_cuts import cut_progress
from levada.runtime.tables.cut_rules import check_cut_name, outdated, scheduled_name
from levada.status import CutPhase, CutProgress, utc_text
from levada.stores import Cut
from levada.values import Lsn, TableId

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.mark.parametrize("name", ["a", "month_end", "v1.2-rc", "Z" * 63])
def test_names_that_fit(name: str) -> None:
    """Letters, digits, dots, hyphens and underscores, after a letter."""
    check_cut_name(name)


@pytest.mark.parametrize(
    "name", ["", "1", "20261123", "_a", "a b", "a/b", "a'b", "ä", "main", "MAIN", "levada", "Levada-x", "a" * 64, "a\n"]
)
def test_names_that_do_not(name: str) -> None:
    """A number would be a snapshot's ID for Spark, and other writers use main. The rest is not safe everywhere."""
    with pytest.raises(NeedsOperator) as caught:
        check_cut_name(name)
    assert caught.value.code == "cut_name_invalid"
    assert caught.value.hint


def test_scheduled_names_sort_by_time() -> None:
    """The name has the time in UTC, to the second."""
    assert scheduled_name(NOON.astimezone()) == "levada_cut_20260131T120000Z"


ended = st.sampled_from([phase for phase in CutPhase if phase is not CutPhase.REQUESTED])
cuts = st.lists(st.tuples(ended, st.booleans(), st.integers(0, 3)), max_size=20).map(
    lambda found: [
        Cut(f"c{i}", Lsn(lsn), NOON + timedelta(seconds=i), None, phase, (TableId(1),), (), scheduled)
        for i, (phase, scheduled, lsn) in enumerate(found)
    ]
)


@given(cuts, st.integers(1, 5))
def test_the_newest_complete_ones_stay(found: list[Cut], keep: int) -> None:
    """Of the scheduled cuts that ended, the newest of each kind stay, whatever their LSNs. No other cut is dropped."""
    dropped = set(outdated(reversed(found), keep, NOON + timedelta(hours=1)))
    assert all(c.scheduled and c.phase in (CutPhase.COMPLETE, CutPhase.INCOMPLETE) for c in found if c.name in dropped)
    for phase in (CutPhase.COMPLETE, CutPhase.INCOMPLETE):
        all_of_it = [c.name for c in found if c.scheduled and c.phase is phase]
        assert [name for name in all_of_it if name not in dropped] == all_of_it[-keep:]


def test_lines_of_the_list() -> None:
    """Each cut has a line with its state, and one for each table that it lacks."""
    assert list(listed([])) == ["no cuts"]
    assert list(lines(CutProgress(name="a", phase=CutPhase.REQUESTED))) == ["a: requested"]
    found = CutProgress(
        name="b",
        phase=CutPhase.INCOMPLETE,
        lsn=Lsn(255),
        at=NOON,
        committed_at=NOON - timedelta(seconds=1),
        tables=3,
        tagged=2,
        left_out=("public.t: suspended",),
    )
    assert list(lines(found)) == [
        f"b: incomplete at 0/FF, 2 of 3 tables, {utc_text(NOON)}, last commit {utc_text(NOON - timedelta(seconds=1))}",
        "  without public.t: suspended",
    ]


def test_reasons_of_many_tables_are_counted() -> None:
    """A cut that lacks many tables has the reasons of some, and the number of the others."""
    left_out = tuple((TableId(n), f"public.t{n}: suspended" if n < 2 else "") for n in range(60))
    cut = Cut("a", Lsn(1), NOON, None, CutPhase.INCOMPLETE, tuple(map(TableId, range(100))), left_out)
    found = cut_progress(cut)
    assert found.left_out == ("public.t0: suspended", "public.t1: suspended", "58 more tables")
    assert (found.tables, found.tagged) == (100, 40)
