"""A slice of the stream: its messages in one buffer, their transactions, and its row messages by relation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from levada.pgoutput.messages import HEADER
from levada.pgoutput.rows import TUPLE, RowMessages
from levada.pgoutput.transactions import OpenTransaction, fail, follow_transactions, message_lsn
from levada.pgoutput.wire import Bytes, Ints, WireBuffer
from levada.values import Lsn, SnapshotId

_KINDS: Final = np.arange(256)
_IS_ROW: Final = np.isin(_KINDS, list(b"IUD"))
_IS_SINGLE: Final = np.isin(_KINDS, list(b"RTM"))
_IS_KNOWN: Final = np.isin(_KINDS, list(b"BCIUDTRYOM"))
_XLOG_DATA: Final = ord("w")


class Slice:
    """Messages with their frames checked; row messages are taken out of it by `take`, each once."""

    def __init__(self, messages: Sequence[bytes], before: OpenTransaction | None) -> None:
        """Take CopyData payloads; ``before`` is the transaction that they begin in. Raise DecodeError."""
        self.buffer, self.start, self.end = WireBuffer.join(messages)
        self.kinds = self._framed_kinds()
        self.transactions = follow_transactions(self.buffer, self.start, self.end, self.kinds, before)
        self._rows = self._rows_by_relation()

    def __len__(self) -> int:
        return len(self.kinds)

    def singles(self) -> list[int]:
        """Return the messages that are decoded one by one: relations, truncates, logical messages."""
        found: list[int] = np.flatnonzero(_IS_SINGLE[self.kinds]).tolist()
        return found

    def kind(self, message: int) -> int:
        """Return a message's kind, an ASCII letter."""
        return int(self.kinds[message])

    def lsn(self, message: int) -> Lsn:
        """Return the WAL position in a message's header."""
        return message_lsn(self.buffer, self.start, message)

    def body(self, message: int) -> bytes:
        """Return a message without its header."""
        start, end = int(self.start[message]) + HEADER, int(self.end[message])
        body: bytes = self.buffer.bytes[start:end].tobytes()
        return body

    def commit_lsn(self, message: int) -> SnapshotId:
        """Return the final LSN of the message's transaction."""
        return SnapshotId(self.transactions.commit_lsn[self.transactions.of[message]])

    def relations(self) -> list[int]:
        """Return the relations that row messages are left of."""
        return list(self._rows)

    def take(self, relation: int, before: int) -> Ints | None:
        """Take out a relation's row messages before a message (exclusive); None if there is none."""
        left = self._rows.get(relation)
        if left is None:
            return None
        cut = int(np.searchsorted(left, before))
        if cut == len(left):
            del self._rows[relation]
        else:
            self._rows[relation] = left[cut:]
        return left[:cut] if cut else None

    def rows(self, picked: Ints) -> RowMessages:
        """Return row messages for `decode_rows`."""
        t = self.transactions
        of = t.of[picked]
        return RowMessages(
            self.buffer,
            self.start[picked],
            self.end[picked],
            self.kinds[picked],
            t.commit_lsn[of],
            t.ordinal[picked],
            t.commit_ts_us[of],
            t.xid[of],
        )

    def _framed_kinds(self) -> Bytes:
        size = self.end - self.start
        # A message without its header has no LSN to name.
        if (short := size <= HEADER).any():
            before = max(int(short.argmax()) - 1, 0)
            fail(self.buffer, self.start, before, "malformed_message", "the next one has no header")
        kinds: Bytes = self.buffer.bytes[self.start + HEADER]
        if (strange := self.buffer.bytes[self.start] != _XLOG_DATA).any():
            fail(self.buffer, self.start, int(strange.argmax()), "malformed_message", "it is no XLogData")
        if (unknown := ~_IS_KNOWN[kinds]).any():
            what = "its kind is not one of pgoutput's protocol version 1"
            fail(self.buffer, self.start, int(unknown.argmax()), "unsupported_message", what)
        if (short := _IS_ROW[kinds] & (size <= TUPLE)).any():
            fail(self.buffer, self.start, int(short.argmax()), "malformed_message", "a row that ends too early")
        return kinds

    def _rows_by_relation(self) -> dict[int, Ints]:
        rows = np.flatnonzero(_IS_ROW[self.kinds])
        if not len(rows):
            return {}
        relation = self.buffer.uint4(self.start[rows] + HEADER + 1)
        if (relation == relation[0]).all():
            return {int(relation[0]): rows}
        order = np.argsort(relation, kind="stable")
        sorted_ = relation[order]
        bounds = np.flatnonzero(np.diff(sorted_)) + 1
        groups = np.split(rows[order], bounds)
        return {int(sorted_[first]): g for first, g in zip([0, *bounds.tolist()], groups, strict=True)}
