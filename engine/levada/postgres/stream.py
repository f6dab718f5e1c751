"""The replication stream: it receives raw messages and sends acknowledgements. `levada.pgoutput` decodes messages."""

from __future__ import annotations

import logging
import select
import struct
import threading
import time
import weakref
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from psycopg import OperationalError, pq

from levada.errors import LevadaError, StatementRefused, Transient
from levada.pgoutput.streamed import without_rollbacks
from levada.postgres.connection import PostgresConnection
from levada.postgres.conversion import UTF8, ServerConversion
from levada.postgres.failures import result_error, source_error, source_errors
from levada.postgres.replication import execute_replication, quote_literal
from levada.postgres.silence import GROW, next_result
from levada.values import Lsn, quote_identifier

_log = logging.getLogger(__name__)

_KEEPALIVE_BYTES: Final = 18
"""Size of a keepalive: ``k``, WAL end, clock, reply requested. XLogData messages have more than 25 bytes. See the
PostgreSQL manual, section "Streaming Replication Protocol".
"""

_DECODES_WITHOUT: Final = 180000
"""The first version whose slot can be read from before its publication was created, so that its loss passes."""
_NAP_S: Final = 0.005
"""Seconds between two reads. Reading in bulk is faster than waking up for every message."""
_IDLE_POLL_S: Final = 0.25
_ACK_DELAY_S: Final = 0.1
_MAX_STATUS_INTERVAL_S: Final = 10.0
_CLOSE_S: Final = 1.0
_REPLY_S: Final = 5.0
_POSTGRES_EPOCH_S: Final = 946_684_800


@dataclass(frozen=True, slots=True)
class SecondPublication:
    """A publication that is streamed too, unless the one of this name has another OID by now."""

    name: str
    oid: int


class ReplicationStream:
    """The messages of one slot. The stream occupies the slot until `close`.

    `receive` and `close` belong to one thread. `acknowledge` and `keepalive` are thread-safe. A background thread of
    the stream reports to the server while the reader is busy, because the server disconnects a reader that does not
    report.

    If nothing is received for half of the connection's ``silence_s``, the stream requests a reply. A server replies
    promptly unless it decodes a transaction of which nothing is sent. Without a reply for the other half, the stream
    fails, unless the server is at work, as `levada.postgres.silence` describes.
    """

    def __init__(
        self,
        connection: PostgresConnection,
        *,
        slot: str,
        publication: str,
        append: SecondPublication | None = None,
        start_lsn: Lsn | None = None,
        in_progress: bool = False,
    ) -> None:
        """Connect, and start streaming at ``start_lsn``, or at the slot's confirmed position if that is later.

        With ``in_progress`` large transactions are sent while they are open, by protocol version 2.

        Raise Transient ``slot_active``, SlotLost ``slot_missing`` or ``slot_lost``, NeedsOperator
        ``publication_missing``, or the error of a rejected login.
        """
        self._doing = f"streaming from slot {slot} of {connection.where}"
        self._names = connection.names.at(connection.host, connection.port)
        self._lock = threading.Lock()
        self._acknowledging = threading.Lock()
        self._acknowledged = Lsn(0)
        self._reported = Lsn(0)
        self._reported_at = time.monotonic()
        self._server_wal_end = start_lsn or Lsn(0)
        self._idle_wal_end: Lsn | None = None
        self._keepalive_at = 0
        self._in_progress = in_progress
        self._closed = threading.Event()
        self._silence = connection.silence()
        self._asked_at: float | None = None
        self._pg = connection.connect_replication(application=slot)
        encoding = (self._pg.parameter_status(b"server_encoding") or UTF8.encode()).decode()
        self.conversion = None if encoding == UTF8 else ServerConversion(connection, encoding)
        """Converts the texts in the messages to UTF-8. None if they are in UTF-8 already."""
        try:
            self._status_interval_s = self._read_status_interval()
            self._require_publication(publication)
            execute_replication(self._pg, GROW, self._doing, connection.silence(), self._names)
            self.appends = append is not None and self._has_publication(append.name, append.oid)
            second = f",{quote_identifier(append.name)}" if append is not None and self.appends else ""
            names = quote_literal(quote_identifier(publication) + second)
            version = "'2', streaming 'on'" if self._in_progress else "'1'"
            options = f"proto_version {version}, publication_names {names}, messages 'true'"
            command = f"START_REPLICATION SLOT {quote_identifier(slot)} LOGICAL {start_lsn or Lsn(0)} ({options})"
            execute_replication(
                self._pg,
                command if self.conversion is None else self._without_conversion(command),
                self._doing,
                connection.silence(),
                self._names,
            )
        except BaseException:
            self._pg.finish()
            raise
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)
        self._silence.reset()
        args = (weakref.ref(self), self._closed, self._status_interval_s / 2)
        threading.Thread(target=_keep_alive, args=args, name="levada-keepalive", daemon=True).start()

    @property
    def in_progress_bytes(self) -> int:
        """0, because each message is returned when it arrives, also those of transactions in progress."""
        return 0

    @property
    def server_version(self) -> int:
        """The server's version as libpq has it, such as 150004."""
        return self._pg.server_version

    @property
    def acknowledged(self) -> Lsn:
        """The highest position passed to `acknowledge`. It may not have been sent to the server yet."""
        return self._acknowledged

    @property
    def answers(self) -> bool:
        """Return False if the server has not answered a request for a reply within a few seconds."""
        asked = self._asked_at
        return asked is None or time.monotonic() - asked < min(_REPLY_S, self._silence.limit_s / 4)

    @property
    def server_wal_end(self) -> Lsn:
        """The position up to which the walsender has read, according to its last message or keepalive."""
        return self._server_wal_end

    @property
    def idle_wal_end(self) -> Lsn | None:
        """The last keepalive's WAL end, or None if a message followed it.

        Once all messages from `receive` are handled, and if they ended outside a transaction, no change below this
        position is missing. The position can then be acknowledged.
        """
        return self._idle_wal_end

    def receive(self, max_messages: int, max_bytes: int, timeout_s: float) -> list[bytes]:
        """Return XLogData payloads (which begin with ``w``) in order, or an empty list after ``timeout_s`` without any.

        Return as soon as there are ``max_messages``, or at least ``max_bytes``. Otherwise return once the stream is
        quiet for a few milliseconds, or after ``timeout_s``. Raise Transient when the connection or the server ends.
        """
        with self._lock, source_errors(self._doing, self._names):
            messages = self._receive(max_messages, max_bytes, time.monotonic() + timeout_s)
        if messages:
            self._server_wal_end = max(self._server_wal_end, Lsn(int.from_bytes(messages[-1][9:17])))
        return messages if self._in_progress else without_rollbacks(messages)

    def acknowledge(self, lsn: Lsn) -> None:
        """Let the slot advance to ``lsn``. Commits at or after ``lsn`` are not included. Lower positions are ignored.

        The next `receive` or `keepalive` sends it to the server.
        """
        with self._acknowledging:
            self._acknowledged = max(self._acknowledged, lsn)

    def keepalive(self) -> None:
        """Report to the server if a report is due, unless another thread is using the stream."""
        if self._lock.acquire(blocking=False):
            try:
                with source_errors(self._doing, self._names):
                    if not self._closed.is_set():
                        self._report(time.monotonic())
            finally:
                self._lock.release()

    def close(self) -> None:
        """Send the last acknowledgement, end the stream and free the slot. Do nothing if the stream is closed."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            try:
                self._close_gracefully()
            except OperationalError:
                _log.debug("%s: the connection was lost before it was closed", self._doing)
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
        """Read what libpq and the socket hold.

        Return False once both are empty, and True if a limit is reached first.
        """
        get = self._pg.get_copy_data
        append = messages.append
        left = max_messages - len(messages)
        budget = max_bytes - sum(map(len, messages))
        dry = heard = False
        while left > 0 and budget > 0:
            length, data = get(1)
            if length > _KEEPALIVE_BYTES:
                append(data.tobytes())
                budget -= length
                left -= 1
                dry, heard = False, True
            elif length == 0:
                if dry:
                    break
                self._pg.consume_input()
                dry = True
            elif length > 0:
                self._keepalive_at = len(messages)
                self._on_keepalive(data.tobytes())
                dry, heard = False, True
            else:
                raise self._ended()
        if heard:
            # Not for each message, as this costs as much as to take it.
            self._silence.reset()
            self._asked_at = None
        return not dry

    def _on_keepalive(self, data: bytes) -> None:
        _, wal_end, _, reply_requested = struct.unpack("!cQqB", data)
        self._idle_wal_end = Lsn(wal_end)
        self._server_wal_end = max(self._server_wal_end, Lsn(wal_end))
        if reply_requested:
            self._send_status(self._acknowledged)
            if self._acknowledged < wal_end:
                # A server that shuts down waits for this reply's flush position or, if that is 0, for its write
                # position. So this reply confirms nothing, and lets the shutdown end.
                self._send_status(Lsn(0))

    def _report(self, now: float) -> None:
        since = now - self._reported_at
        if since >= self._status_interval_s or (self._acknowledged > self._reported and since >= _ACK_DELAY_S):
            self._send_status(self._acknowledged)

    def _check_silence(self) -> None:
        """Request a reply at half of the limit. Raise OperationalError at the limit, unless the server is at work.

        The request is needed because an idle server sends nothing on its own, and because a busy reader may not have
        requested a reply for longer than the limit.
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
        self._reported = max(self._reported, flush)
        self._reported_at = time.monotonic()

    def _ended(self) -> LevadaError:
        result = next_result(self._pg, self._doing, self._silence)
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            return result_error(self._doing, result, self._names)
        return Transient("source_stopping", f"{self._doing}: the server ended the stream")

    def _close_gracefully(self) -> None:
        """Let the walsender end by itself. It frees the slot before it answers."""
        self._send_status(self._acknowledged)
        self._pg.put_copy_end()
        deadline = time.monotonic() + _CLOSE_S
        over = False
        while time.monotonic() < deadline:
            # Neither call blocks: a silent peer must not keep the reader of the slot.
            self._pg.flush()
            if not over:
                length, _ = self._pg.get_copy_data(1)
                over = length < 0
            elif not self._pg.is_busy() and self._pg.get_result() is None:
                return
            if self._pg.is_busy() or not over:
                self._poll.poll(_NAP_S * 1000)
                self._pg.consume_input()

    def _without_conversion(self, command: str) -> bytes:
        """Let the server send its own bytes, and return the command in them.

        A server that converts ends the stream of all tables at a text of one table that it cannot convert.
        """
        converted = (
            f"SELECT encode(convert_to({quote_literal(command)}, getdatabaseencoding()), 'hex'),"
            " set_config('client_encoding', 'SQL_ASCII', false)"
        )
        result = execute_replication(self._pg, converted, self._doing, self._silence, self._names)
        return bytes.fromhex((result.get_value(0, 0) or b"").decode())

    def _require_publication(self, publication: str) -> None:
        # Since version 18 the server streams nothing, without an error, for a publication that does not exist.
        if self._has_publication(publication):
            return
        message = f'publication "{publication}" does not exist'
        if self._pg.server_version >= _DECODES_WITHOUT:
            hint = (
                "a managed publication is created again by itself. For another one, levada check MANIFEST has the SQL"
            )
            raise StatementRefused("publication_missing", f"{self._doing}: {message}", hint=hint)
        raise source_error(self._doing, None, message)

    def _has_publication(self, name: str, oid: int | None = None) -> bool:
        query = f"SELECT 1 FROM pg_publication WHERE pubname = {quote_literal(name)}"
        query += "" if oid is None else f" AND oid = {oid}"
        return execute_replication(self._pg, query, self._doing, self._silence, self._names).ntuples > 0

    def _read_status_interval(self) -> float:
        query = "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'"
        value = execute_replication(self._pg, query, self._doing, self._silence, self._names).get_value(0, 0)
        timeout_s = int(value or 0) / 1000
        return min(_MAX_STATUS_INTERVAL_S, timeout_s / 6) if timeout_s else _MAX_STATUS_INTERVAL_S


def _keep_alive(stream: weakref.ref[ReplicationStream], closed: threading.Event, every_s: float) -> None:
    """Report for a stream until it is closed. The thread ends when no other reference to the stream exists."""
    while not closed.wait(every_s):
        if (open_stream := stream()) is None:
            return
        try:
            open_stream.keepalive()
        except LevadaError as error:
            # The reader gets the same error.
            _log.debug("no report: %s", error)
            return
        del open_stream
