"""A replication stream without a server: it plays messages, keepalives and errors, and records what it is asked."""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from levada.errors import LevadaError
from levada.pgoutput.messages import HEADER
from levada.values import Lsn

OID = {"int4": 23, "text": 25}


@dataclass(frozen=True)
class Keepalive:
    """The server has read its WAL up to here, and has sent every message below."""

    wal_end: int


@dataclass(frozen=True)
class Quiet:
    """The server sends nothing for as long as the reader waits once."""


Step = bytes | Keepalive | Quiet | LevadaError


class FakeStream:
    """Plays ``steps`` in order, as `ReplicationStream` receives them. Each call of `receive` ends at a Quiet.

    An error is raised once all messages before it were returned. After the last step the server is quiet.
    ``waited`` is called with the seconds that a `receive` without messages waits, in place of a wait.
    ``acknowledging`` is called with each acknowledged LSN, in the thread that acknowledges.
    """

    def __init__(
        self,
        steps: Iterable[Step],
        *,
        waited: Callable[[float], None] = lambda seconds: None,
        acknowledging: Callable[[Lsn], None] = lambda lsn: None,
    ) -> None:
        self._steps = deque(steps)
        self._waited = waited
        self._acknowledging = acknowledging
        self.server_wal_end = Lsn(0)
        self.idle_wal_end: Lsn | None = None
        self.acknowledged: list[Lsn] = []
        self.received: list[int] = []
        """The number of messages that each call of `receive` returned."""
        self.keepalives = 0
        self.in_progress_bytes = 0

    @property
    def ended(self) -> bool:
        """Return True once all steps were played."""
        return not self._steps

    def receive(self, max_messages: int, max_bytes: int, timeout_s: float) -> list[bytes]:
        """Return the messages up to the limits, or up to where the server is quiet."""
        messages: list[bytes] = []
        while self._steps and len(messages) < max_messages and sum(map(len, messages)) < max_bytes:
            step = self._steps[0]
            if isinstance(step, LevadaError) and messages:
                break
            self._steps.popleft()
            if isinstance(step, LevadaError):
                raise step
            if isinstance(step, Quiet):
                break
            if isinstance(step, Keepalive):
                self.idle_wal_end = Lsn(step.wal_end)
                self.server_wal_end = max(self.server_wal_end, self.idle_wal_end)
                continue
            messages.append(step)
            self.idle_wal_end = None
            self.server_wal_end = max(self.server_wal_end, Lsn(int.from_bytes(step[9:17])))
        self.received.append(len(messages))
        if not messages:
            self._waited(timeout_s)
        return messages

    def acknowledge(self, lsn: Lsn) -> None:
        """Record the LSN."""
        self._acknowledging(lsn)
        self.acknowledged.append(lsn)

    def keepalive(self) -> None:
        """Count the call."""
        self.keepalives += 1


def payload(lsn: int, body: bytes) -> bytes:
    """Return a message with the header of XLogData."""
    header = b"w" + struct.pack("!QQQ", lsn, lsn, 0)
    assert len(header) == HEADER
    return header + body


def begin(commit: int, xid: int) -> bytes:
    """Return the BEGIN of the transaction that commits at this LSN."""
    return payload(commit, b"B" + struct.pack("!QQI", commit, 0, xid))


def commit(at: int, end: int) -> bytes:
    """Return the COMMIT at this LSN, whose record ends at ``end``."""
    return payload(end, b"C" + struct.pack("!BQQQ", 0, at, end, 0))


def relation(oid: int, name: str, **columns: str) -> bytes:
    """Return the RELATION of a table in ``public`` whose first column is the key."""
    fields = [
        struct.pack("!B", number == 0) + column.encode() + b"\0" + struct.pack("!Ii", OID[kind], -1)
        for number, (column, kind) in enumerate(columns.items())
    ]
    head = struct.pack("!I", oid) + b"public\0" + name.encode() + b"\0d" + struct.pack("!H", len(fields))
    return payload(0, b"R" + head + b"".join(fields))


def insert(oid: int, lsn: int, *values: str) -> bytes:
    """Return the INSERT of a row, by the texts of its values."""
    texts = [b"t" + struct.pack("!I", len(text := value.encode())) + text for value in values]
    return payload(lsn, b"I" + struct.pack("!I", oid) + b"N" + struct.pack("!H", len(values)) + b"".join(texts))


def transaction(number: int, oid: int, *ids: int, begins_at: int = 0) -> list[bytes]:
    """Return a transaction that inserts these ids. It commits at ``1000 * number`` and ends 8 bytes later.

    The table has the one column ``id``, and its RELATION is in each transaction.
    """
    at = 1000 * number
    rows = [insert(oid, begins_at or at - 500 + n, str(id_)) for n, id_ in enumerate(ids)]
    return [begin(at, number), relation(oid, f"t{oid}", id="int4"), *rows, commit(at, at + 8)]
