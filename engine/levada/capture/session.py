"""One session of the stream: receive, decode, stage, acknowledge, in one loop."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from levada.capture.acknowledging import Acknowledger
from levada.capture.gather import SLICE_BYTES, SLICE_MESSAGES, Gather
from levada.capture.position import CapturePosition
from levada.capture.resolver import TableResolver
from levada.errors import LevadaError, Transient
from levada.pgoutput.decoder import Decoder
from levada.postgres.connection import PostgresConnection
from levada.postgres.heartbeat import emit_heartbeat
from levada.postgres.stream import ReplicationStream
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.segments.writer import SegmentWriter
from levada.values import Lsn

_log = logging.getLogger(__name__)

_IDLE_S: Final = 0.25
"""How long to wait for messages at most: as long may a request to stop go unseen."""
_OVERDUE_S: Final = 0.02
"""How long to wait while a segment is due, but a transaction is open."""

_PAUSE_S: Final = 5.0
"""A gap between two steps that is longer may be a pause, in which another process has taken the pipeline over."""


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What to read, and when to close a segment.

    A segment is closed at the first commit at which it has ``batch_bytes`` in memory's terms, or is ``fill_s`` seconds
    old. ``heartbeat_s`` is in seconds; 0 is off. WAL without changes is acknowledged every ``idle_s`` seconds.
    """

    connection: PostgresConnection
    slot: str
    publication: str
    batch_bytes: int = 64 << 20
    fill_s: float = 1.0
    failover: bool = False
    heartbeat_s: float = 60.0
    idle_s: float = 10.0


class CaptureSession:
    """Lives as long as its stream; ``settings`` may tell something else at any time.

    ``told`` is handed each new position, ``landed`` each manifest before that. ``check`` raises StaleEpoch if another
    process has taken the pipeline over.
    """

    def __init__(
        self,
        settings: Callable[[], CaptureSettings],
        stream: ReplicationStream,
        log: SegmentLog,
        resolver: TableResolver,
        acknowledger: Acknowledger,
        position: CapturePosition,
        *,
        epoch: int,
        landed: Callable[[Manifest], None],
        told: Callable[[CapturePosition], None],
        check: Callable[[], object],
        clock: Callable[[], float],
    ) -> None:
        self._check = check
        self._settings = settings
        self._stream = stream
        self._log = log
        self._resolver = resolver
        self._acknowledger = acknowledger
        self._position = position
        self._epoch = epoch
        self._landed = landed
        self._told = told
        self._clock = clock
        self._decoder = Decoder(resolver, message_prefixes=resolver.message_prefixes)
        self._gather = Gather()
        self._writer: SegmentWriter | None = None
        self._in_transaction = False
        self._boundary = position.staged_lsn
        """The end of the last transaction that was decoded: where a segment can be cut."""
        self._last = position.witness
        self._first_at: float | None = None
        """When the first message that is not in a segment yet was received."""
        self._beat_at = self._awake_at = clock()

    def run(self, ended: Callable[[], bool]) -> None:
        """Stream until ``ended``, then land what is whole; raise what the source, the staging or a change asks for."""
        try:
            while not ended():
                self._step()
            self._decode()
            if not self._in_transaction:
                self._land()
            self._acknowledger.finish(self._position.staged_lsn, self._position.witness)
        finally:
            self._abort()

    def _step(self) -> None:
        self._check_pause()
        messages = self._stream.receive(SLICE_MESSAGES, SLICE_BYTES, self._wait_s())
        if messages and self._first_at is None:
            self._first_at = self._clock()
        self._gather.add(messages)
        due = self._first_at is not None and self._clock() >= self._first_at + self._settings().fill_s
        if self._gather.full or due:
            self._decode()
        if not self._in_transaction and (due or self._open_bytes >= self._settings().batch_bytes):
            self._land()
        self._idle()
        self._beat()
        self._tell()

    def _wait_s(self) -> float:
        if self._first_at is None:
            return _IDLE_S
        left = self._first_at + self._settings().fill_s - self._clock()
        return min(max(left, _OVERDUE_S), _IDLE_S)

    @property
    def _open_bytes(self) -> int:
        return 0 if self._writer is None else self._writer.bytes

    def _decode(self) -> None:
        was_inside = self._in_transaction
        messages = self._gather.take(in_transaction=was_inside)
        if not messages:
            return
        try:
            batch = self._decoder.decode(messages)
        finally:
            self._resolver.release()
        if batch.in_transaction and not was_inside:
            # A transaction larger than a slice: by itself in a segment, it alone is lost when it does not end.
            self._land()
        if self._writer is None:
            self._writer = self._log.writer(self._epoch, self._position.staged_lsn)
        self._writer.add(batch)
        self._in_transaction = batch.in_transaction
        if batch.end_lsn is not None:
            self._boundary, self._last = batch.end_lsn, batch.last
        self._position = replace(
            self._position,
            rows=self._position.rows + batch.rows,
            transactions=self._position.transactions + batch.transactions,
        )

    def _land(self) -> None:
        """Close the open segment at the last commit; without changes there is none."""
        writer, self._writer = self._writer, None
        self._first_at = self._clock() if self._gather else None
        if writer is None or writer.empty:
            return
        self._check_pause()
        try:
            manifest = writer.commit(self._boundary)
        except BaseException:
            self._writer = writer
            raise
        self._landed(manifest)
        self._position = replace(
            self._position, staged_lsn=self._boundary, witness=self._last, segments=self._position.segments + 1
        )
        self._acknowledger.staged(self._boundary, self._last)
        self._tell()

    def _check_pause(self) -> None:
        """Ask after a pause of this process whether it still has the pipeline: staged files know no epoch."""
        if self._clock() - self._awake_at > _PAUSE_S:
            with suppress(Transient):
                self._check()
        # After the check, which may take long itself while the store is away.
        self._awake_at = self._clock()

    def _idle(self) -> None:
        """With nothing under way, what the server has read and not sent holds nothing for this slot."""
        if self._gather or self._in_transaction or not (self._writer is None or self._writer.empty):
            return
        lsn = max(self._boundary, self._stream.idle_wal_end or Lsn(0))
        if lsn > self._position.staged_lsn:
            self._writer = None
            self._position = replace(self._position, staged_lsn=lsn, witness=self._last)
        self._acknowledger.idle(self._position.staged_lsn, self._position.witness)

    def _beat(self) -> None:
        settings = self._settings()
        if not settings.heartbeat_s or self._clock() < self._beat_at + settings.heartbeat_s:
            return
        self._beat_at = self._clock()
        try:
            with settings.connection.connect(application="heartbeat") as connection:
                emit_heartbeat(connection)
        except LevadaError as error:
            _log.warning("no heartbeat: %s", error)

    def _tell(self) -> None:
        writer = self._writer
        self._position = replace(
            self._position,
            received_lsn=max(self._stream.server_wal_end, self._position.staged_lsn),
            acknowledged_lsn=self._acknowledger.told,
            open_rows=0 if writer is None else writer.rows,
            open_bytes=0 if writer is None else writer.bytes,
        )
        self._told(self._position)

    def _abort(self) -> None:
        if self._writer is not None:
            # Garbage that cannot be removed now is removed at the next start.
            with suppress(Transient):
                self._writer.abort()
            self._writer = None
