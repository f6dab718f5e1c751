"""The replication stream: raw messages out, acknowledgements in. What the messages mean is `levada.pgoutput`'s work."""

from __future__ import annotations

import logging
import select
import struct
import threading
import time
import weakref
from types import TracebackType
from typing import Final, Self

from psycopg import OperationalError, pq

from levada.errors import LevadaError, Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.failures import result_error, source_error, source_errors
from levada.postgres.replication import execute_replication, quote_literal
from levada.postgres.silence import next_result
from levada.values import Lsn, quote_identifier

_log = logging.getLogger(__name__)

_KEEPALIVE_BYTES: Final = 18
"""``k``, WAL end, clock, reply requested (docs, "Streaming Replication Protocol"); XLogData has more than 25."""

_NAP_S: Final = 0.005
"""A walsender that is read once in a while in bulk is faster than one whose every message wakes its reader."""
_IDLE_POLL_S: Final = 0.25
_ACK_DELAY_S: Final = 0.1
_MAX_STATUS_INTERVAL_S: Final = 10.0
_CLOSE_S: Final = 1.0
_REPLY_S: Final = 5.0
_POSTGRES_EPOCH_S: Final = 946_684_800


class ReplicationStream:
    """Messages of one slot. The stream holds the slot until `close`.

    `receive` and `close` belong to one thread; `acknowledge` and `keepalive` may be called from any. A thread of the
    stream's own reports to the server while the reader is busy, as the server drops a reader that does not report.

    Where nothing is received for half of the connection's ``silence_s``, the server is asked for a reply. It answers
    promptly, unless it decodes a transaction of which nothing is sent. Without an answer for the other half the stream
    has failed, unless the server is at work, see `levada.postgres.silence`.
    """

    def __init__(
        self, connection: PostgresConnection, *, slot: str, publication: str, start_lsn: Lsn | None = None
    ) -> None:
        """Connect and start to stream at ``start_lsn``, or at the slot's confirmed position if that is later.

        Raise Transient ``slot_active``, SlotLost ``slot_missing`` or ``slot_lost``, NeedsOperator
        ``publication_missing``, or what a refused login says.
        """
        self._doing = f"streaming from slot {slot} of {connection.where}"
        self._lock = threading.Lock()
        self._acknowledging = threading.Lock()
        self._acknowledged = Lsn(0)
        self._told = Lsn(0)
        self._told_at = time.monotonic()
        self._server_wal_end = start_lsn or Lsn(0)
        self._idle_wal_end: Lsn | None = None
        self._keepalive_at = 0
        self._closed = threading.Event()
        self._silence = connection.silence()
        self._asked_at: float | None = None
        self._pg = connection.connect_replication(application=slot)
        try:
            self._status_interval_s = self._read_status_interval()
            self._require_publication(publication)
            names = quote_literal(quote_identifier(publication))
            options = f"proto_version '1', publication_names {names}, messages 'true'"
            execute_replication(
                self._pg,
                f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn or Lsn(0)} ({options})",
                self._doing,
                connection.silence(),
            )
        except BaseException:
            self._pg.finish()
            raise
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._silence.heard()
        args = (weakref.ref(self), self._closed, self._status_interval_s / 2)
        threading.Thread(target=_keep_alive, args=args, name="levada-keepalive", daemon=True).start()

    @property
    def acknowledged(self) -> Lsn:
        """The highest position that `acknowledge` was given, whether the server knows it already or not."""
        return self._acknowledged

    @property
    def answers(self) -> bool:
        """Return False once the server has been asked for a reply and has not replied within a few seconds."""
        asked = self._asked_at
        return asked is None or time.monotonic() - asked < min(_REPLY_S, self._silence.limit_s / 4)

    @property
    def server_wal_end(self) -> Lsn:
        """How far the server's walsender has read, as its last keepalive or message told."""
        return self._server_wal_end

    @property
    def idle_wal_end(self) -> Lsn | None:
        """The last keepalive's WAL end if no message came after it; None otherwise.

        Once all that `receive` returned is dealt with, and if it ended outside a transaction, nothing below it is
        missing: it may be acknowledged.
        """
        return self._idle_wal_end

    def receive(self, max_messages: int, max_bytes: int, timeout_s: float) -> list[bytes]:
        """Return XLogData payloads (beginning with ``w``), in order; an empty list after ``timeout_s`` without one.

        Returns as soon as ``max_messages`` or at least ``max_bytes`` are there, else once the stream falls quiet for
        a few milliseconds, or after ``timeout_s``. Raise Transient when the connection or the server ends.
        """
        with self._lock, source_errors(self._doing):
            messages = self._receive(max_messages, max_bytes, time.monotonic() + timeout_s)
        if messages:
            self._server_wal_end = max(self._server_wal_end, Lsn(int.from_bytes(messages[-1][9:17])))
        return messages

    def acknowledge(self, lsn: Lsn) -> None:
        """Let the slot go on to ``lsn``, exclusive of what commits at or after it; a lower one than before is ignored.

        The server is told by the next `receive` or `keepalive`.
        """
        with self._acknowledging:
            self._acknowledged = max(self._acknowledged, lsn)

    def keepalive(self) -> None:
        """Report to the server if a report is due, and the stream is not in use by its reader."""
        if self._lock.acquire(blocking=False):
            try:
                with source_errors(self._doing):
                    if not self._closed.is_set():
                        self._report(time.monotonic())
            finally:
                self._lock.release()

    def close(self) -> None:
        """Tell the last acknowledgement, end the stream and free the slot; not an error if closed already."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            try:
                self._end_politely()
            except OperationalError:
                _log.debug("%s: the connection was gone before it was closed", self._doing)
            finally:
                self._pg.finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _receive(self, max_messages: int, max_bytes: int, deadline: float) -> list[bytes]:
        messages: list[bytes] = []
        self._keepalive_at = 0
        while True:
            full = self._drain(messages, max_messages, max_bytes)
            now = time.monotonic()
            self._report(now)
            self._check_silence()
            if full or now >= deadline:
                break
            wait_s = _NAP_S if messages else min(_IDLE_POLL_S, deadline - now)
            if self._poll.poll(wait_s * 1000):
                time.sleep(_NAP_S)
            elif messages:
                break
        if len(messages) > self._keepalive_at:
            self._idle_wal_end = None
        return messages

    def _drain(self, messages: list[bytes], max_messages: int, max_bytes: int) -> bool:
        """Take what libpq and the socket hold; return False once both are dry, True if a limit is met first."""
        get = self._pg.get_copy_data
        append = messages.append
        left = max_messages - len(messages)
        budget = max_bytes - sum(map(len, messages))
        dry = False
        while left > 0 and budget > 0:
            length, data = get(1)
            if length > 0:
                self._silence.heard()
                self._asked_at = None
            if length > _KEEPALIVE_BYTES:
                append(data.tobytes())
                budget -= length
                left -= 1
                dry = False
            elif length == 0:
                if dry:
                    return False
                self._pg.consume_input()
                dry = True
            elif length > 0:
                self._keepalive_at = len(messages)
                self._on_keepalive(data.tobytes())
                dry = False
            else:
                raise self._ended()
        return True

    def _on_keepalive(self, data: bytes) -> None:
        _, wal_end, _, reply_requested = struct.unpack("!cQqB", data)
        self._idle_wal_end = Lsn(wal_end)
        self._server_wal_end = max(self._server_wal_end, Lsn(wal_end))
        if reply_requested:
            self._send_status(self._acknowledged)
            if self._acknowledged < wal_end:
                # A server that shuts down waits until this reply's flush position is its last, or, if none is told,
                # its write position is: so nothing is confirmed here, and the shutdown ends.
                self._send_status(Lsn(0))

    def _report(self, now: float) -> None:
        since = now - self._told_at
        if since >= self._status_interval_s or (self._acknowledged > self._told and since >= _ACK_DELAY_S):
            self._send_status(self._acknowledged)

    def _check_silence(self) -> None:
        """Ask for a reply at half of the limit; raise OperationalError at the limit, unless the server is at work.

        A reader that was busy for longer than that has not asked yet, and an idle server says nothing unasked.
        """
        now = time.monotonic()
        if self._asked_at is None:
            if self._silence.seconds >= self._silence.limit_s / 2:
                self._asked_at = now
                self._send_status(self._acknowledged, ask=True)
        elif now - self._asked_at >= self._silence.limit_s / 2:
            self._silence.check(self._pg.backend_pid, self._doing)

    def _send_status(self, flush: Lsn, *, ask: bool = False) -> None:
        clock_us = int((time.time() - _POSTGRES_EPOCH_S) * 1e6)
        write = max(self._server_wal_end, flush)
        self._pg.put_copy_data(struct.pack("!cQQQqB", b"r", write, flush, flush, clock_us, ask))
        self._pg.flush()
        self._told = max(self._told, flush)
        self._told_at = time.monotonic()

    def _ended(self) -> LevadaError:
        result = next_result(self._pg, self._doing, self._silence)
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return result_error(self._doing, result)
        return Transient("source_stopping", f"{self._doing}: the server ended the stream")

    def _end_politely(self) -> None:
        """Let the walsender end by itself: its slot is free before it answers."""
        self._send_status(self._acknowledged)
        self._pg.put_copy_end()
        deadline = time.monotonic() + _CLOSE_S
        over = False
        while time.monotonic() < deadline:
            # Neither of the two waits: a peer that is silent must not keep the slot's reader.
            self._pg.flush()
            if not over:
                length, _ = self._pg.get_copy_data(1)
                over = length < 0
            elif not self._pg.is_busy() and self._pg.get_result() is None:
                return
            if self._pg.is_busy() or not over:
                self._poll.poll(_NAP_S * 1000)
                self._pg.consume_input()

    def _require_publication(self, publication: str) -> None:
        # From version 18 on the server streams nothing, without an error, for a publication that is not there.
        query = f"SELECT 1 FROM pg_publication WHERE pubname = {quote_literal(publication)}"
        if not execute_replication(self._pg, query, self._doing, self._silence).ntuples:
            raise source_error(self._doing, None, f'publication "{publication}" does not exist')

    def _read_status_interval(self) -> float:
        query = "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'"
        value = execute_replication(self._pg, query, self._doing, self._silence).get_value(0, 0)
        timeout_s = int(value or 0) / 1000
        return min(_MAX_STATUS_INTERVAL_S, timeout_s / 6) if timeout_s else _MAX_STATUS_INTERVAL_S


def _keep_alive(stream: weakref.ref[ReplicationStream], closed: threading.Event, every_s: float) -> None:
    """Report for a stream until it is closed. The thread does not keep a stream that nothing else refers to."""
    while not closed.wait(every_s):
        if (open_stream := stream()) is None:
            return
        try:
            open_stream.keepalive()
        except LevadaError as error:
            # The reader meets the same error.
            _log.debug("no report: %s", error)
            return
        del open_stream
