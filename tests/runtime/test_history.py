"""The history of figures: bounded, coarser with age, and never smoother than the truth."""

from __future__ import annotations

import json
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st
from tests.runtime import samples

from levada.runtime.report.history import SAMPLE_EVERY_S, FigureHistory
from levada.status import History, Progress, StagingProgress

DAY_S = 86_400


def at(seconds: float, retained: int | None = 0, staged: int = 0, rate: float = 0.0) -> Progress:
    """Return the progress of that time."""
    return samples.progress(
        at=samples.seconds(seconds),
        slot=samples.slot(retained_bytes=retained, lag_bytes=None if retained is None else retained // 2),
        staging=StagingProgress(True, 1, staged, None),
        capture=samples.capture(rows_per_second=rate),
    )


def ages(history: History) -> list[float]:
    """Return the age of each point before the newest, in seconds."""
    return [(history.at[-1] - at).total_seconds() for at in history.at]


def test_three_days_are_a_thousand_points() -> None:
    """Two days are kept: ten seconds in the last hour, a minute in six, ten minutes before."""
    history = FigureHistory()
    for second in range(0, 3 * DAY_S, SAMPLE_EVERY_S):
        history.add(at(second, second))
    found = history.document()
    assert len(found.at) <= 1008
    assert max(ages(found)) > 2 * DAY_S - 1200
    assert list(found.at) == sorted(set(found.at))
    for age, seconds in zip(ages(found), found.seconds, strict=True):
        assert seconds == (10 if age < 3600 else 60 if age < 6 * 3600 else 600)
    assert len(json.dumps(found.to_json())) < 100_000


def test_a_peak_of_ten_seconds_is_seen_for_two_days() -> None:
    """Coarse points are the largest of their samples, so that a disk that was nearly full stays visible."""
    history = FigureHistory()
    for second in range(0, 2 * DAY_S - 3600, SAMPLE_EVERY_S):
        history.add(at(second, 10**12 if second == 5000 else 10**6))
    assert max(b for b in history.document().retained_bytes if b is not None) == 10**12


def test_a_rate_is_an_average() -> None:
    """A coarse point has the mean of its samples, not the largest."""
    history = FigureHistory()
    for i in range(720):
        history.add(at(i * SAMPLE_EVERY_S, rate=100.0 if i % 2 else 0.0))
    found = history.document()
    assert [r for r, s in zip(found.rows_per_second, found.seconds, strict=True) if s == 60 and r != 50.0] == []


def test_an_unknown_figure_is_no_zero() -> None:
    """Null stays null, and a known figure of the same minute is not hidden by an unknown one."""
    history = FigureHistory()
    for i in range(720):
        history.add(at(i * SAMPLE_EVERY_S, None if i < 100 or i % 2 else 7))
    found = history.document()
    assert found.retained_bytes[0] is None
    assert found.lag_bytes[0] is None
    coarse = [b for b, s in zip(found.retained_bytes, found.seconds, strict=True) if s == 60]
    assert coarse[-1] == 7


def test_parked_and_copied_tables_do_not_trail() -> None:
    """The lag of a table with an error would hide that of all others."""
    history = FigureHistory()
    parked = samples.table("parked", lag_seconds=9000.0, error=samples.error(), phase="Errored")
    history.add(samples.progress(parked, samples.table("copied", lag_seconds=None), samples.table(lag_seconds=1.5)))
    assert history.document().lag_seconds == (1.5,)


@given(st.lists(st.integers(-7200, 7200), max_size=200))
def test_a_clock_that_is_set_back_leaves_no_future(steps: list[int]) -> None:
    """Times ascend whatever the clock does, and no point is after the newest sample."""
    history, now = FigureHistory(), 0
    for step in steps:
        now += step
        history.add(at(now, 1))
        found = history.document()
        assert list(found.at) == sorted(set(found.at))
        assert found.at[-1] <= samples.NOON + timedelta(seconds=now)
