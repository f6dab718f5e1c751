"""Transactions that arrive while they are in progress are read as if they had been sent after their commits."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql
from tests.rigs.capture import Capture
from tests.rigs.database import Database
from tests.rigs.fake_stream import FakeStream, begin, commit, insert, payload, relation, transaction
from tests.rigs.open_transactions import Client, send_immediately
from tests.rigs.waiting import until

from levada.capture.in_progress import InProgressLimits, NotKeptError, TransactionsInProgress
from levada.capture.message_stream import MessageStream
from levada.errors import Transient
from levada.pgoutput.messages import HEADER
from levada.pgoutput.streamed import relations_of, without_rollbacks
from levada.postgres.slots import create_slot
from levada.postgres.stream import ReplicationStream
from levada.values import Lsn


def start(xid: int, *messages: bytes) -> list[bytes]:
    """A block of a transaction in progress: the messages, each of the subtransaction `xid` unless it names another."""
    return [payload(1, b"S" + struct.pack("!IB", xid, 1)), *messages, payload(1, b"E")]


def of(xid: int, message: bytes) -> bytes:
    """The message in a block, of this subtransaction."""
    return message[: HEADER + 1] + struct.pack("!I", xid) + message[HEADER + 1 :]


def committed(xid: int, at: int) -> bytes:
    """The STREAM COMMIT of a transaction, which ends 8 bytes after ``at``."""
    return payload(at + 8, b"c" + struct.pack("!IBQQQ", xid, 0, at, at + 8, 0))


def aborted(xid: int, subtransaction: int) -> bytes:
    """The STREAM ABORT of a subtransaction."""
    return payload(1, b"A" + struct.pack("!II", xid, subtransaction))


def read(stream: TransactionsInProgress, source: FakeStream) -> list[bytes]:
    """All messages of complete transactions."""
    messages: list[bytes] = []
    while (found := stream.receive(100, 1 << 20, 0)) or not source.ended:
        messages += found
    return messages


def opened(steps: list[bytes], folder: Path, server_version: int = 180_000, **limits: Any) -> TransactionsInProgress:
    """The stream of a server that plays these messages."""
    chosen = InProgressLimits(**{"free": 0.0, **limits})
    return TransactionsInProgress(FakeStream(steps), folder, server_version=server_version, limits=chosen)


T1 = relation(7, "t7", id="int4")
ROWS = [insert(7, 500 + n, str(n)) for n in range(5)]


def test_a_transaction_is_complete_at_its_commit(tmp_path: Path) -> None:
    """Blocks of two transactions and a small one are read as three, in the order of the commits."""
    small = transaction(3, 9, 1)
    steps = [
        *start(5, of(5, T1), of(5, ROWS[0])), *start(6, of(6, ROWS[1])), *small, *start(5, of(5, ROWS[2])),
        committed(6, 4000), committed(5, 5000),
    ]  # fmt: skip
    source = FakeStream(steps)
    stream = TransactionsInProgress(source, tmp_path, server_version=180_000, limits=InProgressLimits(2, free=0))
    expected = [
        *small,
        *(begin_at(501, 4000, 6), ROWS[1], commit(4000, 4008)),
        *(begin_at(500, 5000, 5), T1, ROWS[0], ROWS[2], commit(5000, 5008)),
    ]
    assert read(stream, source) == expected
    assert (stream.in_progress_bytes, list(tmp_path.iterdir())) == (0, [])


def begin_at(first: int, at: int, xid: int) -> bytes:
    """The BEGIN of a transaction whose first message is at ``first``."""
    made = begin(at, xid)
    return made[:1] + struct.pack("!QQ", first, at + 8) + made[17:]


def test_what_is_rolled_back_is_left_out(tmp_path: Path) -> None:
    """Neither a rolled-back transaction nor subtransaction is read. Its description of a relation is, if needed."""
    steps = [
        *start(5, of(51, T1), of(51, ROWS[0]), of(5, ROWS[1])), *start(6, of(6, ROWS[2])),
        aborted(5, 51), aborted(6, 6), committed(5, 5000),
    ]  # fmt: skip
    source = FakeStream(steps)
    stream = TransactionsInProgress(source, tmp_path, server_version=180_000, limits=InProgressLimits(free=0))
    assert read(stream, source) == [begin_at(501, 5000, 5), T1, ROWS[1], commit(5000, 5008)]
    assert not stream.outdated


def test_a_rollback_of_what_was_never_sent(tmp_path: Path) -> None:
    """A server may roll back a transaction, or a part of one, of which it has sent nothing. Others are read as ever."""
    small = transaction(3, 9, 1)
    source = FakeStream([aborted(5, 5), *small, aborted(6, 61), aborted(6, 6)])
    stream = TransactionsInProgress(source, tmp_path, server_version=180_000, limits=InProgressLimits(free=0))
    assert read(stream, source) == small


def test_the_partitions_of_what_is_left(tmp_path: Path) -> None:
    """A partition is described after its root, also if a rolled-back subtransaction had the first row of it."""
    root, leaf, other = (relation(oid, f"t{oid}", id="int4") for oid in (20, 21, 22))
    row = insert(20, 100, "1")
    steps = [
        *start(5, of(51, root), of(51, leaf), of(51, row), of(5, root), of(5, other), of(5, row)),
        aborted(5, 51), committed(5, 5000),
    ]  # fmt: skip
    source = FakeStream(steps)
    limits = InProgressLimits(free=0, chunk_messages=2)
    stream = TransactionsInProgress(source, tmp_path, server_version=180_000, limits=limits)
    assert read(stream, source)[1:-1] == [root, leaf, root, other, row]


def test_a_relation_that_was_left_out_asks_for_a_new_session(tmp_path: Path) -> None:
    """The server takes a relation for known that only a rolled-back subtransaction described."""
    steps = [
        *start(5, of(5, relation(8, "t8", id="int4")), of(5, insert(8, 400, "1")), of(51, T1), of(51, ROWS[0])),
        aborted(5, 51), committed(5, 5000), *transaction(6, 7, 1)[:1], ROWS[1],
    ]  # fmt: skip
    source = FakeStream(steps)
    stream = TransactionsInProgress(source, tmp_path, server_version=180_000, limits=InProgressLimits(free=0))
    assert bytes(m[HEADER] for m in read(stream, source)) == b"BRIC"
    assert stream.outdated
    assert stream.receive(100, 1 << 20, 0) == []
    assert stream.idle_wal_end is None


@pytest.mark.parametrize(("version", "kinds"), [(140_010, b"BC"), (150_000, b"")])
def test_a_transaction_without_changes_is_sent_as_the_server_sends_others(
    tmp_path: Path, version: int, kinds: bytes
) -> None:
    """The last transaction that was read is compared with what the server sends again, by protocol version 1."""
    source = FakeStream([*start(5, of(51, T1), of(51, ROWS[0])), aborted(5, 51), committed(5, 5000)])
    stream = TransactionsInProgress(source, tmp_path, server_version=version, limits=InProgressLimits(free=0))
    assert bytes(m[HEADER] for m in read(stream, source)) == kinds


@pytest.mark.parametrize("limits", [{"bytes": 10}, {"free": 1.0}], ids=["size", "disk"])
def test_the_disk_is_not_filled(tmp_path: Path, limits: dict[str, Any]) -> None:
    """Transactions in progress are given up at the limit of their size, and before the disk is full."""
    stream = opened(start(5, of(5, T1), *(of(5, row) for row in ROWS)), tmp_path, chunk_messages=2, **limits)
    with pytest.raises(NotKeptError):
        stream.receive(100, 1 << 20, 0)


def test_a_folder_that_is_gone_is_no_room(tmp_path: Path) -> None:
    """An error of the disk is no error of the stream."""
    with pytest.raises(NotKeptError, match="a file in"):
        opened(start(5, of(5, T1)), tmp_path / "none").receive(100, 1 << 20, 0)


@dataclass
class Reading:
    """The changes of a stream: each transaction, and each change with the description that it is read by."""

    stream: MessageStream
    relations: dict[int, bytes] = field(default_factory=dict)
    changes: list[Any] = field(default_factory=list)
    end: int = 0

    def complete(self) -> list[Any]:
        """The changes of complete transactions."""
        last = max((i for i, c in enumerate(self.changes) if c[:1] == b"C"), default=-1)
        return self.changes[: last + 1]

    def more(self) -> list[Any]:
        for message in self.stream.receive(1000, 1 << 20, 0.1):
            kind, body = message[HEADER : HEADER + 1], message[HEADER:]
            if kind == b"R":
                self.relations[int.from_bytes(body[1:5])] = body
            elif kind in b"IUDT":
                self.changes.append((message[1:9], body, [self.relations[oid] for oid in relations_of(message)]))
            elif kind in b"BCM":
                self.changes.append(body)
                self.end = int.from_bytes(body[10:18]) if kind == b"C" else self.end
        return self.changes


def read_both(db: Database, tmp_path: Path, slots: list[str], last: bytes) -> tuple[list[Any], list[Any]]:
    """The changes of two slots up to a message, by both protocols."""

    def over(reading: Reading) -> Callable[[list[Any]], bool]:
        return lambda changes: any(isinstance(c, bytes) and last in c for c in changes) and changes[-1][:1] == b"C"

    with ReplicationStream(db.connection, slot=slots[0], publication="p") as stream:
        plain = Reading(stream)
        until(plain.more, over(plain))
    changes: list[Any] = []
    end, in_progress = 0, True
    while True:
        with ReplicationStream(
            db.connection, slot=slots[1], publication="p", start_lsn=Lsn(end), in_progress=in_progress
        ) as stream:
            limits = InProgressLimits(chunk_messages=7)
            with closing(
                TransactionsInProgress(stream, tmp_path, server_version=stream.server_version, limits=limits)
            ) as complete:
                reading = Reading(complete)
                try:
                    until(reading.more, lambda found: complete.outdated or over(reading)(found))  # noqa: B023 - called at once
                except (Transient, NotKeptError):
                    in_progress = False
                changes += reading.complete()
                end = reading.end or end
                if changes and over(reading)(changes):
                    return plain.changes, changes


@pytest.mark.sampled
@pytest.mark.parametrize("seed", range(4))
def test_random_transactions_are_read_as_by_the_other_protocol(db: Database, tmp_path: Path, seed: int) -> None:
    """Changes, their places, their relations and their transactions are the same, for savepoints and DDL too."""
    Client.create(db, 3)
    db.execute("CREATE PUBLICATION p FOR ALL TABLES")
    slots = [f"{db.name}_{n}" for n in range(2)]
    with db.connect() as c:
        for slot in slots:
            create_slot(c, slot)
        server_version = c.info.server_version
        send_immediately(c)
        clients = [Client(db, n, seed) for n in range(3)]
        order = random.Random(seed)
        for _ in range(150):
            order.choice(clients).step()
        for client in clients:
            client.end()
            client.close()
        c.execute("SELECT pg_logical_emit_message(true, 'test', 'the end')")
    plain, changes = read_both(db, tmp_path, slots, b"the end")
    assert len(plain) > 30
    assert changes == plain
    if server_version >= 160_000:
        [(streamed,)] = db.query("SELECT stream_txns FROM pg_stat_replication_slots WHERE slot_name = %s", slots[1])
        assert streamed > 3


def test_a_large_transaction_is_never_on_the_sources_disk(capture: Capture, db: Database, tmp_path: Path) -> None:
    """It is received before its commit, is staged at the commit, and the source has spilled nothing."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    capture.prepare()
    with db.connect() as c:
        name = sql.Identifier(db.name)
        c.execute(sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'").format(name))
    capture.new_worker(work_dir=tmp_path)
    with capture.running(), db.connect() as c:
        c.execute("BEGIN")
        c.execute("INSERT INTO a SELECT i, repeat('x', 100) FROM generate_series(1, 5000) i")
        db.execute("INSERT INTO a VALUES (-1, 'meanwhile')")
        capture.until(lambda: capture.rows("a") != [])
        assert [r["id"] for r in capture.rows("a")] == [-1]
        capture.until(lambda: capture.worker.position.in_progress_bytes > 0)
        c.execute("COMMIT")
        capture.catch_up()
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")
    [(spilled, streamed)] = db.query(
        "SELECT spill_bytes, stream_bytes FROM pg_stat_replication_slots WHERE slot_name = %s", capture.slot
    )
    assert (spilled, streamed > 0) == (0, True)


def test_without_room_a_transaction_is_received_after_its_commit(
    capture: Capture, db: Database, tmp_path: Path
) -> None:
    """The stream begins again without transactions in progress, and every row lands once."""
    db.execute("CREATE TABLE a (id int PRIMARY KEY, v text)")
    capture.prepare()
    with db.connect() as c:
        name = sql.Identifier(db.name)
        c.execute(sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'").format(name))
    limits = replace(InProgressLimits(), bytes=20_000, chunk_messages=100)
    capture.new_worker(work_dir=tmp_path, in_progress=limits)
    with capture.running():
        db.execute("INSERT INTO a SELECT i, md5(i::text) FROM generate_series(1, 5000) i")
        capture.catch_up()
        assert capture.worker.position.sessions > 1
    assert capture.error is None
    assert capture.replayed("a") == capture.source("a")


def test_a_stream_of_whole_transactions_has_no_rollback() -> None:
    """PostgreSQL 18 sends STREAM ABORT also to a session that it sends nothing in progress, and so do its restarts."""
    messages = transaction(1, 16400, 1, 2)
    assert without_rollbacks([messages[0], aborted(7, 9), *messages[1:], aborted(7, 7)]) == messages
