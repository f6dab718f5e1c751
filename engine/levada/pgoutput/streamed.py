"""Messages of transactions in progress (pgoutput, protocol version 2), and their form in protocol version 1.

A transaction in progress arrives in blocks between a STREAM START and a STREAM STOP. Each message in a block has the ID
of its subtransaction after its kind, and is otherwise one of version 1. PostgreSQL manual, "Streaming of Large
Transactions for Logical Decoding" and "Logical Replication Message Formats". Pure.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from levada.errors import DecodeError
from levada.pgoutput.messages import HEADER
from levada.values import Lsn

RELATION: Final = ord("R")
TYPE: Final = ord("Y")
LOGICAL: Final = ord("M")
ABORT: Final = ord("A")
XID_END: Final = HEADER + 1 + 4
"""The end of the subtransaction's ID in a message of a block."""

_IDENTIFIED: Final = frozenset(b"RYIUDTM")
_ROWS: Final = frozenset(b"IUD")
_TRUNCATE: Final = ord("T")


@dataclass(frozen=True, slots=True)
class StreamCommit:
    """The end of a transaction that arrived in progress. ``xid`` is that of the top-level transaction."""

    xid: int
    message: bytes

    @property
    def lsn(self) -> Lsn:
        """The LSN of the commit."""
        return Lsn(int.from_bytes(self.message[HEADER + 6 : HEADER + 14]))

    def begin(self, start_lsn: bytes) -> bytes:
        """Return the BEGIN of the transaction. ``start_lsn`` are the 8 bytes of its first message's WAL start."""
        lsn, at = self.message[HEADER + 6 : HEADER + 14], self.message[HEADER + 22 : HEADER + 30]
        return b"w" + start_lsn + self.message[9:HEADER] + b"B" + lsn + at + struct.pack("!I", self.xid)

    def commit(self) -> bytes:
        """Return the COMMIT of the transaction."""
        return self.message[:HEADER] + b"C" + self.message[HEADER + 5 :]


def block_xid(message: bytes) -> int:
    """Return the ID of the top-level transaction that a STREAM START names. Raise DecodeError."""
    _require_size(message, 1 + 4 + 1, "STREAM START")
    return int.from_bytes(message[HEADER + 1 : XID_END])


def parse_commit(message: bytes) -> StreamCommit:
    """Parse a STREAM COMMIT. Raise DecodeError."""
    _require_size(message, 1 + 4 + 1 + 8 + 8 + 8, "STREAM COMMIT")
    return StreamCommit(int.from_bytes(message[HEADER + 1 : XID_END]), message)


def parse_abort(message: bytes) -> tuple[int, int]:
    """Return the IDs of the top-level transaction and of the subtransaction that is rolled back.

    They are equal if it is the whole transaction. Raise DecodeError.
    """
    _require_size(message, 1 + 4 + 4, "STREAM ABORT")
    return int.from_bytes(message[HEADER + 1 : XID_END]), int.from_bytes(message[XID_END : XID_END + 4])


def without_rollbacks(messages: list[bytes]) -> list[bytes]:
    """Return the messages without STREAM ABORT, which no stream of protocol version 1 should have.

    PostgreSQL 18 sends it there too, for a subtransaction above `logical_decoding_work_mem` that was rolled back.
    """
    return [m for m in messages if m[HEADER] != ABORT]


def subtransaction(message: bytes) -> int | None:
    """Return the ID of the subtransaction of a message in a block, or None if its kind has none. Raise DecodeError."""
    if message[HEADER] not in _IDENTIFIED:
        return None
    if len(message) < XID_END:
        raise DecodeError("malformed_message", f"message at LSN {_lsn(message)}: it is truncated")
    return int.from_bytes(message[HEADER + 1 : XID_END])


def first_lsn(messages: Sequence[bytes]) -> bytes | None:
    """Return the 8 bytes of the first WAL position in the headers, None if there is none. Descriptions have none."""
    return next((lsn for m in messages if any(lsn := m[1:9])), None)


def plain(message: bytes) -> bytes:
    """Return a message of a block as protocol version 1 has it."""
    return message[: HEADER + 1] + message[XID_END:]


def relations_of(message: bytes) -> tuple[int, ...]:
    """Return the OIDs of the relations that a message in its `plain` form needs: those of a row or a TRUNCATE."""
    kind, body = message[HEADER], message[HEADER + 1 :]
    if kind in _ROWS:
        return (int.from_bytes(body[:4]),)
    if kind == _TRUNCATE:
        return tuple(int.from_bytes(body[i : i + 4]) for i in range(5, len(body), 4))
    return ()


def relation_of(message: bytes) -> int:
    """Return the OID that a RELATION describes, in its `plain` form."""
    return int.from_bytes(message[HEADER + 1 : HEADER + 5])


def _require_size(message: bytes, size: int, what: str) -> None:
    if len(message) != HEADER + size:
        raise DecodeError("malformed_message", f"message at LSN {_lsn(message)}: a {what} of the wrong size")


def _lsn(message: bytes) -> Lsn:
    return Lsn(int.from_bytes(message[1:9]))
