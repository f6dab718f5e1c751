"""Common parts of the tests of slots and streams."""

from __future__ import annotations

from collections.abc import Callable

from tests.rigs.database import Database
from tests.rigs.waiting import until

from levada.postgres.slots import create_slot
from levada.postgres.stream import ReplicationStream
from levada.values import Lsn


def prepare(db: Database, slot: str = "s") -> Lsn:
    """A table, its publication, and a slot after it."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "CREATE PUBLICATION p FOR TABLE t")
    with db.connection.connect() as c:
        return create_slot(c, slot)


def open_stream(db: Database, slot: str = "s", publication: str = "p") -> ReplicationStream:
    """The stream of the slot."""
    return ReplicationStream(db.connection, slot=slot, publication=publication)


def kinds(messages: list[bytes]) -> str:
    """The kind of each message: B, R, I, C and so on."""
    return "".join(chr(m[25]) for m in messages)


def receive_until(stream: ReplicationStream, done: Callable[[list[bytes]], bool]) -> list[bytes]:
    """All messages until the condition holds."""
    messages: list[bytes] = []

    def receive() -> list[bytes]:
        if not done(messages):
            messages.extend(stream.receive(1000, 1 << 20, 0.2))
        return messages

    return until(receive, done, report=lambda: kinds(messages))
