"""Single messages of pgoutput, protocol version 1 (PostgreSQL manual, "Logical Replication Message Formats").

`levada.pgoutput.decoder` decodes rows, by the column.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from levada.errors import DecodeError
from levada.pgoutput.encoding import TextConversion, text_to_utf8
from levada.values import Lsn, QualifiedTable, TableId

HEADER: Final = 25
"""Size of the header before a message: ``w``, the WAL start, the WAL end and the sender's clock (XLogData)."""

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""PostgreSQL's epoch, 2000-01-01 UTC, in microseconds since 1970-01-01 UTC."""

BEGIN_SIZE: Final = 1 + 8 + 8 + 4
COMMIT_SIZE: Final = 1 + 1 + 8 + 8 + 8

_IDENTITIES: Final = "dnfi"


@dataclass(frozen=True, slots=True)
class RelationColumn:
    """A column in a RELATION message. ``is_key`` is True if an old key tuple contains it."""

    name: str
    type_oid: int
    typmod: int
    is_key: bool


@dataclass(frozen=True, slots=True)
class Relation:
    """The columns of the rows that follow. ``identity`` is ``relreplident``: d, n, f or i."""

    oid: TableId
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]

    @property
    def table(self) -> QualifiedTable:
        """The table's qualified name."""
        return QualifiedTable(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class TruncateBody:
    """The body of a TRUNCATE message."""

    tables: tuple[TableId, ...]
    cascade: bool
    restart_identity: bool


@dataclass(frozen=True, slots=True)
class MessageBody:
    """The body of a logical message. ``lsn`` is the LSN of the message."""

    transactional: bool
    lsn: Lsn
    prefix: str
    content: bytes


_OID_END: Final = 5


class _Reader:
    """A sequential reader of a message. It raises DecodeError for missing or invalid parts."""

    def __init__(self, data: bytes, lsn: Lsn, what: str, conversion: TextConversion | None = None) -> None:
        self._conversion = conversion
        self._data = data
        self._at = 1
        self._lsn = lsn
        self._what = what

    def error(self, why: str) -> DecodeError:
        return DecodeError("malformed_message", f"{self._what} message at LSN {self._lsn}: {why}")

    def unpack(self, layout: str) -> tuple[int, ...]:
        try:
            values = struct.unpack_from("!" + layout, self._data, self._at)
        except struct.error:
            raise self.error("it is truncated") from None
        self._at += struct.calcsize("!" + layout)
        return values

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self._data) - self._at:
            raise self.error("it is truncated")
        self._at += size
        return self._data[self._at - size : self._at]

    def string(self) -> bytes:
        end = self._data.find(b"\0", self._at)
        if end < 0:
            raise self.error("an unterminated string")
        text, self._at = self._data[self._at : end], end + 1
        return text

    def name(self) -> str:
        text = text_to_utf8(self.string(), self._conversion)
        if text is None:
            raise self.error("a string that is not UTF-8, or has a character that UTF-8 lacks")
        return text

    def end(self) -> None:
        if self._at != len(self._data):
            raise self.error("excess bytes after its end")


def parse_relation(message: bytes, lsn: Lsn, conversion: TextConversion | None = None) -> Relation:
    """Parse a RELATION message without its `HEADER`.

    ``conversion`` is that of a database with another encoding than UTF8. Raise DecodeError, which names ``lsn``, and
    ConversionError.
    """
    r = _Reader(message, lsn, "RELATION", conversion)
    (oid,) = r.unpack("I")
    # pgoutput sends an empty name for pg_catalog.
    schema = r.name() or "pg_catalog"
    name = r.name()
    identity, count = r.unpack("BH")
    if chr(identity) not in _IDENTITIES:
        raise r.error("an unknown replica identity")
    columns = []
    for _ in range(count):
        (flags,) = r.unpack("B")
        column = r.name()
        type_oid, typmod = r.unpack("Ii")
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    r.end()
    if len({c.name for c in columns}) != count:
        raise r.error("duplicate column names")
    return Relation(TableId(oid), schema, name, chr(identity), tuple(columns))


def relation_oid(message: bytes) -> TableId | None:
    """Return the OID in a RELATION message that `parse_relation` refuses, None if it is too short to have one."""
    return TableId(int.from_bytes(message[1:5], "big")) if len(message) >= _OID_END else None


def parse_truncate(message: bytes, lsn: Lsn) -> TruncateBody:
    """Parse a TRUNCATE message without its `HEADER`. Raise DecodeError, which names ``lsn``."""
    r = _Reader(message, lsn, "TRUNCATE")
    count, options = r.unpack("IB")
    if len(message) != 6 + 4 * count:
        raise r.error("its length does not match its number of tables")
    oids = r.unpack(f"{count}I")
    return TruncateBody(tuple(map(TableId, oids)), bool(options & 1), bool(options & 2))


def parse_message(message: bytes, lsn: Lsn) -> MessageBody:
    """Parse a logical message without its `HEADER`. Raise DecodeError, which names ``lsn``."""
    r = _Reader(message, lsn, "MESSAGE")
    flags, at = r.unpack("BQ")
    # Every role may write one. An undecodable prefix is not Levada's.
    prefix = r.string().decode(errors="replace")
    (size,) = r.unpack("I")
    content = r.take(size)
    r.end()
    return MessageBody(bool(flags & 1), Lsn(at), prefix, content)
