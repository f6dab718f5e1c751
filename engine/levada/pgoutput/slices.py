"""A slice of the stream: its messages in one buffer, their transactions, and its row messages by relation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import pyarrow as pa

from levada.errors import DecodeError
from levada.pgoutput.changes import TRANSACTIONS
from levada.pgoutput.messages import HEADER
from levada.pgoutput.rows import TUPLE, RowMessages
from levada.pgoutput.transactions import Messages, OpenTransaction, assign_transactions
from levada.pgoutput.wire import Bytes, Ints, WireBuffer
from levada.values import Lsn, SnapshotId

_BEGIN, _COMMIT, _TYPE, _XLOG_DATA = b"BCYw"
_ROW, _COUNTED, _SINGLE, _OTHER = 1, 2, 4, 8
_CLASSES: Final = {
    **dict.fromkeys(b"IUD", _ROW | _COUNTED),
    **dict.fromkeys(b"T", _SINGLE | _COUNTED),
    **dict.fromkeys(b"RM", _SINGLE),
    **dict.fromkeys(b"BCYO", _OTHER),
}
_CLASS: Final = np.array([_CLASSES.get(kind, 0) for kind in range(256)], np.uint8)
"""The class of each message kind. 0 is not a message kind of pgoutput's protocol version 1."""


class Slice:
    """Messages with validated headers. `take` returns each row message once."""

    def __init__(self, messages: Sequence[bytes], sizes: Ints, before: OpenTransaction | None) -> None:
        """Index the CopyData payloads.

        ``before`` is the transaction that is open at their beginning. Raise DecodeError.
        """
        _require_headers(messages, sizes)
        self.buffer, self.start, self.end = WireBuffer.join(messages, sizes)
        self.kinds: Bytes = self.buffer.bytes[self.start + HEADER]
        classes = _CLASS[self.kinds]
        is_row = classes & _ROW != 0
        self._messages = Messages(
            self.buffer, self.start, self.end, self.kinds == _BEGIN, self.kinds == _COMMIT, classes & _COUNTED != 0
        )
        self._require_known(classes)
        self.transactions = assign_transactions(self._messages, before)
        self.singles: list[int] = np.flatnonzero(classes & _SINGLE).tolist()
        """The messages that are decoded one by one: relations, truncates, logical messages."""
        self._rows = self._rows_by_relation(np.flatnonzero(is_row))
        self._shown = np.zeros(len(self.transactions.xid), np.bool_)
        self._shown[0] = before is not None and before.shown

    def __len__(self) -> int:
        return len(self.kinds)

    def lsn(self, message: int) -> Lsn:
        """Return the WAL position in a message's header."""
        return self._messages.lsn(message)

    def body(self, message: int) -> bytes:
        """Return a message without its header."""
        start, end = int(self.start[message]) + HEADER, int(self.end[message])
        body: bytes = self.buffer.bytes[start:end].tobytes()
        return body

    def neighbour(self, message: int, step: int) -> int | None:
        """Return the next message in the direction ``step``, 1 or -1, that describes no type. None beyond the slice."""
        place = message + step
        while 0 <= place < len(self) and self.kinds[place] == _TYPE:
            place += step
        return place if 0 <= place < len(self) else None

    def commit_lsn(self, message: int) -> SnapshotId:
        """Return the commit LSN of the message's transaction. Raise DecodeError outside of one."""
        if not self.transactions.has(message):
            error = DecodeError("row_outside_transaction", "a relation or message outside of a transaction")
            self._messages.fail(message, error)
        return SnapshotId(self.transactions.commit_lsn[self.transactions.of(np.array([message]))[0]])

    def xid(self, message: int) -> int:
        """Return the ID of the message's transaction."""
        return int(self.transactions.xid[self.transactions.of(np.array([message]))[0]])

    def show(self, messages: Ints) -> None:
        """Record that these messages are decoded to items, so that their transactions are in `committed`."""
        self._shown[self.transactions.of(messages)] = True

    def committed(self) -> pa.RecordBatch:
        """Return the transactions that have an item and whose COMMIT is in the slice, in the layout `TRANSACTIONS`."""
        t = self.transactions
        shown = self._shown[t.committed]
        which = t.committed[shown]
        columns = (
            t.commit_lsn[which], t.start_lsn[which], t.end_lsns[shown], t.xid[which], t.commit_ts_us[which],
            t.changes[shown],
        )  # fmt: skip
        return pa.RecordBatch.from_arrays(list(map(pa.array, columns)), schema=TRANSACTIONS)

    def still_open(self) -> OpenTransaction | None:
        """Return the transaction that is open at the end of the slice, or None."""
        found = self.transactions.open
        return None if found is None else replace(found, shown=bool(self._shown[-1]))

    def relations(self) -> list[int]:
        """Return the relations that have row messages left."""
        return list(self._rows)

    def take(self, relation: int, before: int) -> Ints | None:
        """Remove and return a relation's row messages before the message ``before`` (exclusive), or None."""
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
        self.show(picked)
        t = self.transactions
        of = t.of(picked)
        return RowMessages(
            self.buffer,
            self.start[picked],
            self.end[picked],
            self.kinds[picked],
            t.commit_lsn[of],
            t.ordinals(picked),
            t.commit_ts_us[of],
            t.xid[of],
        )

    def _require_known(self, classes: Bytes) -> None:
        everything = np.arange(len(self))
        framed = self.buffer.bytes[self.start] == _XLOG_DATA
        self._messages.require(framed, everything, DecodeError("malformed_message", "it is not XLogData"))
        known = classes != 0
        if not known.all():
            kind = chr(self.buffer.bytes[self.start[known.argmin()] + HEADER])
            error = DecodeError("unsupported_message", f"its kind {kind!r} is not one of pgoutput's protocol version 1")
            self._messages.require(known, everything, error)

    def _rows_by_relation(self, rows: Ints) -> dict[int, Ints]:
        if not len(rows):
            return {}
        start = self.start[rows]
        error = DecodeError("malformed_message", "a truncated row")
        self._messages.require(self.end[rows] - start > TUPLE, rows, error)
        relation = self.buffer.uint4(start + HEADER + 1)
        if (relation == relation[0]).all():
            return {int(relation[0]): rows}
        order = np.argsort(relation, kind="stable")
        bounds = np.flatnonzero(np.diff(relation[order])) + 1
        groups = np.split(rows[order], bounds)
        return {int(relation[order[first]]): g for first, g in zip([0, *bounds.tolist()], groups, strict=True)}


def _require_headers(messages: Sequence[bytes], sizes: Ints) -> None:
    if (short := sizes <= HEADER).any():
        first = int(short.argmax())
        # The message has no LSN. The LSN of the previous message locates the error.
        where = f"after LSN {Lsn(int.from_bytes(messages[first - 1][1:9], 'big'))}" if first else "at an unknown LSN"
        raise DecodeError("malformed_message", f"message {where}: it has no header")
