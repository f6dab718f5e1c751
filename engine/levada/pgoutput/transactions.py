"""The transaction of each message in a slice, and its ordinal in the transaction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np

from levada.errors import DecodeError
from levada.pgoutput.messages import BEGIN_SIZE, COMMIT_SIZE, HEADER, POSTGRES_EPOCH_US
from levada.pgoutput.wire import Bools, Ints, WireBuffer
from levada.values import Lsn, Witness

_IMPOSSIBLE_LSN: Final = DecodeError("malformed_message", "a BEGIN or COMMIT with an impossible LSN")


@dataclass(frozen=True, slots=True)
class OpenTransaction:
    """A transaction without its COMMIT so far. ``commit_ts_us`` is in microseconds since 1970-01-01 UTC.

    ``start_lsn`` is the WAL start in the header of its BEGIN. ``next_ordinal`` is the ordinal of its next row or
    truncate message. ``shown`` is True if a message of it was decoded to an item, so that its COMMIT is reported.
    """

    commit_lsn: int
    start_lsn: int
    commit_ts_us: int
    xid: int
    next_ordinal: int
    shown: bool = False


@dataclass(frozen=True, slots=True)
class Messages:
    """Messages of a slice, with masks of their kinds. Ordinals count the ``counted`` ones: rows and truncates.

    Each session sends BEGIN and RELATION again. If ordinals counted them, a replay would have other ordinals.
    """

    buffer: WireBuffer
    start: Ints
    end: Ints
    begins: Bools
    commits: Bools
    counted: Bools

    def fail(self, message: int, error: DecodeError) -> NoReturn:
        """Raise the error with the message's LSN in front of its text."""
        raise DecodeError(error.code, f"message at LSN {self.lsn(message)}: {error.message}")

    def lsn(self, message: int) -> Lsn:
        """Return the WAL position in a message's header."""
        return Lsn(self.buffer.view(">u8")[self.start[message] + 1])

    def require(self, good: Bools, messages: Ints, error: DecodeError) -> None:
        """Raise the error for the first of ``messages`` that is not ``good``."""
        if not good.all():
            self.fail(int(messages[good.argmin()]), error)


@dataclass(frozen=True, slots=True)
class Transactions:
    """The transactions of a slice. The first is the one that is open at its beginning, all zero if there is none.

    ``committed`` has the indexes of those whose COMMIT is in the slice. ``end_lsns`` has the end of each of these, and
    ``changes`` the number of its counted messages. ``last`` is the last of them. ``open`` is the transaction that is
    open at the end of the slice.
    """

    commit_lsn: Ints
    start_lsn: Ints
    commit_ts_us: Ints
    xid: Ints
    committed: Ints
    end_lsns: Ints
    changes: Ints
    last: Witness | None
    open: OpenTransaction | None
    _of: Ints
    _end: Ints
    _counted_through: Ints
    _first_ordinal: Ints

    @property
    def end_lsn(self) -> Lsn | None:
        """The end of the last committed transaction, or None."""
        return Lsn(self.end_lsns[-1]) if len(self.end_lsns) else None

    def begun_below(self, lsn: Lsn) -> Witness | None:
        """Return the last transaction that begins in the slice and commits below ``lsn``, or None.

        The server sends transactions in the order of their commits, so each transaction that begins here also commits.
        """
        below = int(np.searchsorted(self.commit_lsn[1:], lsn))
        return _witness(self.commit_lsn, self.commit_ts_us, self.xid, below) if below else None

    def of(self, messages: Ints) -> Ints:
        """Return the messages' transactions, as indexes into this object's arrays."""
        return self._of[messages]

    def ordinals(self, messages: Ints) -> Ints:
        """Return the ordinals of counted messages."""
        ordinals: Ints = self._counted_through[messages] - 1 + self._first_ordinal[self._of[messages]]
        return ordinals

    def next_ordinal(self, message: int) -> int:
        """Return the ordinal of the next counted message after a message that is not counted."""
        return int(self._counted_through[message] + self._first_ordinal[self._of[message]])

    def has(self, message: int) -> bool:
        """Return True if the message is inside a transaction."""
        return bool(message < self._end[self._of[message]])


def assign_transactions(messages: Messages, before: OpenTransaction | None) -> Transactions:
    """Assign the messages to transactions, the first ones to ``before``.

    Raise DecodeError if a transaction begins inside another one, or ends outside of one.
    """
    buffer, count = messages.buffer, len(messages.start)
    begins, commits = np.flatnonzero(messages.begins), np.flatnonzero(messages.commits)
    _require_size(messages, begins, HEADER + BEGIN_SIZE)
    _require_size(messages, commits, HEADER + COMMIT_SIZE)
    _require_nesting(messages, begins, commits, before is not None)
    of: Ints = np.cumsum(messages.begins, dtype=np.int64)
    through: Ints = np.cumsum(messages.counted, dtype=np.int64)

    first = before or OpenTransaction(0, 0, 0, 0, 0)
    body = messages.start[begins] + HEADER
    commit_lsn = np.concatenate(([first.commit_lsn], buffer.int8(body + 1)))
    start_lsn = np.concatenate(([first.start_lsn], buffer.int8(messages.start[begins] + 1)))
    commit_ts_us = np.concatenate(([first.commit_ts_us], buffer.int8(body + 9) + POSTGRES_EPOCH_US))
    xid = np.concatenate(([first.xid], buffer.uint4(body + 17)))
    messages.require((commit_lsn[1:] >= 0) & (start_lsn[1:] >= 0), begins, _IMPOSSIBLE_LSN)

    body = messages.start[commits] + HEADER
    end_lsns = buffer.int8(body + 10)
    committed: Ints = of[commits]
    messages.require(
        buffer.int8(body + 2) == commit_lsn[committed],
        commits,
        DecodeError("commit_lsn_mismatch", "a COMMIT whose LSN differs from the one in its BEGIN"),
    )
    messages.require(end_lsns >= 0, commits, _IMPOSSIBLE_LSN)

    end = np.full(len(begins) + 1, count)
    if before is None:
        end[0] = 0
    end[committed] = commits
    _require_inside(messages, through, begins, end)
    first_ordinal: Ints = np.concatenate(([first.next_ordinal], -through[begins]))
    last = len(begins)
    still_open = end[last] == count and (last > 0 or before is not None)
    next_ordinal = int(through[-1] + first_ordinal[last])
    return Transactions(
        commit_lsn,
        start_lsn,
        commit_ts_us,
        xid,
        committed=committed,
        end_lsns=end_lsns,
        changes=through[commits] + first_ordinal[committed],
        last=_witness(commit_lsn, commit_ts_us, xid, int(committed[-1])) if len(commits) else None,
        open=OpenTransaction(
            int(commit_lsn[last]), int(start_lsn[last]), int(commit_ts_us[last]), int(xid[last]), next_ordinal
        )
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
    messages.require(good, which, DecodeError("malformed_message", "a BEGIN or COMMIT of the wrong size"))


def _require_nesting(messages: Messages, begins: Ints, commits: Ints, was_open: bool) -> None:
    bounds = np.sort(np.concatenate((begins, commits)))
    begin_expected = np.arange(len(bounds)) % 2 == was_open
    messages.require(
        messages.begins[bounds] == begin_expected,
        bounds,
        DecodeError("transactions_do_not_nest", "a BEGIN inside a transaction, or a COMMIT outside of one"),
    )


def _require_inside(messages: Messages, through: Ints, begins: Ints, end: Ints) -> None:
    """Raise DecodeError if a counted message is between a transaction's end and the beginning of the next one."""
    until = np.append(begins, len(through))
    counted = np.concatenate(([0], through))
    if (strays := counted[until] != counted[end]).any():
        after = int(end[strays.argmax()])
        stray = after + int(messages.counted[after:].argmax())
        messages.fail(stray, DecodeError("row_outside_transaction", "a change outside of a transaction"))
