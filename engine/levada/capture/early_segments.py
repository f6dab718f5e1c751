"""Segments of transactions that have not ended: their rows are decoded and written while they are in progress.

No manifest names the files before the COMMIT, so nothing reads them, and the next start removes those of a process that
ended. They are used only if the descriptions of their relations mean at the COMMIT what they meant when the rows were
decoded. Otherwise the transaction is read from the messages that `TransactionsInProgress` keeps.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final, Protocol

import pyarrow as pa

from levada.capture.subtransactions import COUNTED, Subtransactions
from levada.errors import DecodeError, LevadaError
from levada.pgoutput import streamed
from levada.pgoutput.changes import TRANSACTIONS, ChangeBatch, LogicalMessage, RelationChange
from levada.pgoutput.decoder import Decoder, SchemaResolver
from levada.pgoutput.encoding import TextConversion
from levada.pgoutput.messages import HEADER, Relation
from levada.pgoutput.streamed import StreamCommit
from levada.schema import ReplicatedTableSchema
from levada.schema.masks import MaskKeys
from levada.segments.files import SegmentFile
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.segments.rolled_back import Ranges, renumbered, total
from levada.segments.writer import UNKNOWN_COMMIT, CommittedAs, SegmentWriter
from levada.values import Lsn, SnapshotId, TableId

_log = logging.getLogger(__name__)

_BEGIN, _RELATION, _TRUNCATE = b"BRT"
_SLICES: Final = 4
"""The size of what waits of all transactions, in slices, from which all of it is read."""
_MOST_OPEN: Final = 16
"""The segments at the same time. Each holds up to 4 MiB of compressed pieces, and an object store's buffers."""
_BETWEEN: Final = b"O" + bytes(8) + b"\0"
"""A message that means nothing (ORIGIN), in place of rows. Two descriptions in a row mean a table and its partition."""


class UnknownVersionError(Exception):
    """A RELATION begins a version, or describes a table without one."""


class KnownVersions(Protocol):
    """The versions of the tables that the session has read so far."""

    @property
    def message_prefixes(self) -> tuple[str, ...]:
        """The prefixes of the logical messages that may begin a version."""

    def known_version(self, relation: Relation, at: SnapshotId) -> ReplicatedTableSchema | None:
        """Return the version of rows after a RELATION in transaction ``at``, None if the table is not replicated.

        Nothing is recorded. Raise UnknownVersionError if the RELATION is not that of the version before ``at``.
        """


class EarlyFiles(Protocol):
    """Learns of the files of transactions in progress."""

    def file_staged_early(self, file: SegmentFile, schema: ReplicatedTableSchema) -> None:
        """Receive a file that is complete."""

    def early_files_removed(self, files: Sequence[SegmentFile]) -> None:
        """Receive files that are removed before the COMMIT."""


class _Early(SchemaResolver):
    """The versions of one transaction's rows. The tables have not changed since the versions began."""

    def __init__(self, versions: KnownVersions) -> None:
        self._versions = versions
        self.found: dict[TableId, tuple[Relation, ReplicatedTableSchema | None]] = {}

    def relation(self, relation: Relation, at: SnapshotId, xid: int) -> ReplicatedTableSchema | None:
        schema = self._versions.known_version(relation, at)
        if self.found.setdefault(relation.oid, (relation, schema)) != (relation, schema):
            raise UnknownVersionError
        return schema

    def leaf(self, leaf: TableId, root: TableId, at: SnapshotId, xid: int) -> None:
        """Do nothing, because the session reads the descriptions again at the COMMIT."""

    def message(self, message: LogicalMessage, at: SnapshotId) -> ReplicatedTableSchema | None:
        raise UnknownVersionError

    def truncated(self, tables: Collection[TableId], at: SnapshotId) -> None:
        """Do nothing, because the session reads the TRUNCATE again at the COMMIT."""

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        raise error


@dataclass(slots=True)
class _Open:
    """The rows of one transaction. ``writer`` is None once they cannot be staged before the COMMIT."""

    xid: int
    decoder: Decoder
    versions: _Early
    writer: SegmentWriter | None
    waiting: list[bytes] = field(default_factory=list)
    waiting_bytes: int = 0
    outline: list[bytes] = field(default_factory=list)
    """The messages that the session's decoder reads at the COMMIT: all but rows."""
    truncates: list[int] = field(default_factory=list)
    """The ordinal of each TRUNCATE in the outline."""
    changes: int = 0
    complete: list[SegmentFile] = field(default_factory=list)
    """The files that were reported."""
    parts: Subtransactions = field(default_factory=Subtransactions)
    rolled_back: Ranges = ()


@dataclass(slots=True)
class EndedTransaction:
    """A transaction whose rows were written before its COMMIT, which was received now.

    The session sets ``staged`` if it has used them. Otherwise the stream returns the messages of the transaction.
    """

    xid: int
    begin: bytes
    commit: StreamCommit
    staged: bool = False

    @property
    def commit_lsn(self) -> Lsn:
        """The LSN of the COMMIT."""
        return self.commit.lsn


class EarlySegments:
    """The segments of all transactions in progress in one session. For one thread.

    A transaction gets a segment once ``slice_messages`` or ``slice_bytes`` of it are there, while fewer than 16 have
    one. `close` removes the files.
    ``files`` learns of each large file.
    All of them together buffer at most what ``memory`` allows one segment. ``session`` is the number of the session in
    this process, because the server sends a transaction again in the next one.
    """

    def __init__(
        self,
        log: SegmentLog,
        versions: KnownVersions,
        keys: MaskKeys,
        memory: MemoryBudget,
        files: EarlyFiles,
        *,
        epoch: int,
        session: int,
        slice_messages: int,
        slice_bytes: int,
        conversion: TextConversion | None = None,
    ) -> None:
        self._conversion = conversion
        self._segments = log
        self._versions = versions
        self._keys = keys
        self._memory = memory
        self._files = files
        self._epoch = epoch
        self._session = session
        self._numbers = count(1)
        self._slice_messages, self._slice_bytes = slice_messages, slice_bytes
        self._open: dict[int, _Open] = {}
        self._ended: EndedTransaction | None = None
        self._due = False

    @property
    def buffered_bytes(self) -> int:
        """The bytes that all segments hold in memory."""
        writers = (o.writer.buffered_bytes for o in self._open.values() if o.writer is not None)
        return sum(writers) + sum(o.waiting_bytes for o in self._open.values())

    @property
    def due(self) -> bool:
        """Return True if `advance` has something to read."""
        return self._due

    def add(self, xid: int, messages: Sequence[bytes]) -> None:
        """Take messages of a block, in their order, to be read by `advance`.

        None of them is a change of a subtransaction that was rolled back before.
        """
        if not messages:
            return
        if xid not in self._open:
            versions = _Early(self._versions)
            prefixes = self._versions.message_prefixes
            decoder = Decoder(versions, message_prefixes=prefixes, keys=self._keys, conversion=self._conversion)
            name = f"open-{xid}-{self._epoch:08d}-{self._session}-{next(self._numbers)}"
            is_free = sum(o.writer is not None for o in self._open.values()) < _MOST_OPEN
            writer = (
                self._segments.writer(self._epoch, Lsn(0), max_buffered_bytes=self._memory.segment_bytes, name=name)
                if is_free
                else None
            )
            self._open[xid] = _Open(xid, decoder, versions, writer, waiting=[_begin(messages[0], xid)])
        its = self._open[xid]
        if its.writer is None:
            return
        its.parts.add(messages)
        its.waiting += [streamed.plain(m) for m in messages]
        its.waiting_bytes += sum(map(len, messages))
        self._due |= self._large(its) or self._many

    def advance(self) -> None:
        """Decode and write what is large enough for it."""
        everything, self._due = self._many, False
        for its in self._open.values():
            if everything or self._large(its):
                self._read(its)
        self.bound(self._memory.segment_bytes)

    def bound(self, most_bytes: int) -> None:
        """Write the buffers of the largest segments until all of them hold at most ``most_bytes``."""
        total = self.buffered_bytes
        for its in sorted(self._open.values(), key=lambda o: 0 if o.writer is None else -o.writer.buffered_bytes):
            if total <= most_bytes or its.writer is None:
                return
            total -= its.writer.buffered_bytes
            try:
                its.writer.spill()
            except LevadaError as error:
                self._give_up(its, error)

    def drop(self, xid: int) -> None:
        """Remove what there is of a transaction, also if there is nothing."""
        if (its := self._open.pop(xid, None)) is not None:
            self._give_up(its, None)

    def roll_back(self, xid: int, subtransaction: int) -> None:
        """Leave out the changes of a subtransaction of ``xid``, and remove the files of which nothing is left."""
        its = self._open.get(xid)
        if its is None or its.writer is None:
            return
        has_changes = its.parts.roll_back(subtransaction)
        if not its.parts.is_known:
            self._give_up(its, None)
            return
        if not has_changes:
            return
        its.rolled_back = its.parts.ranges
        try:
            removed = its.writer.roll_back(its.rolled_back)
        except LevadaError as error:
            self._give_up(its, error)
            return
        if removed:
            self._files.early_files_removed(removed)

    def end(self, xid: int, begin: bytes, commit: StreamCommit) -> EndedTransaction | None:
        """Register the COMMIT of a transaction. Return None if it has no segment of its own."""
        its = self._open.get(xid)
        if its is None or its.writer is None or its.writer.rows == 0:
            self.drop(xid)
            return None
        self._ended = EndedTransaction(xid, begin, commit)
        return self._ended

    def take_ended(self) -> EndedTransaction | None:
        """Return the transaction whose COMMIT follows the messages received last, once, or None."""
        ended, self._ended = self._ended, None
        return ended

    def holds_some(self, xid: int) -> bool:
        """Return True if there is something of a transaction."""
        return xid in self._open

    def start_lsn(self, xid: int) -> bytes | None:
        """Return the WAL position of the first change or logical message of a transaction as 8 bytes.

        Return None if all of them were rolled back.
        """
        return self._open[xid].parts.start_lsn

    def holds(self, ended: EndedTransaction, at: SnapshotId) -> bool:
        """Read the rest of the transaction. Return True if all rows mean at ``at`` what they meant when decoded."""
        its = self._open[ended.xid]
        self._read(its)
        if its.writer is None:
            return False
        try:
            return all(self._versions.known_version(r, at) == schema for r, schema in its.versions.found.values())
        except UnknownVersionError:
            return False

    def outline(self, ended: EndedTransaction) -> list[bytes]:
        """Return the transaction without its rows, and without what was rolled back."""
        its = self._open[ended.xid]
        outline = list(its.outline)
        places = (i for i, message in enumerate(outline) if message[HEADER] == _TRUNCATE)
        for place, ordinal in zip(places, its.truncates, strict=True):
            if its.rolled_back and renumbered(its.rolled_back, ordinal) is None:
                outline[place] = outline[place][:HEADER] + _BETWEEN
        return [ended.begin, *outline, ended.commit.commit()]

    def agrees(self, ended: EndedTransaction, decoder: Decoder, batch: ChangeBatch) -> bool:
        """Return True if the session's decoder reads the outline, which gave ``batch``, as the rows were read."""
        found = self._open[ended.xid].versions.found
        known = all(decoder.version(oid) == schema for oid, (_, schema) in found.items())
        return known and not any(isinstance(i, RelationChange | LogicalMessage) for i in batch.items)

    def segment(self, ended: EndedTransaction, batch: ChangeBatch, start_lsn: Lsn) -> SegmentWriter:
        """Return the segment, which begins at ``start_lsn``, to be committed at the end of ``batch``.

        ``batch`` is that of the outline. The segment is no longer one of these.
        """
        its = self._open.pop(ended.xid)
        writer, last = its.writer, batch.last
        assert writer is not None
        assert last is not None
        assert batch.end_lsn is not None
        writer.committed_as(CommittedAs(last.commit_lsn, last.commit_ts_us), start_lsn)
        start = int.from_bytes(ended.begin[1:9])
        changes = its.changes - total(its.rolled_back)
        numbers = (last.commit_lsn, start, batch.end_lsn, last.xid, last.commit_ts_us, changes)
        shown = pa.Table.from_arrays([pa.array([int(n)], pa.int64()) for n in numbers], schema=TRANSACTIONS)
        writer.add(ChangeBatch((), 0, batch.transactions, batch.end_lsn, False, last, shown, None))
        ended.staged = True
        return writer

    def close(self) -> None:
        """Remove all files."""
        for xid in list(self._open):
            self.drop(xid)

    def _large(self, its: _Open) -> bool:
        return len(its.waiting) >= self._slice_messages or its.waiting_bytes >= self._slice_bytes

    @property
    def _many(self) -> bool:
        return sum(o.waiting_bytes for o in self._open.values()) > _SLICES * self._slice_bytes

    def _read(self, its: _Open) -> None:
        messages, its.waiting, its.waiting_bytes = its.waiting, [], 0
        if its.writer is None or not messages:
            return
        if any(message[HEADER] == _TRUNCATE for message in messages):
            counted = [m[HEADER] for m in messages if m[HEADER] in COUNTED]
            its.truncates += [its.changes + i for i, kind in enumerate(counted) if kind == _TRUNCATE]
        its.outline += _outlined(messages, its.outline)
        try:
            batch = its.decoder.decode(messages)
            assert batch.open is not None
            its.changes = batch.open.next_ordinal
            its.writer.add(batch)
            for file, schema in its.writer.complete_files():
                its.complete.append(file)
                self._files.file_staged_early(file, schema)
        except (UnknownVersionError, LevadaError) as error:
            self._give_up(its, error)

    def _give_up(self, its: _Open, error: Exception | None) -> None:
        writer, its.writer = its.writer, None
        its.waiting, its.waiting_bytes, its.outline = [], 0, []
        complete, its.complete = its.complete, []
        if complete:
            self._files.early_files_removed(complete)
        if isinstance(error, LevadaError):
            _log.info("transaction %d is staged at its commit, not before: %s", its.xid, error)
        if writer is not None:
            try:
                writer.abort()
            except LevadaError as left:
                _log.info("files of transaction %d are removed at the next start: %s", its.xid, left)


def _begin(first: bytes, xid: int) -> bytes:
    """Return a BEGIN before the first message, with a commit that is not known."""
    return first[:HEADER] + b"B" + struct.pack("!QqI", UNKNOWN_COMMIT, 0, xid)


def _outlined(messages: Sequence[bytes], before: Sequence[bytes]) -> list[bytes]:
    """Return the descriptions and the TRUNCATEs, with one message in place of those between them."""
    outline: list[bytes] = []
    for message in messages:
        if (kind := message[HEADER]) in (_RELATION, _TRUNCATE):
            outline.append(message)
        elif kind not in (streamed.TYPE, _BEGIN):
            last = outline[-1:] or before[-1:]
            if last and last[0][HEADER] == _RELATION:
                outline.append(message[:HEADER] + _BETWEEN)
    return outline
