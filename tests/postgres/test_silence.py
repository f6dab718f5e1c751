"""Connections that go silent without an end, behind a proxy that stops forwarding."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import psycopg
import pytest
from tests.postgres.streams import kinds, prepare, receive_until
from tests.rigs.database import Database, StartPostgres
from tests.rigs.waiting import until
from tests.servers.stalling_proxy import StallingProxy, stalling_proxy

from levada.errors import Transient
from levada.postgres.connection import PostgresConnection
from levada.postgres.copy_out import copy_out
from levada.postgres.slots import create_slot, export_snapshot
from levada.postgres.stream import ReplicationStream

SILENCE_S = 2.0


@pytest.fixture
def proxy(db: Database) -> Iterator[StallingProxy]:
    """A proxy to the test's server."""
    with stalling_proxy(db.server.port) as p:
        yield p


def through(db: Database, proxy: StallingProxy) -> PostgresConnection:
    """A connection to the database through the proxy, with a short limit."""
    return replace(db.connection, port=proxy.port, silence_s=SILENCE_S, connect_timeout_s=2)


def open_stream(connection: PostgresConnection) -> ReplicationStream:
    """The stream of the slot."""
    return ReplicationStream(connection, slot="s", publication="p")


def receive_for_ever(stream: ReplicationStream) -> None:
    """Receive until it fails."""
    receive_until(stream, lambda _: False)


@pytest.mark.parametrize("new", [True, False], ids=["network", "connection"])
def test_silent_stream_ends_and_is_opened_again(db: Database, proxy: StallingProxy, new: bool) -> None:
    """A stream behind a stalled network, or alone stalled, is a Transient, and the next one has every change."""
    prepare(db)
    stream = open_stream(through(db, proxy))
    db.execute("INSERT INTO t VALUES (1)")
    receive_until(stream, lambda m: "C" in kinds(m))
    proxy.stall(new=new)
    db.execute("INSERT INTO t VALUES (2)")
    assert stream.answers
    with pytest.raises(Transient) as raised:
        receive_for_ever(stream)
    assert raised.value.code == "source_silent"
    assert not stream.answers
    stream.close()
    proxy.close()
    with stalling_proxy(db.server.port) as healed:
        again = reopened(through(db, healed))
        assert kinds(receive_until(again, lambda m: kinds(m).count("C") == 2)) == "BRICBIC"
        again.close()


def reopened(connection: PostgresConnection) -> ReplicationStream:
    """The next stream, once the server has noticed the end of the last one."""
    while True:
        try:
            return open_stream(connection)
        except Transient as error:
            if error.code != "slot_active":
                raise


def test_idle_stream_is_no_silent_one(db: Database, proxy: StallingProxy) -> None:
    """A server that has nothing to send answers, and the stream stays open for longer than the limit."""
    prepare(db)
    with open_stream(through(db, proxy)) as stream:
        for _ in range(30):
            assert stream.receive(10, 1000, SILENCE_S / 10) == []
        db.execute("INSERT INTO t VALUES (1)")
        assert kinds(receive_until(stream, lambda m: "C" in kinds(m))) == "BRIC"


def test_busy_reader_is_no_silent_server(db: Database) -> None:
    """A reader that is away for longer than the limit finds its stream open, though the server had nothing to say."""
    prepare(db)
    with open_stream(replace(db.connection, silence_s=SILENCE_S)) as stream:
        stream.receive(10, 1000, 0.1)
        db.query("SELECT pg_sleep(%s)", 2.5 * SILENCE_S)
        assert stream.receive(10, 1000, 0.1) == []
        db.execute("INSERT INTO t VALUES (1)")
        assert kinds(receive_until(stream, lambda m: "C" in kinds(m))) == "BRIC"


def test_busy_reader_is_not_dropped_by_a_server_with_a_short_limit(start_postgres: StartPostgres) -> None:
    """The session has a limit of its own, whatever the server's, the role's or the database's is, now or later."""
    with start_postgres(settings={"wal_sender_timeout": "1s"}) as server:
        db = Database(server, "postgres")
        prepare(db)
        with open_stream(db.connection) as stream:
            db.execute("ALTER SYSTEM SET wal_sender_timeout = '900ms'", "SELECT pg_reload_conf()")
            db.query("SELECT pg_sleep(4)")
            db.execute("INSERT INTO t VALUES (1)")
            assert kinds(receive_until(stream, lambda m: "C" in kinds(m))) == "BRIC"


@pytest.mark.nightly
def test_decoding_without_output_is_no_silence(db: Database) -> None:
    """A transaction of unpublished changes that takes the server longer than the limit does not end the stream."""
    prepare(db)
    db.execute("CREATE TABLE unpublished (id int)")
    with open_stream(replace(db.connection, silence_s=0.5)) as stream:
        db.execute("INSERT INTO unpublished SELECT generate_series(1, 1500000)", "INSERT INTO t VALUES (1)")
        # Version 14 also sends the empty transaction, as BC.
        assert "BRIC" in kinds(receive_until(stream, lambda m: "IC" in kinds(m)))


def test_silent_statement_ends(db: Database, proxy: StallingProxy) -> None:
    """A statement whose answer does not arrive is a Transient, whether the network is gone or only its connection."""
    for new in (True, False):
        proxy.resume()
        with through(db, proxy).connect() as c:
            c.execute("SELECT 1")
            proxy.stall(new=new)
            with pytest.raises(psycopg.OperationalError, match="nothing received for 2 s"):
                c.execute("SELECT 2")
            assert c.closed


def test_statement_that_takes_long_goes_on(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A server at work may be silent for as long as its work takes."""
    caplog.set_level("INFO", "levada")
    connection = replace(db.connection, silence_s=0.3)
    with connection.connect() as c, db.connect() as other:
        c.execute("SELECT count(*) FROM generate_series(1, 10000000)")
        other.execute("SELECT pg_advisory_lock(1)")
        caplog.clear()
        with after_silence(caplog, lambda: other.execute("SELECT pg_advisory_unlock(1)")):
            assert c.execute("SELECT pg_advisory_lock(1) IS NOT NULL").fetchone() == (True,)


def test_silent_copy_ends(db: Database, proxy: StallingProxy) -> None:
    """A COPY of which nothing more arrives is a Transient."""
    connection = through(db, proxy).connect()
    slices = copy_out(
        connection, b"COPY (SELECT repeat('x', 10000) FROM generate_series(1, 20000)) TO STDOUT", "copying"
    )
    assert next(slices)
    proxy.stall(new=False)
    with pytest.raises(Transient) as raised:
        for _ in slices:
            pass
    assert raised.value.code == "source_silent"
    connection.close()


@pytest.mark.parametrize("replication", [False, True])
def test_silent_login_ends(db: Database, proxy: StallingProxy, replication: bool) -> None:
    """A server that takes a connection and never answers is a Transient."""
    proxy.stall()
    connection = through(db, proxy)
    login = connection.connect_replication if replication else connection.connect
    with pytest.raises(Transient) as raised:
        login()
    assert raised.value.code == "source_unreachable"


def test_slot_waits_for_running_transactions(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """A slot that waits for a transaction longer than every limit is made when that ends, and the log says why."""
    caplog.set_level("INFO", "levada")
    connection = replace(db.connection, silence_s=0.5)
    db.execute(f"ALTER DATABASE {db.name} SET lock_timeout = '100ms'")
    for make in (slot_by_sql, slot_by_protocol):
        caplog.clear()
        with db.connect() as other:
            other.execute("BEGIN")
            other.execute("CREATE TABLE open_transaction ()")
            with after_silence(caplog, other.rollback):
                make(connection)


@contextmanager
def after_silence(caplog: pytest.LogCaptureFixture, work: Callable[[], object]) -> Iterator[None]:
    """Do the work while the block runs, once the log says that the server was silent for the limit and is at work."""

    def run() -> None:
        until(lambda: caplog.text, lambda text: "waits for running transactions" in text)
        done.append(work())

    done: list[object] = []
    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    assert done


def slot_by_sql(connection: PostgresConnection) -> None:
    """Make a slot as the engine does."""
    with connection.connect() as c:
        create_slot(c, "waits")


def slot_by_protocol(connection: PostgresConnection) -> None:
    """Make a temporary slot as a copy does."""
    with export_snapshot(connection, "waits_too"):
        pass
