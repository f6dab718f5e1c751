"""Which transaction each message of a slice belongs to, and its number there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np

from levada.errors import DecodeError
from levada.pgoutput.messages import BEGIN_SIZE, COMMIT_SIZE, HEADER, POSTGRES_EPOCH_US
from levada.pgoutput.wire import Bools, Ints, WireBuffer
from levada.values import Lsn, Witness

_IMPOSSIBLE_LSN: Final = DecodeError("malformed_message", "a BEGIN or COMMIT with an LSN that cannot be")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction whose COMMIT is still to come; ``commit_ts_us`` is in microseconds since 1970-01-01 UTC.

    ``next_ordinal`` numbers its next row or truncate message.
    """

    commit_lsn: int
    commit_ts_us: int
    xid: int
    next_ordinal: int


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of a slice, and which of them are what; ``counted`` are those that ordinals count: rows, truncates.

    BEGIN and RELATION are sent anew in each session, so counting them would number a replay differently.
    """

    buffer: WireBuffer
    start: Ints
    end: Ints
    begins: Bools
    commits: Bools
    counted: Bools

    def fail(self, message: int, error: DecodeError) -> NoReturn:
        """Raise the error of a message, with its LSN put before the text."""
        raise DecodeError(error.code, f"message at LSN {self.lsn(message)}: {error.message}")

    def lsn(self, message: int) -> Lsn:
        """Return the WAL position in a message's header."""
        return Lsn(self.buffer.view(">u8")[self.start[message] + 1])

    def require(self, good: Bools, messages: Ints, error: DecodeError) -> None:
        """Raise the error of the first of ``messages`` that is not ``good``."""
        if not good.all():
            self.fail(int(messages[good.argmin()]), error)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions of a slice; the first one is that in which the slice begins (all zero if there is none).

    ``committed`` counts the COMMITs, ``last`` is the transaction of the last one, ``end_lsn`` is where that ends, and
    ``open`` is the transaction that the slice ends in.
    """

    commit_lsn: Ints
    commit_ts_us: Ints
    xid: Ints
    committed: int
    end_lsn: Lsn | None
    last: Witness | None
    open: OpenTransaction | None
    _of: Ints
    _end: Ints
    _counted_through: Ints
    _first_ordinal: Ints

    def begun_below(self, lsn: Lsn) -> Witness | None:
        """Return the last transaction that begins in the slice and commits below ``lsn``; None if there is none.

        The server sends transactions in the order of their commits, so each that begins here does commit.
        """
        below = int(np.searchsorted(self.commit_lsn[1:], lsn))
        return _witness(self.commit_lsn, self.commit_ts_us, self.xid, below) if below else None

    def of(self, messages: Ints) -> Ints:
        """Return the messages' transactions, as indexes into the arrays here."""
        return self._of[messages]

    def ordinals(self, messages: Ints) -> Ints:
        """Return the numbers in their transactions of messages that are counted."""
        ordinals: Ints = self._counted_through[messages] - 1 + self._first_ordinal[self._of[messages]]
        return ordinals

    def next_ordinal(self, message: int) -> int:
        """Return the number of the first counted message after one that is not counted."""
        return int(self._counted_through[message] + self._first_ordinal[self._of[message]])

    def has(self, message: int) -> bool:
        """Tell whether a message is inside of a transaction."""
        return bool(message < self._end[self._of[message]])


def follow_transactions(messages: Messages, before: OpenTransaction | None) -> Transactions:
    """Assign the messages to transactions, the first ones to ``before``; raise DecodeError where they do not nest."""
    buffer, count = messages.buffer, len(messages.start)
    begins, commits = np.flatnonzero(messages.begins), np.flatnonzero(messages.commits)
    _require_size(messages, begins, HEADER + BEGIN_SIZE)
    _require_size(messages, commits, HEADER + COMMIT_SIZE)
    _require_nesting(messages, begins, commits, before is not None)
    of: Ints = np.cumsum(messages.begins, dtype=np.int64)
    through: Ints = np.cumsum(messages.counted, dtype=np.int64)

    first = before or OpenTransaction(0, 0, 0, 0)
    body = messages.start[begins] + HEADER
    commit_lsn = np.concatenate(([first.commit_lsn], buffer.int8(body + 1)))
    commit_ts_us = np.concatenate(([first.commit_ts_us], buffer.int8(body + 9) + POSTGRES_EPOCH_US))
    xid = np.concatenate(([first.xid], buffer.uint4(body + 17)))
    messages.require(commit_lsn[1:] >= 0, begins, _IMPOSSIBLE_LSN)

    body = messages.start[commits] + HEADER
    end_lsn = buffer.int8(body + 10)
    messages.require(
        buffer.int8(body + 2) == commit_lsn[of[commits]],
        commits,
        DecodeError("commit_lsn_mismatch", "a COMMIT whose LSN is not the one that BEGIN announced"),
    )
    messages.require(end_lsn >= 0, commits, _IMPOSSIBLE_LSN)

    end = np.full(len(begins) + 1, count)
    if before is None:
        end[0] = 0
    end[of[commits]] = commits
    _require_inside(messages, through, begins, end)
    first_ordinal: Ints = np.concatenate(([first.next_ordinal], -through[begins]))
    last = len(begins)
    still_open = end[last] == count and (last > 0 or before is not None)
    next_ordinal = int(through[-1] + first_ordinal[last])
    return Transactions(
        commit_lsn,
        commit_ts_us,
        xid,
        committed=len(commits),
        end_lsn=Lsn(end_lsn[-1]) if len(commits) else None,
        last=_witness(commit_lsn, commit_ts_us, xid, int(of[commits[-1]])) if len(commits) else None,
        open=OpenTransaction(int(commit_lsn[last]), int(commit_ts_us[last]), int(xid[last]), next_ordinal)
        if still_open
        else None,
        _of=of,
        _end=end,
        _counted_through=through,
        _first_ordinal=first_ordinal,
    )


def _witness(commit_lsn: Ints, commit_ts_us: Ints, xid: Ints, transaction: int) -> Witness:
    return Witness(Lsn(commit_lsn[transaction]), int(xid[transaction]), int(commit_ts_us[transaction]))


def _require_size(messages: Messages, which: Ints, size: int) -> None:
    good = messages.end[which] - messages.start[which] == size
    messages.require(good, which, DecodeError("malformed_message", "a BEGIN or COMMIT of a wrong size"))


def _require_nesting(messages: Messages, begins: Ints, commits: Ints, was_open: bool) -> None:
    bounds = np.sort(np.concatenate((begins, commits)))
    begin_expected = np.arange(len(bounds)) % 2 == was_open
    messages.require(
        messages.begins[bounds] == begin_expected,
        bounds,
        DecodeError("transactions_do_not_nest", "a BEGIN inside of a transaction, or a COMMIT outside of one"),
    )


def _require_inside(messages: Messages, through: Ints, begins: Ints, end: Ints) -> None:
    """Between a transaction's end and the next one's beginning nothing may be counted."""
    until = np.append(begins, len(through))
    counted = np.concatenate(([0], through))
    if (strays := counted[until] != counted[end]).any():
        after = int(end[strays.argmax()])
        stray = after + int(messages.counted[after:].argmax())
        messages.fail(stray, DecodeError("row_outside_transaction", "a change outside of a transaction"))
