"""The time until something has caught up, by its trend."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.report.outlook import Outlook, Trend, latest
from levada.status import CatchUpProgress, CatchUpState
from levada.values import TableId

CAUGHT_UP = CatchUpProgress(CatchUpState.CAUGHT_UP, 0.0)
NEVER = CatchUpProgress(CatchUpState.NOT_AT_THIS_RATE)
SMALL = 20.0


def after(*amounts: float, every_s: float = 10.0) -> CatchUpProgress | None:
    """Return the outlook after these amounts, one every ten seconds."""
    trend, last = Trend(), None
    for i, amount in enumerate(amounts):
        last = trend.add(i * every_s, amount, SMALL)
    return last


def test_what_batching_causes_counts_as_nothing() -> None:
    """It has caught up, at once and without a trend."""
    assert after(SMALL) == CAUGHT_UP
    assert after(*[900.0] * 20, SMALL) == CAUGHT_UP


def test_the_first_minute_says_nothing() -> None:
    """A batch makes the lag fall at one moment, so a few samples are no trend."""
    assert after(*[100.0] * 6) is None
    assert after(*[100.0] * 7) == NEVER


def test_a_lag_that_stays_or_grows_never_ends() -> None:
    """Also while it goes up and down."""
    assert after(*range(100, 300, 10)) == NEVER
    assert after(*[100.0, 110.0] * 10) == NEVER


@given(st.floats(0.01, 10), st.integers(7, 200), st.floats(100, 10_000))
def test_a_lag_that_falls_evenly(per_second: float, count: int, last: float) -> None:
    """The time that is left is the amount by its rate, however many samples there are."""
    amounts = [last + per_second * 10 * (count - 1 - i) for i in range(count)]
    found = after(*amounts)
    assert found is not None
    assert found.state is CatchUpState.CATCHING_UP
    assert found.seconds_left == pytest.approx(last / per_second, rel=1e-3)


def test_a_new_fall_behind_forgets_the_former_one() -> None:
    """The trend begins when the lag becomes more than batching causes."""
    assert after(*range(1000, 20, -50), 10.0, *[100.0] * 6) is None


def test_only_five_minutes_count() -> None:
    """A lag that rose for an hour and falls now is catching up."""
    rising, falling = [float(i) for i in range(100, 3700, 10)], [3600.0 - 10 * i for i in range(40)]
    found = after(*rising, *falling)
    assert found is not None
    assert found.seconds_left == pytest.approx(falling[-1], rel=1e-3)


def test_the_whole_catches_up_with_its_last_part() -> None:
    """One part that never does decides, and so does one that is not known."""
    soon, late = CatchUpProgress(CatchUpState.CATCHING_UP, 5.0), CatchUpProgress(CatchUpState.CATCHING_UP, 50.0)
    assert latest([CAUGHT_UP, late, soon]) == late
    assert latest([CAUGHT_UP, None, late]) is None
    assert latest([None, NEVER, late]) == NEVER
    assert latest([]) is None


def test_one_long_batch_says_nothing() -> None:
    """While the only batch runs, the lag grows. It is no rate, because the batch ends at one moment."""
    outlook, table = Outlook(), TableId(1)
    for i in range(20):
        assert outlook.of_table(table, i * 10.0, 100.0 + i * 10, SMALL, batch_s=i * 10.0) is None
    assert outlook.of_table(table, 200.0, 300.0, SMALL, batch_s=1.0) == NEVER


def test_a_table_that_is_not_streaming_has_no_outlook() -> None:
    """Its former trend says nothing once it streams again."""
    outlook, table = Outlook(), TableId(1)
    for i in range(10):
        outlook.of_table(table, i * 10.0, 100.0, SMALL)
    assert outlook.of_table(table, 100.0, 100.0, SMALL) == NEVER
    assert outlook.of_table(table, 110.0, None, SMALL) is None
    assert outlook.of_table(table, 120.0, 100.0, SMALL) is None
    outlook.keep([])
    assert outlook.of_stream(0.0, None) is None
    assert outlook.of_stream(0.0, 1000) == CAUGHT_UP
