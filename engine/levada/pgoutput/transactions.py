"""Which transaction each message of a slice belongs to, and its number there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, NoReturn

import numpy as np

from levada.errors import DecodeError
from levada.pgoutput.messages import BEGIN_SIZE, COMMIT_SIZE, HEADER, POSTGRES_EPOCH_US
from levada.pgoutput.wire import Bools, Bytes, Ints, WireBuffer
from levada.values import Lsn

_BEGIN, _COMMIT, _RELATION, _TRUNCATE = b"BCRT"

COUNTED: Final = np.isin(np.arange(256), list(b"IUDT"))
"""By kind: the messages that a transaction's ordinals count. BEGIN and RELATION are sent anew in each session."""
_NEEDS_TRANSACTION: Final = COUNTED | (np.arange(256) == _RELATION)


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose COMMIT is still to come; ``commit_ts_us`` is in microseconds since 1970-01-01 UTC."""

    commit_lsn: int
    commit_ts_us: int
    xid: int
    next_ordinal: int


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions of a slice; ``open`` is the one that it ends in.

    ``of`` has each message's transaction, an index into ``commit_lsn``, ``commit_ts_us`` and ``xid``; ``ordinal`` the
    number that the message has there, or of the next one if it is not counted. ``of`` and ``ordinal`` mean nothing
    outside of a transaction, where ``inside`` is False.
    """

    of: Ints
    ordinal: Ints
    inside: Bools
    commit_lsn: Ints
    commit_ts_us: Ints
    xid: Ints
    committed: int
    end_lsn: Lsn | None
    last_commit_ts_us: int | None
    open: OpenTransaction | None


def follow_transactions(
    buffer: WireBuffer, start: Ints, end: Ints, kinds: Bytes, before: OpenTransaction | None
) -> Transactions:
    """Assign the messages to transactions, the first ones to ``before``; raise DecodeError where they do not nest."""
    begins = np.flatnonzero(kinds == _BEGIN)
    commits = np.flatnonzero(kinds == _COMMIT)
    at = _Faults(buffer, start)
    at.check(begins, end[begins] - start[begins] == HEADER + BEGIN_SIZE, "malformed_message", "a BEGIN of a wrong size")
    at.check(
        commits, end[commits] - start[commits] == HEADER + COMMIT_SIZE, "malformed_message", "a COMMIT of a wrong size"
    )
    of = np.cumsum(kinds == _BEGIN)
    inside = _nesting(at, kinds, begins, commits, of, before)

    body = start[begins] + HEADER
    first = before or OpenTransaction(0, 0, 0, 0)
    commit_lsn = np.concatenate(([first.commit_lsn], buffer.int8(body + 1)))
    commit_ts_us = np.concatenate(([first.commit_ts_us], buffer.int8(body + 9) + POSTGRES_EPOCH_US))
    xid = np.concatenate(([first.xid], buffer.uint4(body + 17)))
    at.check(begins, commit_lsn[1:] >= 0, "malformed_message", "a BEGIN with an LSN that cannot be")

    body = start[commits] + HEADER
    at.check(
        commits,
        buffer.int8(body + 2) == commit_lsn[of[commits]],
        "commit_lsn_mismatch",
        "a COMMIT whose LSN is not the one that BEGIN announced",
    )
    ends = buffer.int8(body + 10)
    at.check(commits, ends >= 0, "malformed_message", "a COMMIT with an LSN that cannot be")

    counted = COUNTED[kinds]
    seen: Ints = np.cumsum(counted) - counted
    ordinal = seen - np.concatenate(([-first.next_ordinal], seen[begins]))[of]
    return Transactions(
        of,
        ordinal,
        inside,
        commit_lsn,
        commit_ts_us,
        xid,
        committed=len(commits),
        end_lsn=Lsn(ends[-1]) if len(commits) else None,
        last_commit_ts_us=int(commit_ts_us[of[commits[-1]]]) if len(commits) else None,
        open=_still_open(before, begins, commits, int(ordinal[-1] + counted[-1]), commit_lsn, commit_ts_us, xid),
    )


def _nesting(at: _Faults, kinds: Bytes, begins: Ints, commits: Ints, of: Ints, before: OpenTransaction | None) -> Bools:
    was_open = before is not None
    bounds = np.sort(np.concatenate((begins, commits)))
    begin_expected = (np.arange(len(bounds)) + was_open) % 2 == 0
    at.check(
        bounds,
        (kinds[bounds] == _BEGIN) == begin_expected,
        "transactions_do_not_nest",
        "a BEGIN inside of a transaction, or a COMMIT outside of one",
    )
    inside: Bools = (of + was_open - np.cumsum(kinds == _COMMIT)) == 1
    needing = np.flatnonzero(_NEEDS_TRANSACTION[kinds])
    at.check(needing, inside[needing], "row_outside_transaction", "a change or relation outside of a transaction")
    return inside


def _still_open(
    before: OpenTransaction | None,
    begins: Ints,
    commits: Ints,
    next_ordinal: int,
    commit_lsn: Ints,
    commit_ts_us: Ints,
    xid: Ints,
) -> OpenTransaction | None:
    last_begin = begins[-1] if len(begins) else -1
    last_commit = commits[-1] if len(commits) else -1
    if last_begin > last_commit:
        return OpenTransaction(int(commit_lsn[-1]), int(commit_ts_us[-1]), int(xid[-1]), next_ordinal)
    return replace(before, next_ordinal=next_ordinal) if before is not None and last_commit < 0 else None


class _Faults:
    """Turns the first message that fails a check into a DecodeError."""

    def __init__(self, buffer: WireBuffer, start: Ints) -> None:
        self._buffer = buffer
        self._start = start

    def check(self, messages: Ints, good: Bools, code: str, what: str) -> None:
        if not good.all():
            fail(self._buffer, self._start, int(messages[good.argmin()]), code, what)


def message_lsn(buffer: WireBuffer, start: Ints, message: int) -> Lsn:
    """Return the WAL position in a message's header."""
    return Lsn(buffer.view(">u8")[start[message] + 1])


def fail(buffer: WireBuffer, start: Ints, message: int, code: str, what: str) -> NoReturn:
    """Raise the DecodeError of a message."""
    raise DecodeError(code, f"message at LSN {message_lsn(buffer, start, message)}: {what}")
