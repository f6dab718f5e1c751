"""The wait of the tests."""

from __future__ import annotations

import pytest
from tests.rigs.waiting import until


def test_the_first_accepted_value_is_returned() -> None:
    """The wait looks until a value is accepted, and returns it."""
    values = iter([0, 1, 2, 3])
    assert until(lambda: next(values), lambda value: value >= 2) == 2
    assert next(values) == 3
    assert until(lambda: "there") == "there"


def test_the_failure_has_the_value_seen_last() -> None:
    """After the limit, the failure has the last value, cut to a length that can be read, and the report."""
    with pytest.raises(AssertionError, match=r"not within 0 s, last seen: \['x+\nthe log") as failure:
        until(lambda: ["x" * 10_000], lambda value: False, report=lambda: "the log", limit_s=0)
    assert len(str(failure.value)) < 4100


def test_an_end_ends_the_wait() -> None:
    """A process that has ended cannot bring the value any more. What it did last counts."""
    with pytest.raises(AssertionError, match="cannot come any more, last seen: None"):
        until(lambda: None, alive=lambda: False)
    values = iter([None, 7])
    assert until(lambda: next(values), alive=lambda: False) == 7
