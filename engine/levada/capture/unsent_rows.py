"""The table of a row that the server cannot send, for the error that stops the stream of all tables.

PostgreSQL builds each message of the stream in one buffer of at most 1 GB. A row that needs more ends every session at
the same place. The error of the server names neither the table nor the transaction. Another publication does not help,
because a change is decoded by the catalog of its time (PostgreSQL manual, chapter "Logical Decoding").
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Final

from levada.capture.message_stream import MessageStream
from levada.errors import LevadaError, StatementRefused
from levada.pgoutput.encoding import TextConversion
from levada.pgoutput.messages import HEADER, parse_relation
from levada.postgres.connection import PostgresConnection
from levada.postgres.replication import quote_literal
from levada.postgres.stream import ReplicationStream
from levada.printable import listed
from levada.values import Lsn, QualifiedTable, quote_identifier

_LIMIT_S: Final = 120.0
_POLL_S: Final = 0.25
_BYTES: Final = 1 << 30


@dataclass(slots=True)
class _Transaction:
    """The transaction that the stream has begun last. ``last`` is the table that was described and has no row yet."""

    xid: int = 0
    last: QualifiedTable | None = None
    described: dict[QualifiedTable, None] = field(default_factory=dict)

    def take(self, message: bytes, conversion: TextConversion | None) -> None:
        """Follow one message of the stream."""
        body = message[HEADER:]
        kind = body[:1]
        if kind == b"B":
            self.xid, self.last = int.from_bytes(body[17:21], "big"), None
        elif kind == b"R":
            self.last = parse_relation(body, Lsn(0), conversion).table
            self.described[self.last] = None
        elif kind in (b"I", b"U", b"D", b"T"):
            self.last = None

    def __str__(self) -> str:
        where = f"transaction {self.xid}"
        if self.last is not None:
            return f"a row of table {self.last} in {where}"
        if len(self.described) == 1:
            return f"a row of table {next(iter(self.described))} in {where}"
        if self.described:
            return f"a row of one of these tables in {where}: {listed([str(t) for t in self.described])}"
        return f"a row in {where}"


def unsent_error(
    connection: PostgresConnection, slot: str, publication: str, start: Lsn, error: LevadaError, stop: threading.Event
) -> LevadaError | None:
    """Return the error for a row that the server cannot send, with its table, or None if it is not found.

    The stream is read again from ``start`` up to that row, so the error must be that of a session which receives no
    transactions in progress. ``stop`` ends it.
    """
    found = _Transaction()
    try:
        with ReplicationStream(connection, slot=slot, publication=publication, start_lsn=start) as stream:
            _follow(stream, found, stream.conversion, stop)
    except LevadaError as again:
        if again.code != error.code:
            return None
    if not found.xid:
        return None
    drop = (
        f"SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = {quote_literal(slot)};"
        f" SELECT pg_drop_replication_slot({quote_literal(slot)})"
    )
    return StatementRefused(
        error.code,
        f"{error.message}. The server cannot send {found}, and nothing after it can be read",
        hint="set spec.source.slot.onLost to Compare, end the engine, drop the slot, and start the engine: each table"
        f" is compared, and only what differs is written. To drop the slot: {drop}. If such rows are usual, first"
        " exclude the table, or the root of the partition, in spec.tables, and take it out of the publication:"
        f" ALTER PUBLICATION {quote_identifier(publication)} DROP TABLE …",
    )


def _follow(
    stream: MessageStream, found: _Transaction, conversion: TextConversion | None, stop: threading.Event
) -> None:
    """Read the stream to its error, for a limited time."""
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end and not stop.is_set():
        # An error would lose what was received in the same call.
        for message in stream.receive(1, _BYTES, _POLL_S):
            found.take(message, conversion)
