"""Captured streams decode to the events that a person has checked, with any cuts, and only if they are complete."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pgoutput.capture_golden import PREFIXES, SCENARIOS, events, expected, load, show
from tests.pgoutput.source import Resolver, Versions

from levada.errors import DecodeError
from levada.pgoutput.changes import RelationChange, TableChanges
from levada.pgoutput.decoder import Decoder, TransactionScan
from levada.pgoutput.events import Begin, Commit, Unsupported, batch_events
from levada.pgoutput.messages import HEADER
from levada.values import Lsn

NAMES = sorted(SCENARIOS)


@pytest.mark.parametrize("name", NAMES)
def test_a_captured_stream_decodes_to_its_events(name: str) -> None:
    """The events of each stream are those in its file."""
    assert events(load(name)) == expected(name)


@cache
def changes_of(name: str) -> list[str]:
    """The changes of a stream in one slice."""
    return decoded_in(load(name), [])


def decoded_in(messages: Sequence[bytes], cuts: Sequence[int]) -> list[str]:
    """Decode a stream in the slices between ``cuts``. Omit events that are not in a transaction that is cut."""
    decoder = Decoder(Versions(), message_prefixes=PREFIXES)
    found: list[str] = []
    bounds = [0, *sorted(cuts), len(messages)]
    for first, end in pairwise(bounds):
        batch = decoder.decode(messages[first:end])
        kept = (e for e in batch_events(batch) if not isinstance(e, Begin | Commit | Unsupported))
        found += show(kept)
    return found


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_any_cut_of_a_stream_yields_the_same_changes(data: st.DataObject, name: str) -> None:
    """Relations, the open transaction and its ordinals go on from slice to slice, and empty slices change nothing."""
    messages = load(name)
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=8))
    assert decoded_in(messages, cuts) == changes_of(name)


def test_a_slice_tells_where_a_segment_may_be_cut() -> None:
    """Every slice has the end of its last COMMIT, and whether a transaction is open."""
    messages = load("rows")
    decoder = Decoder(Versions())
    kinds = [chr(m[HEADER]) for m in messages]
    second_begin = kinds.index("B", 1)
    batch = decoder.decode(messages[: second_begin + 1])
    assert (batch.transactions, batch.rows, batch.in_transaction) == (1, 2, True)
    commit = messages[kinds.index("C")]
    assert batch.end_lsn == int.from_bytes(commit[HEADER + 10 : HEADER + 18], "big")
    assert batch.last is not None
    assert batch.last.commit_ts_us == int.from_bytes(commit[HEADER + 18 :], "big") + 946_684_800_000_000
    assert decoder.decode([]).in_transaction
    rest = decoder.decode(messages[second_begin + 1 :])
    assert (rest.transactions, rest.in_transaction) == (kinds.count("C") - 1, False)


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_the_last_transaction_is_the_same_however_the_stream_is_cut(data: st.DataObject, name: str) -> None:
    """A scan finds the last transaction below an LSN as BEGIN announces it, in any cut, and notices one beyond."""
    messages = load(name)
    begins = [m[HEADER:] for m in messages if m[HEADER : HEADER + 1] == b"B"]
    all_of = [(int.from_bytes(b[1:9], "big"), int.from_bytes(b[17:21], "big")) for b in begins]
    until = data.draw(st.sampled_from([0, 2**62, *(lsn + d for lsn, _ in all_of for d in (0, 1))]))
    scan, found, beyond = TransactionScan(), [], False
    bounds = [0, *sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=8))), len(messages)]
    for first, end in pairwise(bounds):
        last, further = scan.last_below(messages[first:end], Lsn(until))
        found += [] if last is None else [(last.commit_lsn, last.xid)]
        beyond = beyond or further
    assert found[-1:] == [(lsn, xid) for lsn, xid in all_of if lsn < until][-1:]
    assert beyond == (any(lsn >= until for lsn, _ in all_of) or until == 0)
    assert not scan.in_transaction


@cache
def known(name: str) -> Resolver:
    """The schemas that a stream's first relations have, whatever becomes of it."""
    items = Decoder(Versions()).decode(load(name)).items
    return Resolver({i.schema.id: i.schema for i in reversed(items) if isinstance(i, RelationChange)})


def break_bytes(data: st.DataObject, message: bytes) -> bytes:
    """Cut a message short, lengthen it, or change some of its bytes behind the header."""
    how = data.draw(st.sampled_from(["cut", "longer", "bytes"]))
    if how == "cut":
        return message[: data.draw(st.integers(0, len(message) - 1))]
    if how == "longer":
        return message + data.draw(st.binary(min_size=1, max_size=9))
    broken = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(message) - 1))] = data.draw(st.integers(0, 255))
    return bytes(broken)


@settings(max_examples=300)
@given(data=st.data(), name=st.sampled_from(NAMES))
def test_a_broken_stream_is_a_decode_error_or_decodes(data: st.DataObject, name: str) -> None:
    """Any input gives a DecodeError with a position, or columns with valid values, and no other error."""
    messages = load(name)
    at = data.draw(st.integers(0, len(messages) - 1))
    how = data.draw(st.sampled_from(["break", "drop", "repeat", "swap"]))
    if how == "break":
        messages[at] = break_bytes(data, messages[at])
    elif how == "drop":
        del messages[at]
    elif how == "repeat":
        messages.insert(at, messages[at])
    else:
        messages[at], messages[at - 1] = messages[at - 1], messages[at]
    try:
        batch = Decoder(known(name), message_prefixes=PREFIXES).decode(messages)
    except DecodeError as error:
        assert "LSN" in str(error)  # noqa: PT017  # either outcome is right, and this is what the one must say
        return
    for item in batch.items:
        if isinstance(item, TableChanges):
            item.rows.validate(full=True)
    list(show(batch_events(batch)))
