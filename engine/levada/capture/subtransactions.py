"""The subtransactions of one transaction in progress: which of its changes were rolled back to a savepoint.

The server sends the changes of a transaction in their order in the WAL, each with the ID of its subtransaction, and
later the IDs of those that were rolled back. Changes are counted as the decoder counts them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from levada.pgoutput import streamed
from levada.pgoutput.messages import HEADER
from levada.pgoutput.streamed import XID_END
from levada.segments.rolled_back import Ranges

COUNTED: Final = frozenset(b"IUDT")
"""The kinds that have an ordinal: rows and TRUNCATE."""


class Subtransactions:
    """The order of subtransactions in the messages of one transaction, as runs of changes of the same one.

    It is bounded: of a transaction with ``most_runs``, or with more than ``most_rolled_back`` subtransactions that were
    rolled back, it is not known what was rolled back. The ranges of these are in the memory of this process with the
    manifest of the segment.
    """

    def __init__(self, *, most_runs: int = 10_000, most_rolled_back: int = 1000) -> None:
        self._most_runs, self._most_rolled_back = most_runs, most_rolled_back
        self._runs: list[tuple[int, bytes]] = []
        """The ordinal of the first change of each run, and its subtransaction."""
        self._changed: set[bytes] = set()
        self._starts: dict[bytes, bytes] = {}
        """The WAL position of the first change or logical message of each subtransaction, as 8 bytes, in order."""
        self._rolled_back: set[bytes] = set()
        self.changes = 0
        """The number of changes so far."""
        self.is_known = True
        """Whether it is known which changes were rolled back."""

    def add(self, messages: Sequence[bytes]) -> None:
        """Take messages of blocks, in their order."""
        if len(self._runs) == self._most_runs or len({_subtransaction(m) for m in messages}) == 1:
            self._extend(messages)
            return
        for _, same in groupby(messages, _subtransaction):
            self._extend(list(same))

    def roll_back(self, xid: int) -> bool:
        """Register that a subtransaction was rolled back. Return True if it has changes among the messages so far.

        The result says nothing once `is_known` is False.
        """
        its = xid.to_bytes(4)
        if len(self._runs) == self._most_runs:
            self.is_known = False
        if its not in self._starts:
            return False
        self._rolled_back.add(its)
        self.is_known = self.is_known and len(self._rolled_back) <= self._most_rolled_back
        return its in self._changed

    @property
    def ranges(self) -> Ranges:
        """The ordinals of the changes that were rolled back."""
        found: list[tuple[int, int]] = []
        for first, end, its in self._bounded():
            if its not in self._rolled_back:
                continue
            if found and found[-1][1] == first:
                found[-1] = (found[-1][0], end)
            else:
                found.append((first, end))
        return tuple(found)

    @property
    def start_lsn(self) -> bytes | None:
        """The WAL position of the first change or logical message that was not rolled back, as 8 bytes.

        None if there is none.
        """
        return next((lsn for its, lsn in self._starts.items() if its not in self._rolled_back), None)

    def _bounded(self) -> Iterator[tuple[int, int, bytes]]:
        ends = [first for first, _ in self._runs[1:]] + [self.changes]
        for (first, its), end in zip(self._runs, ends, strict=True):
            yield first, end, its

    def _extend(self, messages: Sequence[bytes]) -> None:
        """Take messages of one subtransaction, or of any once there are too many runs."""
        its = _subtransaction(messages[0])
        if len(self._runs) < self._most_runs and its not in self._starts and (lsn := streamed.first_lsn(messages)):
            self._starts[its] = lsn
        counted = [m for m in messages if m[HEADER] in COUNTED]
        if not counted:
            return
        its = _subtransaction(counted[0])
        if (not self._runs or self._runs[-1][1] != its) and len(self._runs) < self._most_runs:
            self._runs.append((self.changes, its))
            self._changed.add(its)
        self.changes += len(counted)


def _subtransaction(message: bytes) -> bytes:
    return message[HEADER + 1 : XID_END]


def without(messages: Sequence[bytes], rolled_back: frozenset[int] | set[int]) -> list[bytes]:
    """Return the messages without changes of these subtransactions.

    The descriptions of relations stay, because the server sends each once. A message that means nothing (ORIGIN) is in
    place of changes after one, so that it does not look like the description of a partition of the next relation. It
    has no WAL position, so that the transaction does not begin with it.
    """
    kept: list[bytes] = []
    for message in messages:
        if message[HEADER] == streamed.RELATION or streamed.subtransaction(message) not in rolled_back:
            kept.append(message)
        elif kept and kept[-1][HEADER] == streamed.RELATION:
            header = message[:1] + bytes(8) + message[9:HEADER]
            kept.append(header + b"O" + _subtransaction(message) + bytes(8) + b"\0")
    return kept
