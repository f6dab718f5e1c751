"""The rate of writes follows what the API server takes."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from levada_operator.act.budget import SPARE_BURST, SPARE_PER_S, WriteBudget
from levada_operator.act.write_rate import FASTEST, SLOWEST, WriteRate

ANSWERS = st.tuples(st.floats(0, 10), st.floats(0, 30), st.sampled_from([0, 200, 404, 409, 429, 500, 503]))


@given(st.lists(ANSWERS, max_size=200))
def test_rate_has_bounds(answers: list[tuple[float, float, int]]) -> None:
    """Whatever the server answers and however late, the rate is never below the slowest and never above its bound."""
    rate, now = WriteRate(), 0.0
    for later, seconds, status in answers:
        now += later
        rate.answered(now, seconds, status)
        assert SLOWEST <= rate.per_s <= FASTEST


def test_fast_answers_raise_the_rate_and_an_overload_halves_it_once() -> None:
    """Fast answers raise the rate. The many answers of one overload cut it once."""
    rate = WriteRate()
    for _ in range(200):
        rate.answered(1.0, 0.01)
    assert rate.per_s == FASTEST
    for _ in range(20):
        rate.answered(2.0, 0.01, 429, retry_after_s=3)
    assert (rate.per_s, rate.closed_until) == (FASTEST / 2, 5.0)
    rate.answered(6.0, 5.0)
    assert rate.per_s == FASTEST / 4


def test_namespace_whose_writes_are_slow_slows_no_other_down() -> None:
    """A tenant's large objects take the API server seconds. The rate falls once those of another one do too."""
    rate = WriteRate()
    for second in range(20):
        rate.answered(second, 0.1, namespace="bank")
        rate.answered(second, 8.0, namespace="mallory")
    assert rate.per_s == 20
    rate.answered(21, 8.0, namespace="bank")
    assert rate.per_s == 10
    # Nobody else writes, so nothing shows that the API server is fast.
    rate.answered(40, 8.0, namespace="mallory")
    assert rate.per_s == 5


def test_nothing_is_written_while_the_server_asks_for_no_request() -> None:
    """A Retry-After holds writes of every priority."""

    async def script() -> None:
        now = 10.0
        budget = WriteBudget(lambda: now)
        budget.answered(0.01, 429, retry_after_s=5)
        assert not budget.take_spare()
        assert not await budget.take_bulk(asyncio.get_running_loop().time() + 0.01)
        now = 15.0
        assert budget.take_spare()

    asyncio.run(script())


def test_counters_never_exceed_their_rate_however_fast_the_server_is() -> None:
    """A server that takes more gets conditions and new objects sooner, and no more counters."""
    now = 0.0

    def clock() -> float:
        return now

    async def script() -> int:
        nonlocal now
        budget, written = WriteBudget(clock), 0
        for _ in range(1000):
            now += 0.1
            while budget.take_spare():
                written += 1
                budget.answered(0.01)
        assert budget.rate.per_s == FASTEST
        return written

    assert asyncio.run(script()) <= 100 * SPARE_PER_S + SPARE_BURST
