"""Messages of one table with any content, within valid streams. They concern no other table."""

from __future__ import annotations

from functools import cache
from typing import Final

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pgoutput.capture_golden import PREFIXES, load
from tests.pgoutput.source import Versions

from levada.errors import DecodeError
from levada.pgoutput.changes import TableChanges
from levada.pgoutput.decoder import Decoder
from levada.pgoutput.messages import HEADER
from levada.values import SnapshotId, TableId

STREAMS: Final = ("identities", "rows", "schema_change", "toast")
_BODY: Final = HEADER + 5
"""The offset of what follows the relation in a message of one table."""
_ODD: Final = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [b"\0", b"\xff" * 8, b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"N", b"O", b"K", b"t\0\0\0\x01", b"n", b"u", b"b"]
    ),
)


class Contained(Versions):
    """A resolver that goes on after the failure of a table."""

    def __init__(self) -> None:
        self.failed_tables: set[TableId] = set()

    def failed(self, table: TableId, error: DecodeError, at: SnapshotId) -> None:
        self.failed_tables.add(table)


@cache
def doubled(name: str) -> tuple[list[bytes], frozenset[int]]:
    """Return a stream in which each table has a twin with the same messages, and the places of the twins' messages."""
    messages: list[bytes] = []
    twins = set()
    for message in load(name):
        messages.append(message)
        if chr(message[HEADER]) in "RIUD":
            twins.add(len(messages))
            messages.append(message[: HEADER + 1] + twin(message) + message[_BODY:])
    return messages, frozenset(twins)


def twin(message: bytes) -> bytes:
    """Return the OID of the twin of a message's table."""
    return bytes([message[HEADER + 1] ^ 0x40]) + message[HEADER + 2 : _BODY]


def rows_of_others(messages: list[bytes]) -> tuple[list[pa.RecordBatch], int, set[TableId]]:
    """Return the rows of all tables but twins, the number of transactions, and the tables that failed."""
    resolver = Contained()
    batch = Decoder(resolver, message_prefixes=PREFIXES).decode(messages)
    rows = [i.rows for i in batch.items if isinstance(i, TableChanges) and i.schema.id < 1 << 30]
    return rows, batch.transactions, resolver.failed_tables


@cache
def wanted(name: str) -> tuple[list[pa.RecordBatch], int]:
    """Return the rows of all tables but twins, and the number of transactions, of the stream as it is."""
    rows, transactions, failed = rows_of_others(doubled(name)[0])
    assert not failed
    return rows, transactions


@settings(max_examples=150)
@given(data=st.data(), name=st.sampled_from(STREAMS))
def test_any_content_of_one_tables_messages_leaves_the_others(data: st.DataObject, name: str) -> None:
    """Whatever the descriptions and rows of some tables contain, the rows of all others are read as without them."""
    messages, twins = doubled(name)
    for at in data.draw(st.sets(st.sampled_from(sorted(twins)), min_size=1, max_size=4)):
        body = messages[at][_BODY:]
        first = data.draw(st.integers(0, len(body)))
        end = data.draw(st.integers(first, min(len(body), first + 12)))
        # A row without the kind of its tuple belongs to no table that could be named.
        changed = (body[:first] + data.draw(_ODD) + body[end:]) or b"N"
        messages = [*messages[:at], messages[at][:_BODY] + changed, *messages[at + 1 :]]
    rows, transactions, failed = rows_of_others(messages)
    assert (rows, transactions) == wanted(name)
    assert all(table >= 1 << 30 for table in failed)
