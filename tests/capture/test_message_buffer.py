"""Slices are cut where no transaction is open, or hold a part of one that is too large."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from levada.capture.message_buffer import MessageBuffer
from levada.capture.message_stream import SliceLimits
from levada.pgoutput.messages import HEADER

# Kinds of messages as they come: whole transactions, messages outside of them, and the beginning of one.
STREAMS = st.lists(st.sampled_from(["BC", "BIC", "BIIUDC", "M", "BMC"]), max_size=10).map("".join)


def messages(kinds: str) -> list[bytes]:
    """Payloads of these kinds."""
    return [bytes(HEADER) + kind.encode() for kind in kinds]


@given(whole=STREAMS, rest=st.sampled_from(["", "B", "BII"]), cuts=st.lists(st.integers(0, 40)))
def test_nothing_is_cut_inside_of_a_transaction(whole: str, rest: str, cuts: list[int]) -> None:
    """However the messages arrive: what is taken is whole, in order, and all that is whole is taken."""
    stream = whole + rest
    buffer = MessageBuffer(SliceLimits())
    taken: list[bytes] = []
    at = 0
    for cut in sorted({min(c, len(stream)) for c in cuts} | {len(stream)}):
        buffer.add(messages(stream)[at:cut])
        at = cut
        slice_ = buffer.take(in_transaction=False)
        kinds = "".join(chr(m[HEADER]) for m in slice_)
        assert kinds.count("B") == kinds.count("C")
        taken += slice_
    assert taken == messages(whole)
    assert bool(buffer) is bool(rest)


def test_a_large_transaction_comes_in_slices() -> None:
    """Without an end in sight a slice is handed out when it is full, not before, until the COMMIT ends it."""
    buffer = MessageBuffer(SliceLimits(messages=10))
    buffer.add(messages("B" + "I" * 8))
    assert buffer.take(in_transaction=False) == []
    buffer.add(messages("I"))
    assert buffer.full
    assert len(buffer.take(in_transaction=False)) == 10
    buffer.add(messages("II"))
    assert buffer.take(in_transaction=True) == []
    buffer.add(messages("CBI"))
    assert buffer.take(in_transaction=True) == messages("IIC")
    assert buffer.take(in_transaction=False) == []
