"""The engine's capture. It stages the WAL as segments and acknowledges the slot, in one session after another."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from levada import codes
from levada.capture.acknowledger import Acknowledger
from levada.capture.early_segments import EarlySegments
from levada.capture.history import KnownSource, last_transaction, plan_session, require_own_position, require_witness
from levada.capture.host import CaptureHost, Clock
from levada.capture.in_progress import NotKeptError, TransactionsInProgress
from levada.capture.message_stream import MessageStream
from levada.capture.position import CapturePosition
from levada.capture.resolver import TableResolver
from levada.capture.session import CaptureSession, CaptureSettings, CaptureState
from levada.capture.unsent_rows import unsent_error
from levada.errors import LevadaError, StatementRefused, Transient
from levada.pgoutput.encoding import TextConversion
from levada.postgres.kept_sessions import SESSIONS
from levada.postgres.row_filters import stream_error
from levada.postgres.server import ServerIdentity, ServerState, read_server, read_start_time
from levada.postgres.slots import enable_failover, inspect_slot, wait_until_inactive
from levada.postgres.stream import ReplicationStream, SecondPublication
from levada.schema.stored_types import ColumnChoice
from levada.segments.log import SegmentLog
from levada.segments.memory import MemoryBudget
from levada.values import Lsn, TableId

_log = logging.getLogger(__name__)

_UNREADABLE_IN_PROGRESS: Final = frozenset({codes.CATALOG_CHANGED, codes.DATABASE_MOVED, codes.SOURCE_INTERNAL_ERROR})
"""The errors of a source that cannot read its catalog."""

_END_S: Final = 10.0


class CaptureWorker:
    """Stages one slot's changes. `run` belongs to one thread. The other methods may be called from any thread.

    ``host`` is the pipeline that it works for. ``known`` is the last recorded state of the source, which every session
    compares with the server.
    ``memory`` is the budget that capture shares with apply, by default without a limit. ``clock`` is monotonic, in
    seconds.
    """

    def __init__(
        self,
        settings: CaptureSettings,
        log: SegmentLog,
        resolver: TableResolver,
        host: CaptureHost,
        *,
        epoch: int,
        known: KnownSource | None = None,
        memory: MemoryBudget | None = None,
        clock: Clock = time.monotonic,
    ) -> None:
        self._host = host
        self._log = log
        self._resolver = resolver
        self._epoch = epoch
        self._known = known or KnownSource()
        self._memory = memory or MemoryBudget()
        self._clock = clock
        position = CapturePosition(staged_lsn=self._known.staged, witness=self._known.witness, since=self._known.since)
        self._state = CaptureState(settings, position)
        self._acknowledger = Acknowledger(
            host, durable=log.staging.durable, idle_interval_s=settings.idle_s, clock=clock
        )
        self._reopen = threading.Event()
        self._in_progress = True
        """Whether the next session receives transactions while they are in progress."""
        self._unsent: tuple[Lsn, LevadaError] | None = None
        """The error for a row that the server cannot send after all that commits below the LSN."""
        self._stream: ReplicationStream | None = None
        self.streaming = False
        """Whether a stream is open. It stays True during the reconnect that `reopen` requests."""

    @property
    def connected(self) -> bool:
        """Return True while a stream is open and the server answers on it. May be called from any thread."""
        stream = self._stream
        return self.streaming and (stream is None or stream.answers)

    @property
    def position(self) -> CapturePosition:
        """Return the current progress."""
        return self._state.position

    @property
    def server(self) -> ServerIdentity | None:
        """Return the server that was verified last, or None before the first time. May be called from any thread."""
        return self._known.identity

    def applied(self, lsn: Lsn) -> None:
        """Register that every table has applied all commits below ``lsn``.

        If staging is not durable, acknowledge it.
        """
        self._acknowledger.applied(lsn)

    def reopen(self) -> None:
        """Reconnect the stream soon, so that the server sends the RELATION message of every table again.

        See `TableResolver`.
        """
        self._reopen.set()

    def choose_columns(self, table: TableId, choice: ColumnChoice) -> None:
        """Stage these columns of a table from the next session on. See `TableResolver.choose_columns`."""
        self._resolver.choose_columns(table, choice)

    def configure(self, *, batch_bytes: int, fill_s: float, heartbeat_s: float) -> None:
        """Change these settings from the next step on. See `CaptureSettings`."""
        self._state.settings = replace(
            self._state.settings, batch_bytes=batch_bytes, fill_s=fill_s, heartbeat_s=heartbeat_s
        )

    def run(self, stop: threading.Event) -> None:
        """Stream until ``stop`` is set, then stage the complete transactions and release the slot.

        Raise Transient if a later call may succeed, SlotLost if the slot no longer has every change, and other errors
        that stop the stream. The server sends unstaged changes again in the next session.
        """
        try:
            while not stop.is_set():
                self._reopen.clear()
                try:
                    with self._causes_named(stop):
                        self._run_session(stop)
                except NotKeptError as error:
                    # The server keeps such transactions itself until they are committed.
                    _log.info("transactions are received after their commits until the next session: %s", error)
                    self._in_progress = False
                except LevadaError as error:
                    # The server can fail to read the catalog for a transaction in progress that changes it, and does
                    # so again in each session. It says so in several ways, such as "could not map filenumber".
                    received = self._in_progress
                    self._in_progress = isinstance(error, Transient) and error.code not in _UNREADABLE_IN_PROGRESS
                    if received and error.code == codes.DATABASE_MOVED:
                        # Only that of a session without such transactions shows that the database was moved.
                        again = "none is needed: the next session receives transactions after their commits"
                        raise Transient(codes.SOURCE_INTERNAL_ERROR, error.message, hint=again) from error
                    raise
                else:
                    self._in_progress = True
        finally:
            self.streaming = False
            self._acknowledger.close()

    def _run_session(self, stop: threading.Event) -> None:
        self._find_staged()
        known = self._known_now()
        server = read_server(self._state.settings.connection, self._state.settings.slot)
        plan = plan_session(known, server, self._state.settings.slot, self._state.settings.connection.database)
        if plan.verify_from is not None:
            verify_history(self._state.settings, known, plan.verify_from, stop)
            self._await_slot()
        assert server.slot is not None
        if self._state.settings.failover and not server.slot.failover:
            enable_failover(self._state.settings.connection, self._state.settings.slot)
        self._host.session_begins()
        self._resolver.begin_session()
        settings = self._state.settings
        oid = self._host.append_publication(plan.start) if settings.append else 0
        in_progress = settings.work_dir is not None and self._in_progress and self._host.keeps_messages()
        with ReplicationStream(
            settings.connection,
            slot=settings.slot,
            publication=settings.publication,
            append=SecondPublication(settings.append, oid) if oid else None,
            start_lsn=plan.start,
            in_progress=in_progress,
        ) as stream:
            if settings.append:
                self._host.append_streamed(oid if stream.appends else 0)
            confirmed = self._require_unchanged(known, server)
            self._host.source_verified(server.identity, plan.verified_to)
            self._begin_at(plan.start, replace(known, identity=server.identity))
            self._stream, self.streaming = stream, True
            self._resolver.conversion = stream.conversion
            self._acknowledger.attach(stream, confirmed, plan.start, self._state.position.witness)
            try:
                self._stream_in(stream, stop)
            finally:
                self._acknowledger.detach()
                self._stream = None

    def _stream_in(self, stream: ReplicationStream, stop: threading.Event) -> None:
        limits, folder = self._state.settings.in_progress, self._state.settings.work_dir
        # Version 18 rolls back transactions in progress also in a session to which it sends none.
        early = self._early_segments(stream.conversion) if folder is not None else None
        complete = TransactionsInProgress(
            stream, folder, server_version=stream.server_version, limits=limits, early=early
        )
        with closing(complete):
            session = self._session(complete, early, stream.conversion)
            session.run(lambda: stop.is_set() or self._reopen.is_set() or complete.outdated)

    @contextmanager
    def _causes_named(self, stop: threading.Event) -> Iterator[None]:
        try:
            yield
        except StatementRefused as error:
            of = self._state.settings
            named = stream_error(of.connection, of.slot, of.publication, error)
            if named is None and (of.work_dir is None or not self._in_progress):
                named = self._unsent_error(error, stop)
            if named is not None:
                raise named from error
            raise

    def _unsent_error(self, error: StatementRefused, stop: threading.Event) -> LevadaError | None:
        of, start = self._state.settings, self._state.position.staged_lsn
        if error.code == codes.SOURCE_ROW_TOO_LARGE and (self._unsent is None or self._unsent[0] != start):
            # Each session ends at the same row, and to find it costs the server as much as a session.
            named = unsent_error(of.connection, of.slot, of.publication, start, error, stop)
            self._unsent = None if named is None else (start, named)
        return self._unsent[1] if self._unsent is not None and error.code == codes.SOURCE_ROW_TOO_LARGE else None

    def _begin_at(self, start: Lsn, known: KnownSource) -> None:
        before, witness = self._state.position, known.witness
        if start > known.staged:
            # The transactions between belong to an earlier engine with the same slot.
            known, witness = replace(known, since=start), None
        self._known = known
        self._state.position = replace(
            before, staged_lsn=start, witness=witness, since=known.since, sessions=before.sessions + 1
        )

    def _await_slot(self) -> None:
        """Wait until the walsender of the verification has ended, which it notices when it next sends something."""
        with SESSIONS.session(self._state.settings.connection, "start") as connection:
            wait_until_inactive(connection, self._state.settings.slot, _END_S)

    def _require_unchanged(self, known: KnownSource, before: ServerState) -> Lsn:
        """Return the slot's position, which no other consumer can move while the stream is open.

        Raise SlotLost ``slot_lost`` if another consumer moved it before. Raise Transient ``source_stopping`` if the
        server was restarted since it was verified.
        """
        # Read over SQL, because all walsenders of the server may be in use.
        with SESSIONS.session(self._state.settings.connection, "start") as connection:
            started_at, slot = read_start_time(connection), inspect_slot(connection, self._state.settings.slot)
            if started_at != before.identity.started_at or slot is None:
                raise Transient("source_stopping", "the source was restarted during its verification")
        require_own_position(known, slot)
        return slot.confirmed_flush_lsn or Lsn(0)

    def _known_now(self) -> KnownSource:
        position = self._state.position
        acknowledged = max(self._known.acknowledged, self._acknowledger.acknowledged or Lsn(0))
        return replace(self._known, staged=position.staged_lsn, witness=position.witness, acknowledged=acknowledged)

    def _find_staged(self) -> None:
        """Advance the position to the end of the staged segments.

        Report segments that this process wrote although the commit raised an error, such as a timeout.
        """
        before = self._state.position.staged_lsn
        if self._log.end() <= before:
            return
        for manifest in self._log.list():
            if manifest.end_lsn <= before:
                continue
            if self._state.position.sessions:
                self._log.ledger.add_segments([manifest])
                self._host.segment_staged(manifest)
            self._state.position = replace(self._state.position, staged_lsn=manifest.end_lsn, witness=manifest.last)

    def _early_segments(self, conversion: TextConversion | None) -> EarlySegments:
        slices = self._state.settings.slices
        return EarlySegments(
            self._log,
            self._resolver,
            self._host.mask_keys,
            self._memory,
            self._host,
            epoch=self._epoch,
            session=self._state.position.sessions,
            slice_messages=slices.messages,
            slice_bytes=slices.bytes,
            conversion=conversion,
        )

    def _session(
        self, stream: MessageStream, early: EarlySegments | None, conversion: TextConversion | None
    ) -> CaptureSession:
        return CaptureSession(
            self._state,
            stream,
            self._log,
            self._resolver,
            self._acknowledger,
            self._host,
            epoch=self._epoch,
            memory=self._memory,
            clock=self._clock,
            early=early,
            conversion=conversion,
        )


def verify_history(settings: CaptureSettings, known: KnownSource, verify_from: Lsn, stop: threading.Event) -> None:
    """Compare the last transaction that the slot sends again with the one that was read last, see `KnownSource`.

    The slot sends again from ``verify_from`` on. Raise SlotLost ``source_changed`` if the transactions differ, and
    Transient ``slot_active`` while another process holds the slot.
    """
    with ReplicationStream(
        settings.connection, slot=settings.slot, publication=settings.publication, start_lsn=verify_from
    ) as stream:
        found = last_transaction(stream, known.witnessed.end, stop)
    require_witness(known, verify_from, found)
