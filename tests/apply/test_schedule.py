"""A batch is due in time for its freshness, and not much earlier."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.segments.changes import NO_TRANSACTIONS

from levada.apply.schedule import apply_due, batches_per_thread
from levada.segments.manifest import Manifest
from levada.values import Lsn, Witness

seconds = st.floats(0, 1000)


@given(seconds, st.floats(0.1, 1000))
def test_due_at_half_of_the_freshness_whatever_it_costs(last_apply: float, freshness: float) -> None:
    """However slow the last batch was, half of the freshness is never waited out."""
    assert apply_due(freshness / 2, last_apply, freshness, 1, 10)


@given(st.floats(1, 1000))
def test_cheap_batches_wait_for_a_quarter_of_the_freshness(freshness: float) -> None:
    """A table whose batches cost little gathers changes for a quarter of what it may trail."""
    assert not apply_due(freshness * 0.24, 0.0, freshness, 1, 10)
    assert apply_due(freshness * 0.25, 0.0, freshness, 1, 10)


@given(seconds, seconds)
def test_a_full_batch_is_due_at_once(waited: float, last_apply: float) -> None:
    """Waiting longer cannot make a full batch larger."""
    assert apply_due(waited, last_apply, 10.0, 10, 10)


@given(st.floats(0, 3), st.floats(0, 1000))
def test_many_tables_gather_changes_for_longer(waited: float, round_s: float) -> None:
    """If the small batches of many tables keep the threads busy, each waits for longer, but not past its time."""
    assert apply_due(waited, 0.0, 10.0, 1, 10, round_s) == (waited >= min(5.0, max(2.5, round_s * 2)))
    assert apply_due(5.0, 0.0, 10.0, 1, 10, round_s)


def test_time_in_an_open_segment_counts() -> None:
    """The age of a change counts from its commit, not from its staging. A segment without transactions has no age."""
    segment = Manifest(
        "p", 1, Lsn(1), Lsn(9), (), (), (), (), 2, NO_TRANSACTIONS, 5_000_000, Witness(Lsn(8), 1, 5_750_000), {}
    )
    assert segment.span_s == 0.75
    assert Manifest("p", 1, Lsn(1), Lsn(9), (), (), (), (), 0, NO_TRANSACTIONS, None, None, {}).span_s == 0.0


@given(seconds, st.floats(0.001, 1000))
def test_a_thread_has_work_until_batches_are_started_again(interval: float, batch: float) -> None:
    """The walk over thousands of tables takes longer than a batch. The batches that wait have a bound."""
    count = batches_per_thread(interval, batch)
    assert count * batch >= min(interval, 32 * batch)
    assert 2 <= count <= 32
    assert batches_per_thread(0.0, batch) == batches_per_thread(interval, 0.0) == 2
