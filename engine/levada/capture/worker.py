"""The engine's capture: WAL to segments to an acknowledged slot, session after session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from levada.capture.acknowledging import Acknowledger
from levada.capture.position import CapturePosition
from levada.capture.resolver import TableResolver
from levada.capture.session import CaptureSession, CaptureSettings
from levada.errors import SlotLost
from levada.postgres.slots import inspect_slot
from levada.postgres.stream import ReplicationStream
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.values import Lsn


class CaptureWorker:
    """`run` belongs to one thread; `applied`, `reopen`, `configure` and `position` may be used from any.

    ``landed`` is handed each manifest once it is durable, before `position` tells of it. ``remember`` is handed each
    position that the slot is about to be told of without a segment. ``verify`` is called before each session: what it
    reports of tables is recorded before anything is staged. ``clock`` is monotonic, in seconds.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        log: SegmentLog,
        resolver: TableResolver,
        *,
        epoch: int,
        landed: Callable[[Manifest], None],
        verify: Callable[[], None] = lambda: None,
        remember: Callable[[Lsn], object] = lambda lsn: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._log = log
        self._resolver = resolver
        self._epoch = epoch
        self._landed = landed
        self._verify = verify
        self._clock = clock
        self._position = CapturePosition()
        self._acknowledger = Acknowledger(
            durable=log.staging.durable, remember=remember, remember_s=settings.idle_s, clock=clock
        )
        self._reopen = threading.Event()
        self._stream: ReplicationStream | None = None
        self.streaming = False
        """Whether a stream is open, or was until a moment ago and is opened anew because of `reopen`."""

    @property
    def connected(self) -> bool:
        """Return True while a stream is open and the server answers on it; from any thread."""
        stream = self._stream
        return self.streaming and (stream is None or stream.answers)

    @property
    def position(self) -> CapturePosition:
        """Return how far capture is."""
        return self._position

    def applied(self, lsn: Lsn) -> None:
        """Tell that every table has applied all that commits below ``lsn``; on scratch staging that is acknowledged."""
        self._acknowledger.applied(lsn)

    def reopen(self) -> None:
        """Begin a new session of the stream soon: it tells the columns of every table anew, see `TableResolver`."""
        self._reopen.set()

    def configure(self, *, batch_bytes: int, fill_s: float, heartbeat_s: float) -> None:
        """Let these settings hold from the next message on; see `CaptureSettings`."""
        self._settings = replace(self._settings, batch_bytes=batch_bytes, fill_s=fill_s, heartbeat_s=heartbeat_s)

    def run(self, stop: threading.Event) -> None:
        """Stream until ``stop`` is set; then land what is whole and free the slot.

        Raise Transient for what a later call may mend, SlotLost, and what else keeps the stream from going on. What is
        not in a segment by then is sent again.
        """
        try:
            while not stop.is_set():
                self._reopen.clear()
                self._run_session(stop)
        finally:
            self.streaming = False

    def _run_session(self, stop: threading.Event) -> None:
        confirmed = self._confirmed()
        start = max(confirmed, self._staged())
        self._verify()
        self._resolver.begin_session()
        self._position = replace(self._position, staged_lsn=start, sessions=self._position.sessions + 1)
        with ReplicationStream(
            self._settings.connection,
            slot=self._settings.slot,
            publication=self._settings.publication,
            start_lsn=start,
        ) as stream:
            self._stream, self.streaming = stream, True
            self._acknowledger.attach(stream, confirmed, start)
            try:
                self._session(stream).run(lambda: stop.is_set() or self._reopen.is_set())
            finally:
                self._acknowledger.detach()
                self._stream = None

    def _staged(self) -> Lsn:
        """Return the end of what is staged, and hand on what this process wrote without knowing that it succeeded."""
        known, end = self._position.staged_lsn, self._log.end()
        if known and end > known:
            for manifest in self._log.list():
                if manifest.end_lsn > known:
                    self._log.ledger.add_segments([manifest])
                    self._landed(manifest)
        return max(known, end)

    def _session(self, stream: ReplicationStream) -> CaptureSession:
        return CaptureSession(
            lambda: self._settings,
            stream,
            self._log,
            self._resolver,
            self._acknowledger,
            self._position,
            epoch=self._epoch,
            landed=self._landed,
            told=self._tell,
            clock=self._clock,
        )

    def _tell(self, position: CapturePosition) -> None:
        self._position = position

    def _confirmed(self) -> Lsn:
        with self._settings.connection.connect(application="start") as connection:
            slot = inspect_slot(connection, self._settings.slot)
        if slot is None:
            raise SlotLost("slot_missing", f"there is no replication slot {self._settings.slot}")
        return slot.confirmed_flush_lsn or Lsn(0)
