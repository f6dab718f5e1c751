"""Transactions that arrive while they are in progress. Each is in a file until its end, and is an ordinary one then.

The server sends a transaction in progress once it needs more than its `logical_decoding_work_mem`, which it would
otherwise write to its own disk until the COMMIT. A process that ends loses the files. The server sends these
transactions again, because the slot has not passed their commits. `EarlySegments` stages the rows of a large one before
its end. The messages are kept all the same, because some of these segments cannot be used.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from levada.capture.early_segments import EarlySegments, EndedTransaction
from levada.capture.message_stream import MessageStream
from levada.capture.subtransactions import without
from levada.pgoutput import streamed
from levada.pgoutput.messages import HEADER
from levada.pgoutput.streamed import StreamCommit
from levada.values import Lsn

_START, _STOP, _COMMIT, _ABORT = (bytes([kind]) for kind in b"SEcA")
_OUTSIDE: Final = frozenset((_START, _COMMIT, _ABORT))
"""Kinds of version 2 that are in no block. A server can roll back a transaction of which it has sent nothing."""
_KIND: Final = slice(HEADER, HEADER + 1)
_TELLING: Final = frozenset({streamed.RELATION, streamed.LOGICAL})
_CODEC: Final = "lz4"


@dataclass(frozen=True, slots=True)
class InProgressLimits:
    """The limits of transactions in progress.

    A transaction's messages are written once there are ``chunk_messages`` or ``chunk_bytes`` of them. All files
    together may have ``bytes``, and leave the share ``free`` of their disk free.
    """

    chunk_messages: int = 8192
    chunk_bytes: int = 1 << 20
    bytes: int = 1 << 30
    free: float = 0.1


class NotKeptError(Exception):
    """A transaction in progress cannot be kept, or read as it was committed. It can be received after its commit."""


class TransactionsInProgress:
    """A stream of protocol version 2 as one of version 1: each transaction is complete, in the order of the commits.

    The files have no name, and are in ``folder``, which may be None for a stream of version 1. Before version 15
    (``server_version`` as libpq has it, such as 150004), the server sends also transactions without a change. See
    `MessageStream`. `receive` raises NotKeptError.
    """

    def __init__(
        self,
        stream: MessageStream,
        folder: Path | None,
        *,
        server_version: int,
        limits: InProgressLimits | None = None,
        early: EarlySegments | None = None,
    ) -> None:
        self._stream = stream
        self._folder = folder
        self._shows_empty = server_version < 150_000
        self._limits = limits or InProgressLimits()
        self._early = early
        self._ended: EndedTransaction | None = None
        self._kept: dict[int, _Kept] = {}
        self._block: _Kept | None = None
        self._pending: list[bytes] = []
        self._committed: Iterator[list[bytes]] = iter(())
        self._replaying = False
        self.outdated = False
        """True if the server will not describe a relation again that this stream has left out.

        Then nothing more is received, and a new session is necessary.
        """

    @property
    def server_wal_end(self) -> Lsn:
        """The position up to which the server has read its WAL."""
        return self._stream.server_wal_end

    @property
    def idle_wal_end(self) -> Lsn | None:
        """The position below which no change is missing once all messages are handled, or None if it is not known.

        The commits of transactions in progress are not below it.
        """
        behind = self._pending or self._replaying or self._ended or self._block is not None or self.outdated
        return None if behind else self._stream.idle_wal_end

    @property
    def in_progress_bytes(self) -> int:
        """The size of the transactions in progress, in files and in memory."""
        return sum(kept.size for kept in list(self._kept.values()))

    def acknowledge(self, lsn: Lsn) -> None:
        """Let the slot advance to ``lsn``."""
        self._stream.acknowledge(lsn)

    def keepalive(self) -> None:
        """Report to the server if a report is due."""
        self._stream.keepalive()

    def close(self) -> None:
        """Remove the transactions in progress."""
        if self._early is not None:
            self._early.close()
        for kept in self._kept.values():
            kept.close()
        self._kept.clear()

    def receive(self, max_messages: int, max_bytes: int, timeout_s: float) -> list[bytes]:
        """Return the messages of committed transactions. The list can be empty before ``timeout_s``.

        The next call returns a transaction that `EarlySegments.take_ended` has after this one, unless it is staged.
        """
        while True:
            self._settle_ended()
            if self._replaying:
                if messages := next(self._committed, []):
                    return messages
                self._replaying = False
            if self.outdated:
                self._stream.keepalive()
                return []
            messages, self._pending = self._pending, []
            if not messages:
                messages = self._stream.receive(max_messages, max_bytes, timeout_s)
            if self._block is None and not self._kept and _OUTSIDE.isdisjoint(m[_KIND] for m in messages):
                return messages
            complete = self._sorted(messages)
            if complete or not self._replaying:
                return complete

    def _sorted(self, messages: Sequence[bytes]) -> list[bytes]:
        """Keep what is in progress, and return the other messages, up to the first commit of one that was kept."""
        complete: list[bytes] = []
        for i, message in enumerate(messages):
            kind = message[_KIND]
            if self._block is not None:
                if kind == _STOP:
                    self._block = None
                else:
                    self._keep(self._block, message)
            elif kind == _START:
                self._block = self._begun(streamed.block_xid(message), message)
            elif kind == _ABORT:
                self._roll_back(*streamed.parse_abort(message))
            elif kind == _COMMIT:
                commit = streamed.parse_commit(message)
                self._end(commit, self._begun(commit.xid, message))
                self._pending = list(messages[i + 1 :])
                break
            else:
                complete.append(message)
        return complete

    def _begun(self, xid: int, message: bytes) -> _Kept:
        if xid not in self._kept:
            try:
                self._kept[xid] = _Kept(xid, self._folder, self._limits, message[1:9])
            except OSError as error:
                raise NotKeptError(f"a file in {self._folder}: {error.strerror}") from error
        return self._kept[xid]

    def _keep(self, kept: _Kept, message: bytes) -> None:
        try:
            written = kept.add(message)
        except OSError as error:
            raise NotKeptError(f"a file in {self._folder}: {error.strerror}") from error
        if written and (total := self.in_progress_bytes) > self._limits.bytes:
            raise NotKeptError(f"{total} bytes of them in {self._folder}, and {self._limits.bytes} are allowed")
        if written and self._early is not None:
            self._early.add(kept.xid, without(written, kept.rolled_back) if kept.rolled_back else written)

    def _roll_back(self, xid: int, subtransaction: int) -> None:
        if self._early is not None:
            if xid == subtransaction:
                self._early.drop(xid)
            else:
                self._early.roll_back(xid, subtransaction)
        if xid == subtransaction:
            if (kept := self._kept.pop(xid, None)) is not None:
                kept.close()
        elif (kept := self._kept.get(xid)) is not None:
            kept.rolled_back.add(subtransaction)

    def _end(self, commit: StreamCommit, kept: _Kept) -> None:
        if self._early is not None and self._early.holds_some(commit.xid):
            self._early.add(commit.xid, without(kept.unwritten, kept.rolled_back))
            first = self._early.start_lsn(commit.xid)
            if first is None or (kept.altered and kept.rolled_back):
                self._early.drop(commit.xid)
            else:
                begin = commit.begin(kept.start if self._shows_empty else first)
                self._ended = self._early.end(commit.xid, begin, commit)
        if self._ended is None:
            self._committed, self._replaying = self._replay(commit, kept), True

    def _settle_ended(self) -> None:
        """Forget the transaction that has ended if it is staged, otherwise return its messages from now on."""
        ended, self._ended = self._ended, None
        if ended is None:
            return
        kept = self._kept[ended.xid]
        if ended.staged:
            del self._kept[ended.xid]
            kept.close()
            return
        assert self._early is not None
        self._early.drop(ended.xid)
        self._committed, self._replaying = self._replay(ended.commit, kept), True

    def _replay(self, commit: StreamCommit, kept: _Kept) -> Iterator[list[bytes]]:
        if kept.altered and kept.rolled_back:
            # The server may have read catalog entries of before, which the transaction has written over meanwhile. Most
            # often it notices (reorderbuffer.c, "concurrent aborts"), but not in each case.
            raise NotKeptError(f"transaction {commit.xid} has rolled back a part, and altered a relation")
        left_out = _LeftOut()
        begun = self._shows_empty
        if begun:
            yield [commit.begin(kept.start)]
        messages: list[bytes] = []
        for chunk in kept.chunks():
            messages += _committed_of(chunk, kept.rolled_back, left_out)
            if not begun and (first := streamed.first_lsn(messages)) is not None:
                messages.insert(0, commit.begin(first))
                begun = True
            if begun and messages:
                yield messages
                messages = []
        if messages:
            yield [commit.begin(kept.start), *messages]
            begun = True
        if begun:
            yield [commit.commit()]
        del self._kept[commit.xid]
        kept.close()
        # The server takes them for known from now on.
        self.outdated = bool(left_out)


class _LeftOut:
    """The descriptions of relations that no message has needed yet.

    One that follows that of another relation is of a partition, whose rows need only the other one. So it is kept with
    that too.
    """

    def __init__(self) -> None:
        self._messages: dict[int, list[bytes]] = {}
        self._before: bytes | None = None

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, plain: bytes) -> None:
        """Keep a description."""
        self._messages.setdefault(streamed.relation_of(plain), []).append(plain)
        if self._before is not None:
            self._messages.setdefault(streamed.relation_of(self._before), []).append(plain)
        self._before = plain

    def take(self, plain: bytes) -> Iterator[bytes]:
        """Remove and return the descriptions that another message needs."""
        self._before = None
        for oid in streamed.relations_of(plain):
            yield from self._messages.pop(oid, ())

    def skip(self) -> None:
        """Take note of a message that is left out and describes no relation."""
        self._before = None


def _committed_of(chunk: list[bytes], rolled_back: set[int], left_out: _LeftOut) -> list[bytes]:
    """Return the messages of subtransactions that were not rolled back, as protocol version 1 has them.

    The server describes a relation once for the whole transaction, perhaps in a subtransaction that is rolled back
    afterwards. So a description is kept in ``left_out`` until a message needs it.
    """
    if not rolled_back:
        return [streamed.plain(m) for m in chunk]
    committed: list[bytes] = []
    for message in chunk:
        plain = streamed.plain(message)
        if message[HEADER] == streamed.RELATION:
            left_out.add(plain)
        elif streamed.subtransaction(message) not in rolled_back:
            committed += [*left_out.take(plain), plain]
        else:
            left_out.skip()
    return committed


class _Kept:
    """The messages of one transaction, compressed in a file without a name."""

    def __init__(self, xid: int, folder: Path | None, limits: InProgressLimits, start: bytes) -> None:
        self.xid = xid
        self.start = start
        """The WAL start of its first message, as 8 bytes."""
        self.rolled_back: set[int] = set()
        """The subtransactions whose messages do not count."""
        self.altered = False
        """True if a relation was described in two ways, or a logical message was sent, as one announces DDL."""
        self._described: dict[int, bytes] = {}
        self._limits = limits
        self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - it is open for as long as the transaction
        self._written = 0
        self._chunk: list[bytes] = []
        self._chunk_bytes = 0

    @property
    def size(self) -> int:
        """The size of the file and of what is not in it yet, in bytes."""
        return self._written + self._chunk_bytes

    @property
    def unwritten(self) -> list[bytes]:
        """The last messages, which are not in the file."""
        return self._chunk

    def add(self, message: bytes) -> list[bytes]:
        """Append a message of a block. Return those that were written to the file then. Raise OSError."""
        if streamed.subtransaction(message) is None or message[HEADER] == streamed.TYPE:
            return []
        if message[HEADER] in _TELLING:
            self._notice(streamed.plain(message))
        self._chunk.append(message)
        self._chunk_bytes += len(message)
        if len(self._chunk) < self._limits.chunk_messages and self._chunk_bytes < self._limits.chunk_bytes:
            return []
        written = self._chunk
        self._write()
        return written

    def chunks(self) -> Iterator[list[bytes]]:
        """Yield the messages in their order."""
        self._file.seek(0)
        at = 0
        while at < self._written:
            count, compressed, raw = (int(n) for n in np.frombuffer(self._file.read(12), np.uint32))
            sizes = np.frombuffer(self._file.read(4 * count), np.uint32)
            data = pa.decompress(self._file.read(compressed), raw, codec=_CODEC, asbytes=True)
            at += 12 + 4 * count + compressed
            ends = np.cumsum(sizes).tolist()
            yield [data[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
        if self._chunk:
            yield self._chunk

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def _notice(self, message: bytes) -> None:
        if message[HEADER] == streamed.RELATION:
            body = message[HEADER:]
            self.altered |= self._described.setdefault(streamed.relation_of(message), body) != body
        else:
            self.altered = True

    def _write(self) -> None:
        data = b"".join(self._chunk)
        compressed = pa.compress(data, codec=_CODEC, asbytes=True)
        sizes = np.fromiter(map(len, self._chunk), np.uint32, len(self._chunk))
        head = np.array([len(sizes), len(compressed), len(data)], np.uint32)
        written = head.tobytes() + sizes.tobytes() + compressed
        disk = os.fstatvfs(self._file.fileno())
        if disk.f_bavail * disk.f_frsize - len(written) < self._limits.free * disk.f_blocks * disk.f_frsize:
            raise OSError(None, f"less than {self._limits.free:.0%} of its disk are free")
        self._file.write(written)
        self._written += len(written)
        self._chunk, self._chunk_bytes = [], 0
