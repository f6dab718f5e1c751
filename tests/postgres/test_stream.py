"""The stream: the messages that it returns, the positions that it sends to the server, and its end."""

from __future__ import annotations

import os
import socket
import threading

import pytest
from tests.postgres.streams import kinds, open_stream, prepare, receive_until
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import LIMIT_S, until

from levada.errors import NeedsOperator, SlotLost, Transient
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.heartbeat import HEARTBEAT_PREFIX, emit_heartbeat
from levada.postgres.lag import current_wal_lsn
from levada.postgres.slots import inspect_slot
from levada.postgres.stream import ReplicationStream
from levada.values import Lsn


def confirmed(db: Database) -> Lsn:
    """The slot's confirmed position."""
    return Lsn.parse(db.query("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 's'")[0][0])


def commit_end(message: bytes) -> Lsn:
    """The end LSN of a COMMIT message."""
    assert message[25:26] == b"C"
    return Lsn(int.from_bytes(message[35:43]))


def test_messages_arrive_whole_and_in_order(versions: Database) -> None:
    """Each message is one XLogData payload. A time-out without any returns an empty list."""
    prepare(versions)
    with open_stream(versions) as stream:
        assert stream.receive(10, 1000, 0.05) == []
        versions.execute("INSERT INTO t VALUES (1, 'a')", "UPDATE t SET v = 'b'", "DELETE FROM t")
        messages = receive_until(stream, lambda m: kinds(m).count("C") == 3)
        assert kinds(messages) == "BRICBUCBDC"
        assert all(m[:1] == b"w" for m in messages)
        assert stream.server_wal_end >= commit_end(messages[-1])


def test_receive_keeps_to_its_limits(db: Database) -> None:
    """A backlog is handed out in lists of the size asked for, and nothing is lost between them."""
    prepare(db)
    db.execute("INSERT INTO t SELECT g, repeat('x', 50) FROM generate_series(1, 5000) g")
    with open_stream(db) as stream:
        got: list[bytes] = []
        while len(got) < 5003:
            part = stream.receive(100, 1 << 20, 5)
            assert 0 < len(part) <= 100
            got += part
        assert kinds(got) == "BR" + "I" * 5000 + "C"
        assert got[-1][25:26] == b"C"
    with open_stream(db) as stream:
        assert 0 < len(stream.receive(10**6, 1000, 5)) < 20


def test_unacknowledged_changes_come_again(db: Database) -> None:
    """Closing frees the slot at once, and the next stream begins where the last acknowledgement was."""
    prepare(db)
    db.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    with open_stream(db) as stream:
        messages = receive_until(stream, lambda m: kinds(m).count("C") == 2)
        first = commit_end(messages[3])
        stream.acknowledge(first)
        stream.acknowledge(Lsn(1))
    stream.close()
    assert confirmed(db) == first
    with open_stream(db) as stream:
        assert kinds(receive_until(stream, lambda m: "C" in kinds(m))) == "BRIC"


def test_acknowledgement_from_another_thread_is_told_soon(db: Database) -> None:
    """The slot moves while the receiving thread waits for messages that do not come."""
    prepare(db)
    db.execute("INSERT INTO t VALUES (1)")
    with open_stream(db) as stream:
        end = commit_end(receive_until(stream, lambda m: "C" in kinds(m))[-1])
        thread = threading.Thread(target=stream.acknowledge, args=[end])
        thread.start()
        receive_until(stream, lambda _: confirmed(db) == end)
        thread.join()


def test_keepalive_reports_between_receives(db: Database) -> None:
    """A caller that is busy can send the acknowledgement without receiving."""
    prepare(db)
    db.execute("INSERT INTO t VALUES (1)")
    with open_stream(db) as stream:
        end = commit_end(receive_until(stream, lambda m: "C" in kinds(m))[-1])
        stream.acknowledge(end)

        def position() -> Lsn:
            stream.keepalive()
            return confirmed(db)

        until(position, lambda lsn: lsn == end)


def test_slot_passes_wal_that_it_does_not_stream(db: Database) -> None:
    """On WAL of unpublished tables the idle end moves on and may be acknowledged.

    After a message the idle end is unknown.
    """
    prepare(db)
    db.execute("CREATE TABLE unpublished (id int)")
    with open_stream(db) as stream:
        db.execute("INSERT INTO unpublished SELECT generate_series(1, 1000)")
        head = Lsn.parse(db.query("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        # Version 14 also sends the empty transactions, as BC.
        assert "I" not in kinds(receive_until(stream, lambda _: (stream.idle_wal_end or 0) >= head))
        assert stream.idle_wal_end is not None
        stream.acknowledge(stream.idle_wal_end)
        receive_until(stream, lambda _: confirmed(db) >= head)
        db.execute("INSERT INTO t VALUES (1)")
        messages: list[bytes] = []
        while not messages:
            before = stream.idle_wal_end
            messages = stream.receive(1, 1000, 5)
        assert before is not None
        assert stream.idle_wal_end is None


def test_heartbeat_is_streamed(db: Database) -> None:
    """A heartbeat is a message outside any transaction, and moves the server's end past it."""
    prepare(db)
    with open_stream(db) as stream, db.connection.connect() as c:
        at = emit_heartbeat(c)
        assert at is not None
        messages = receive_until(stream, lambda m: "M" in kinds(m))
        assert kinds(messages) == "M"
        assert HEARTBEAT_PREFIX.encode() in messages[0]
        receive_until(stream, lambda _: stream.server_wal_end >= at)


def test_end_of_the_wal_is_past_every_commit_and_is_reached(versions: Database) -> None:
    """A commit that the server has not flushed yet is below the reported end, and the stream gets there."""
    prepare(versions)
    with open_stream(versions) as stream, versions.connect() as c:
        for n in range(3):
            c.execute("INSERT INTO t VALUES (%s)", [n])
            end = current_wal_lsn(c)
            messages = receive_until(stream, lambda m, end=end: stream.server_wal_end >= end)  # type: ignore[misc]
            assert kinds(messages).count("C") == 1
            assert commit_end(messages[-1]) <= end


def test_second_reader_is_told_who_reads(db: Database) -> None:
    """A slot in use is a transient error that names the PID of its reader."""
    prepare(db)
    with open_stream(db), db.connection.connect() as c:
        status = inspect_slot(c, "s")
        assert status is not None
        with pytest.raises(Transient) as raised:
            open_stream(db)
        assert raised.value.code == "slot_active"
        assert str(status.active_pid) in raised.value.message


def test_what_is_missing_is_named(db: Database) -> None:
    """A missing slot means lost changes. A missing publication needs an operator."""
    prepare(db)
    with pytest.raises(SlotLost) as raised:
        open_stream(db, slot="nowhere")
    assert raised.value.code == "slot_missing"
    with pytest.raises(NeedsOperator) as error:
        open_stream(db, publication="nowhere")
    assert error.value.code == "publication_missing"


def test_ended_walsender_is_transient(db: Database) -> None:
    """A stream that the server ended raises a Transient error, and closing it is no error."""
    prepare(db)
    stream = open_stream(db)
    db.query("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = 's'")
    with pytest.raises(Transient) as raised:
        receive_until(stream, lambda _: False)
    assert "HOST" not in raised.value.hint
    stream.close()


def test_lost_stream_names_the_address(db: Database) -> None:
    """The command of the hint can be copied, as that of a connection that was refused."""
    prepare(db)
    with open_stream(db) as stream:
        with socket.socket(fileno=os.dup(stream._pg.socket)) as line:
            line.shutdown(socket.SHUT_RDWR)
        with pytest.raises(Transient) as raised:
            receive_until(stream, lambda _: False)
    assert f"pg_isready -h 127.0.0.1 -p {db.server.port}" in raised.value.hint


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_server_stops_though_changes_are_not_acknowledged(own_server: EmbeddedPostgres, mode: str) -> None:
    """A server that shuts down does not wait for what Levada holds back, and the changes come again afterwards."""
    db = Database(own_server, "postgres")
    prepare(db)
    db.execute("INSERT INTO t VALUES (1)", "INSERT INTO t VALUES (2)")
    stream = open_stream(db)
    messages = receive_until(stream, lambda m: kinds(m).count("C") == 2)
    stream.acknowledge(commit_end(messages[3]))
    receive_until(stream, lambda _: confirmed(db) == commit_end(messages[3]))
    stopping = threading.Thread(target=own_server.stop, args=[mode])
    stopping.start()
    with pytest.raises(Transient):
        receive_until(stream, lambda _: False)
    stopping.join(LIMIT_S)
    assert not stopping.is_alive()
    stream.close()
    with pytest.raises(Transient) as raised:
        open_stream(db)
    assert raised.value.code == "source_unreachable"
    own_server.start()
    with open_stream(db) as again:
        receive_until(again, lambda m: bool(m) and m[-1][25:] == messages[-1][25:])


def test_short_wal_sender_timeout_is_met(start_postgres: StartPostgres) -> None:
    """The stream reports often enough for whatever time-out the server has."""
    settings = {"wal_sender_timeout": "600ms"}
    with start_postgres(settings=settings) as server:
        db = Database(server, "postgres")
        prepare(db)
        with ReplicationStream(db.connection, slot="s", publication="p") as stream:
            for _ in range(12):
                assert stream.receive(10, 1000, 0.2) == []
            db.execute("INSERT INTO t VALUES (1)")
            assert kinds(receive_until(stream, lambda m: "C" in kinds(m))) == "BRIC"
