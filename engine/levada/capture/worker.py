"""The engine's capture: WAL to segments to an acknowledged slot, session after session."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from levada.capture.acknowledging import Acknowledger
from levada.capture.history import Known, last_transaction, plan_session, require_own_position, require_witness
from levada.capture.position import CapturePosition
from levada.capture.resolver import TableResolver
from levada.capture.session import CaptureSession, CaptureSettings
from levada.errors import Transient
from levada.postgres.server import ServerIdentity, ServerState, read_server, read_start_time
from levada.postgres.slots import enable_failover, inspect_slot
from levada.postgres.stream import ReplicationStream
from levada.segments.log import SegmentLog
from levada.segments.manifest import Manifest
from levada.values import Lsn, Witness


class CaptureWorker:
    """Stages one slot's changes. `run` belongs to one thread, the other methods may be called from any.

    ``landed`` receives each manifest once it is durable, before `position` includes it. ``remember`` receives positions
    with the last transaction below, and returns a function that keeps one before the slot gets it. ``check`` is called
    after a pause of the process, and raises StaleEpoch if another process has taken the pipeline over. ``known`` is the
    engine's knowledge of the source, which every session compares with the server. ``verified`` receives the server
    after each comparison, and the position that its history is verified to. ``verify`` is called
    before each session: what it reports of tables is recorded before anything is staged. ``clock`` is monotonic, in
    seconds.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        log: SegmentLog,
        resolver: TableResolver,
        *,
        epoch: int,
        landed: Callable[[Manifest], None],
        known: Known | None = None,
        verify: Callable[[], None] = lambda: None,
        remember: Callable[[Lsn, Witness | None], Callable[[], object]] = lambda lsn, witness: lambda: None,
        verified: Callable[[ServerIdentity, Lsn], object] = lambda identity, start: None,
        check: Callable[[], object] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._check = check
        self._settings = settings
        self._log = log
        self._resolver = resolver
        self._epoch = epoch
        self._landed = landed
        self._verify = verify
        self._known = known or Known()
        self._verified = verified
        self._clock = clock
        self._position = CapturePosition(staged_lsn=self._known.staged, witness=self._known.witness)
        self._acknowledger = Acknowledger(
            durable=log.staging.durable, remember=remember, remember_s=settings.idle_s, clock=clock
        )
        self._reopen = threading.Event()
        self._stream: ReplicationStream | None = None
        self.streaming = False
        """Whether a stream is open, or was until a moment ago and is opened again because of `reopen`."""

    @property
    def connected(self) -> bool:
        """Return True while a stream is open and the server answers on it; from any thread."""
        stream = self._stream
        return self.streaming and (stream is None or stream.answers)

    @property
    def position(self) -> CapturePosition:
        """Return how far capture is."""
        return self._position

    @property
    def server(self) -> ServerIdentity | None:
        """Return the server that was verified last, None before the first time. From any thread."""
        return self._known.identity

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
            self._acknowledger.close()

    def _run_session(self, stop: threading.Event) -> None:
        self._find_staged()
        known = self._known_now()
        server = read_server(self._settings.connection, self._settings.slot)
        plan = plan_session(known, server, self._settings.slot, self._settings.connection.database)
        if plan.verify_from is not None:
            verify_history(self._settings, known, plan.verify_from, stop.is_set)
        assert server.slot is not None
        if self._settings.failover and not server.slot.failover:
            enable_failover(self._settings.connection, self._settings.slot)
        self._verify()
        self._resolver.begin_session()
        with ReplicationStream(
            self._settings.connection,
            slot=self._settings.slot,
            publication=self._settings.publication,
            start_lsn=plan.start,
        ) as stream:
            confirmed = self._require_unchanged(known, server)
            self._verified(server.identity, plan.start)
            self._begin_at(plan.start, replace(known, identity=server.identity))
            self._stream, self.streaming = stream, True
            self._acknowledger.attach(stream, confirmed, plan.start, self._position.witness)
            try:
                self._session(stream).run(lambda: stop.is_set() or self._reopen.is_set())
            finally:
                self._acknowledger.detach()
                self._stream = None

    def _begin_at(self, start: Lsn, known: Known) -> None:
        before, witness = self._position, known.witness
        if start > known.staged:
            # The transactions between were for an engine before this one.
            known, witness = replace(known, since=start), None
        self._known = known
        self._position = replace(before, staged_lsn=start, witness=witness, sessions=before.sessions + 1)

    def _require_unchanged(self, known: Known, before: ServerState) -> Lsn:
        """Return the slot's position, now that no other consumer can move it.

        Raise SlotLost ``slot_lost`` if another consumer moved it while the engine did not hold it.
        """
        # Over SQL: a server may have no further walsender to spare.
        with self._settings.connection.connect(application="start") as connection:
            started_at, slot = read_start_time(connection), inspect_slot(connection, self._settings.slot)
        if started_at != before.identity.started_at or slot is None:
            raise Transient("source_stopping", "the source was restarted while it was verified")
        require_own_position(known, slot)
        return slot.confirmed_flush_lsn or Lsn(0)

    def _known_now(self) -> Known:
        position = self._position
        acknowledged = max(self._known.acknowledged, self._acknowledger.told or Lsn(0))
        return replace(self._known, staged=position.staged_lsn, witness=position.witness, acknowledged=acknowledged)

    def _find_staged(self) -> None:
        """Add to the position what is staged beyond it, and hand on what this process wrote without learning of it."""
        before = self._position.staged_lsn
        if self._log.end() <= before:
            return
        for manifest in self._log.list():
            if manifest.end_lsn <= before:
                continue
            if self._position.sessions:
                self._log.ledger.add_segments([manifest])
                self._landed(manifest)
            self._position = replace(self._position, staged_lsn=manifest.end_lsn, witness=manifest.last)

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
            check=self._check,
            clock=self._clock,
        )

    def _tell(self, position: CapturePosition) -> None:
        self._position = position


def verify_history(
    settings: CaptureSettings, known: Known, verify_from: Lsn, stopped: Callable[[], bool] = lambda: False
) -> None:
    """Compare the transactions that the slot sends again with the one that was staged last.

    Raise SlotLost ``source_changed`` if they differ, and Transient ``slot_active`` while another process has the slot.
    """
    with ReplicationStream(
        settings.connection, slot=settings.slot, publication=settings.publication, start_lsn=verify_from
    ) as stream:
        found = last_transaction(stream, known.staged, stopped)
    require_witness(known, verify_from, found)
