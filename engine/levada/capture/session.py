"""One session of the stream: receive, decode, stage, acknowledge, in one loop."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from levada.capture.acknowledger import Acknowledger
from levada.capture.early_segments import EarlySegments, EndedTransaction, KnownVersions
from levada.capture.host import CaptureHost, Clock
from levada.capture.in_progress import InProgressLimits, NotKeptError
from levada.capture.message_buffer import MessageBuffer
from levada.capture.message_stream import MessageStream, SliceLimits
from levada.capture.position import CapturePosition
from levada.errors import LevadaError, Transient
from levada.pgoutput.decoder import Decoder, SchemaResolver
from levada.pgoutput.encoding import TextConversion
from levada.postgres.connection import PostgresConnection
from levada.postgres.heartbeat import emit_heartbeat
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.segments.writer import SegmentWriter
from levada.values import Lsn, SnapshotId

_log = logging.getLogger(__name__)

_IDLE_S: Final = 0.25
"""The longest wait for messages, in seconds. A request to stop is noticed after this time at the latest."""
_OVERDUE_S: Final = 0.02
"""The wait for messages, in seconds, while a segment is due but a transaction is still open."""

_DECODED_BYTES: Final = 8
"""Bytes in memory for a byte of a slice while it is received and decoded."""
_WAIT_S: Final = 0.05
"""The interval at which a session without memory checks for it, in seconds."""

_PAUSE_S: Final = 5.0
"""The gap between two steps, in seconds, after which this process may have been paused and lost its lease."""


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """Settings of the stream and of the segments that it is written to.

    A segment is closed at the first commit at which it has ``batch_bytes`` bytes in memory, or is ``fill_s`` seconds
    old. ``heartbeat_s`` is the interval of heartbeats in seconds, and 0 turns them off. WAL without changes is
    acknowledged every ``idle_s`` seconds. ``slices`` is read once per session. Large transactions are received while
    they are in progress, and kept in files in ``work_dir``. None: they are received once they are committed.
    """

    connection: PostgresConnection
    slot: str
    publication: str
    append: str = ""
    """The name of the second publication, see `CaptureHost.append_publication`."""
    batch_bytes: int = 64 << 20
    fill_s: float = 1.0
    failover: bool = False
    heartbeat_s: float = 60.0
    idle_s: float = 10.0
    slices: SliceLimits = field(default_factory=SliceLimits)
    work_dir: Path | None = None
    in_progress: InProgressLimits = field(default_factory=InProgressLimits)


@dataclass(slots=True)
class CaptureState:
    """The settings and the position that other threads write and read. Each is replaced as a whole."""

    settings: CaptureSettings
    position: CapturePosition


class SessionResolver(SchemaResolver, KnownVersions, Protocol):
    """The source of schema versions for a session. `levada.capture.resolver.TableResolver` is the one of a server."""

    @property
    def message_prefixes(self) -> tuple[str, ...]:
        """The prefixes of the logical messages that `message` reads."""

    def release(self) -> None:
        """Close the connection to the catalog. It is opened again on demand."""

    def settle(self) -> None:
        """Report what a complete transaction has altered."""


class CaptureSession:
    """The loop over one replication stream.

    ``state`` is read in each step, so changed settings take effect immediately. ``host`` receives the manifest of each
    segment, and ``state`` then has the new position. While ``memory`` has no room, the session does not read from the
    stream, and only reports to the server. ``clock`` is monotonic, in seconds. ``early`` has what the stream has of
    transactions in progress. ``conversion`` is that of the stream.
    """

    def __init__(
        self,
        state: CaptureState,
        stream: MessageStream,
        log: SegmentLog,
        resolver: SessionResolver,
        acknowledger: Acknowledger,
        host: CaptureHost,
        *,
        epoch: int,
        memory: MemoryBudget,
        clock: Clock,
        early: EarlySegments | None = None,
        conversion: TextConversion | None = None,
    ) -> None:
        self._host = host
        self._memory = memory
        self._state = state
        self._stream = stream
        self._early = early
        self._log = log
        self._resolver = resolver
        self._acknowledger = acknowledger
        self._position = position = state.position
        self._epoch = epoch
        self._clock = clock
        self._decoder = Decoder(
            resolver, message_prefixes=resolver.message_prefixes, keys=host.mask_keys, conversion=conversion
        )
        self._slices = state.settings.slices
        self._read_bytes = _DECODED_BYTES * self._slices.bytes
        self._buffer = MessageBuffer(self._slices)
        self._writer: SegmentWriter | None = None
        self._in_transaction = False
        self._boundary = position.staged_lsn
        """The end of the last decoded transaction, at which the open segment can be closed."""
        self._last = position.witness
        self._first_at: float | None = None
        """The time at which the oldest message outside of a closed segment was received."""
        self._beat_at = self._awake_at = clock()

    def run(self, ended: Callable[[], bool]) -> None:
        """Stream until ``ended`` returns True, then stage the complete transactions and acknowledge them.

        Raise the errors of the source, of staging, and of the decoder.
        """
        try:
            while not ended():
                self._step()
            self._decode()
            if not self._in_transaction:
                self._close_segment()
            self._acknowledger.finish(self._position.staged_lsn, self._position.witness)
        finally:
            self._memory.capture_ended()
            self._abort()

    def _step(self) -> None:
        self._check_pause()
        messages = self._receive()
        if messages and self._first_at is None:
            self._first_at = self._clock()
        self._buffer.add(messages)
        due = self._first_at is not None and self._clock() >= self._first_at + self._state.settings.fill_s
        if self._buffer.full or due:
            self._decode()
        if self._early is not None:
            self._stage_early(self._early)
        if not self._in_transaction and (due or self._open_bytes >= self._state.settings.batch_bytes):
            self._close_segment()
        self._idle()
        self._beat()
        self._report_position()

    def _receive(self) -> list[bytes]:
        """Return the next messages, or an empty list while batches hold the memory for them."""
        if self._may_read():
            return self._stream.receive(self._slices.messages, self._slices.bytes, self._wait_s())
        self._stream.keepalive()
        time.sleep(_WAIT_S)
        return []

    def _may_read(self) -> bool:
        if self._memory.may_read(self._held_bytes, self._read_bytes):
            return True
        if self._early is not None:
            self._early.bound(0)
        if self._writer is not None and self._writer.buffered_bytes:
            self._writer.spill()
        return self._memory.may_read(self._held_bytes, self._read_bytes)

    @property
    def _held_bytes(self) -> int:
        early = 0 if self._early is None else self._early.buffered_bytes
        return self._buffer.size + early + (0 if self._writer is None else self._writer.buffered_bytes)

    def _wait_s(self) -> float:
        if self._first_at is None:
            return _IDLE_S
        left = self._first_at + self._state.settings.fill_s - self._clock()
        return min(max(left, _OVERDUE_S), _IDLE_S)

    @property
    def _open_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.bytes

    def _decode(self) -> None:
        was_inside = self._in_transaction
        messages = self._buffer.take(in_transaction=was_inside)
        if not messages:
            return
        try:
            batch = self._decoder.decode(messages)
        finally:
            self._resolver.release()
        if not batch.in_transaction:
            self._resolver.settle()
        if batch.in_transaction and not was_inside:
            # A transaction larger than a slice gets its own segment. If its end never arrives, only its own rows are
            # discarded.
            self._close_segment()
        if self._writer is None:
            buffered = self._memory.segment_bytes
            self._writer = self._log.writer(self._epoch, self._position.staged_lsn, max_buffered_bytes=buffered)
        self._writer.add(batch)
        self._in_transaction = batch.in_transaction
        if batch.end_lsn is not None:
            self._boundary, self._last = batch.end_lsn, batch.last
        self._position = replace(
            self._position,
            rows=self._position.rows + batch.rows,
            transactions=self._position.transactions + batch.transactions,
        )

    def _stage_early(self, early: EarlySegments) -> None:
        """Write rows of transactions in progress, and stage the one whose COMMIT was received last."""
        ended = early.take_ended()
        if ended is None and not early.due:
            return
        # The versions are those of all transactions that were received before.
        self._decode()
        try:
            if ended is None:
                early.advance()
            else:
                self._adopt(early, ended)
        finally:
            self._resolver.release()

    def _adopt(self, early: EarlySegments, ended: EndedTransaction) -> None:
        """Stage a transaction whose rows were written before its COMMIT, if they are right as they are."""
        if not early.holds(ended, SnapshotId(ended.commit_lsn)):
            return
        self._close_segment()
        batch = self._decoder.decode(early.outline(ended))
        if not early.agrees(ended, self._decoder, batch):
            raise NotKeptError(f"the tables of transaction {ended.xid} changed while it was in progress")
        self._resolver.settle()
        self._writer = writer = early.segment(ended, batch, self._position.staged_lsn)
        assert batch.end_lsn is not None
        self._boundary, self._last = batch.end_lsn, batch.last
        self._position = replace(
            self._position,
            rows=self._position.rows + writer.rows,
            transactions=self._position.transactions + batch.transactions,
        )
        self._close_segment()

    def _close_segment(self) -> None:
        """Close the open segment at the last commit, and report its manifest. Do nothing without changes."""
        writer, self._writer = self._writer, None
        self._first_at = self._clock() if self._buffer else None
        if writer is None or writer.empty:
            return
        self._check_pause()
        try:
            manifest = writer.commit(self._boundary)
        except BaseException:
            self._writer = writer
            raise
        self._host.segment_staged(manifest)
        self._position = replace(
            self._position, staged_lsn=self._boundary, witness=self._last, segments=self._position.segments + 1
        )
        self._acknowledger.staged(self._boundary, self._last)
        self._report_position()

    def _check_pause(self) -> None:
        """After a pause of this process, check that it still owns the pipeline.

        Staged files are not fenced by an epoch, so a process that lost the pipeline must not write another one.
        """
        if self._clock() - self._awake_at > _PAUSE_S:
            with suppress(Transient):
                self._host.require_epoch()
        # Read the clock after the check, because the check itself may take long while the store is unavailable.
        self._awake_at = self._clock()

    def _idle(self) -> None:
        """While nothing is pending, advance to the end of the WAL that the server has read."""
        if self._buffer or self._in_transaction or not (self._writer is None or self._writer.empty):
            return
        lsn = max(self._boundary, self._stream.idle_wal_end or Lsn(0))
        if lsn > self._position.staged_lsn:
            self._writer = None
            self._position = replace(self._position, staged_lsn=lsn, witness=self._last)
        self._acknowledger.idle(self._position.staged_lsn, self._position.witness)

    def _beat(self) -> None:
        settings = self._state.settings
        if not settings.heartbeat_s or self._clock() < self._beat_at + settings.heartbeat_s:
            return
        self._beat_at = self._clock()
        try:
            with settings.connection.connect(application="heartbeat") as connection:
                emit_heartbeat(connection)
        except LevadaError as error:
            _log.warning("heartbeat failed: %s", error)

    def _report_position(self) -> None:
        writer = self._writer
        self._position = replace(
            self._position,
            received_lsn=max(self._stream.server_wal_end, self._position.staged_lsn),
            acknowledged_lsn=self._acknowledger.acknowledged,
            open_rows=0 if writer is None else writer.rows,
            open_bytes=0 if writer is None else writer.bytes,
            in_progress_bytes=self._stream.in_progress_bytes,
        )
        self._state.position = self._position

    def _abort(self) -> None:
        if self._writer is not None:
            # A file that cannot be removed now is removed at the next start.
            with suppress(Transient):
                self._writer.abort()
            self._writer = None
