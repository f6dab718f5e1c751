"""Repeated work keeps to its share of a core."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from levada.runtime.pace import Pace


@given(
    share=st.floats(0.01, 1.0),
    costs=st.lists(st.floats(0.0001, 5.0), min_size=1, max_size=30),
    waits=st.lists(st.floats(0.0, 10.0), min_size=30, max_size=30),
)
def test_work_takes_at_most_its_share(share: float, costs: list[float], waits: list[float]) -> None:
    """However long each piece takes and whenever it is asked for, all but the last take at most the share."""
    pace, now, first, spent = Pace(share), 100.0, 100.0, 0.0
    for cost, wait in zip(costs, waits, strict=False):
        now += wait
        if not pace.due(now):
            now += pace.wait_s(now)
        assert spent <= share * (now - first) + 1e-6
        pace.done(now, cost)
        spent += cost
        now += cost


def test_cheap_work_is_always_due() -> None:
    """Work that takes next to nothing does not wait for the next tick."""
    pace = Pace(0.05)
    pace.done(1.0, 0.0001)
    assert pace.due(1.1)
    assert pace.wait_s(1.1) == 0.0


def test_waiting_does_not_count() -> None:
    """Work that waited for a silent server for a minute is due as soon as work that did not."""
    pace = Pace(0.05)
    pace.done(1.0, 0.01)
    assert pace.due(61.0)
