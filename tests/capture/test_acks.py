"""Acks come in any order, and the acknowledged LSN never passes what was confirmed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from levada.capture import AckTracker
from levada.values import Lsn

# A stream as a list of transactions: how many changes each has; 0 stands for a keepalive's position.
STREAMS = st.lists(st.integers(0, 4), max_size=8)


@given(stream=STREAMS, data=st.data())
def test_only_an_unbroken_prefix_of_whole_transactions_is_released(stream: list[int], data: st.DataObject) -> None:
    """After each confirmation the position is the end of the last transaction before which all is confirmed."""
    told: list[Lsn] = []
    tracker = AckTracker(Lsn(5), told.append)
    acks = []
    ends: list[tuple[int, Lsn]] = []
    """After how many changes each position is reached."""
    for i, changes in enumerate(stream):
        lsn = Lsn(100 * (i + 1))
        acks += [tracker.change(lsn if n == changes - 1 else None) for n in range(changes)]
        if not changes:
            tracker.progress(lsn)
        ends.append((len(acks), lsn))
    confirmed: set[int] = set()
    for i in [-1, *data.draw(st.permutations(range(len(acks))))]:
        if i >= 0:
            acks[i].confirm()
            confirmed.add(i)
        prefix = next((n for n in range(len(acks)) if n not in confirmed), len(acks))
        assert tracker.position == max([Lsn(5), *(lsn for after, lsn in ends if after <= prefix)])
    assert told == sorted(set(told))
    assert tracker.position == (ends[-1][1] if ends else 5)


def test_confirming_again_changes_nothing() -> None:
    """An ack may be confirmed twice, also long after its position was passed."""
    told: list[Lsn] = []
    tracker = AckTracker(Lsn(0), told.append)
    one, two = tracker.change(Lsn(8)), tracker.change(Lsn(16))
    one.confirm()
    one.confirm()
    two.confirm()
    one.confirm()
    assert told == [8, 16]


def test_progress_waits_behind_what_is_in_flight() -> None:
    """A keepalive's position counts at once when idle, else as soon as all before it is confirmed."""
    tracker = AckTracker(Lsn(0), lambda lsn: None)
    tracker.progress(Lsn(8))
    assert tracker.position == 8
    ack = tracker.change(Lsn(16))
    tracker.progress(Lsn(32))
    assert tracker.position == 8
    ack.confirm()
    assert tracker.position == 32
