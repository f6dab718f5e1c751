"""The replication stream, as capture uses it. `levada.postgres.stream.ReplicationStream` is the one of a server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from levada.values import Lsn


@dataclass(frozen=True, slots=True)
class SliceLimits:
    """The size from which received messages are decoded. Only one transaction is larger than a slice.

    Decoding has a fixed cost per slice and table. It is small when it is divided by this many messages.
    """

    messages: int = 16_384
    bytes: int = 4 << 20


class MessageStream(Protocol):
    """The messages of one slot, and the acknowledgements to it.

    `receive` belongs to one thread. `acknowledge` and `keepalive` are thread-safe.
    """

    @property
    def server_wal_end(self) -> Lsn:
        """The position up to which the server has read its WAL."""

    @property
    def idle_wal_end(self) -> Lsn | None:
        """The position below which no change is missing once all messages are handled, or None if it is not known."""

    @property
    def in_progress_bytes(self) -> int:
        """The size of what was received of transactions in progress, which `receive` returns after their commits."""

    def receive(self, max_messages: int, max_bytes: int, timeout_s: float) -> list[bytes]:
        """Return XLogData payloads in order, or an empty list after ``timeout_s`` without any.

        Raise Transient when the connection or the server ends.
        """

    def acknowledge(self, lsn: Lsn) -> None:
        """Let the slot advance to ``lsn``. Commits at or after ``lsn`` are not included."""

    def keepalive(self) -> None:
        """Report to the server if a report is due."""
