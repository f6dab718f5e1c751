"""Changes that were rolled back to a savepoint are known by their ordinals."""

from __future__ import annotations

import struct

from levada.capture.subtransactions import Subtransactions, without
from levada.pgoutput import streamed


def message(kind: str, xid: int, lsn: int = 0) -> bytes:
    """A message of a block, as far as its kind, its subtransaction and its place count. Descriptions have no place."""
    lsn *= kind != "R"
    return b"w" + struct.pack("!QQQ", lsn, 0, 0) + kind.encode() + struct.pack("!I", xid)


def taken(*each: tuple[str, int], **limits: int) -> Subtransactions:
    """The subtransactions of messages, of which each comes alone and has its number as its place."""
    parts = Subtransactions(**limits)
    for n, (kind, xid) in enumerate(each):
        parts.add([message(kind, xid, n + 1)])
    return parts


def test_the_ranges_are_those_of_the_changes() -> None:
    """Descriptions and logical messages have no ordinal. Ranges that touch are one."""
    rows = [("R", 1), ("I", 1), ("U", 2), ("R", 2), ("D", 2), ("M", 3), ("T", 3), ("I", 1), ("I", 4)]
    for parts in (taken(*rows), Subtransactions()):
        if not parts.changes:
            parts.add([message(kind, xid, n + 1) for n, (kind, xid) in enumerate(rows)])
        assert (parts.changes, parts.ranges, parts.start_lsn) == (6, (), (2).to_bytes(8))
        assert [parts.roll_back(n) for n in (3, 7, 2)] == [True, False, True]
        assert parts.ranges == ((1, 4),)
        assert parts.roll_back(1)
        assert (parts.ranges, parts.start_lsn, parts.is_known) == (((0, 5),), (9).to_bytes(8), True)
        assert parts.roll_back(4)
        assert (parts.ranges, parts.start_lsn) == (((0, 6),), None)


def test_a_transaction_begins_with_what_was_not_rolled_back() -> None:
    """A logical message counts as a change does, alone in its subtransaction too."""
    parts = taken(("R", 1), ("M", 2), ("M", 1), ("I", 3), ("I", 1))
    assert (parts.roll_back(2), parts.start_lsn) == (False, (3).to_bytes(8))
    assert (parts.roll_back(3), parts.start_lsn) == (True, (3).to_bytes(8))
    left = without([message(kind, xid, n + 1) for n, (kind, xid) in enumerate((("R", 2), ("I", 2), ("I", 1)))], {2})
    assert streamed.first_lsn(left) == (3).to_bytes(8)


def test_it_is_bounded() -> None:
    """With too many runs or rolled back parts it says that it does not know, and only then."""
    many = taken(*(("I", n) for n in range(9)), most_runs=5)
    assert many.is_known
    assert (many.roll_back(8), many.is_known) == (False, False)
    few = taken(*(("I", n) for n in range(4)), most_rolled_back=2)
    assert [(few.roll_back(n), few.is_known) for n in range(3)] == [(True, True), (True, True), (True, False)]


def test_descriptions_of_parts_that_were_rolled_back_stay() -> None:
    """The server sends each once. Another message stands between two descriptions that had changes between them."""
    messages = [message(kind, xid) for kind, xid in (("R", 2), ("I", 2), ("I", 2), ("R", 2), ("I", 1), ("I", 2))]
    kept = without(messages, {2})
    assert [m[25:26] for m in kept] == [b"R", b"O", b"R", b"I"]
