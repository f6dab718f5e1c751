"""Sessions that are kept for the next reader of the catalog."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database

from levada.copy.range_reader import snapshot_session
from levada.errors import Transient
from levada.postgres.idle_connections import IdleConnections, IdleReaders, IdleWalsenders
from levada.postgres.server import read_clock
from levada.postgres.slots import export_snapshot

SLOTS = "FROM pg_replication_slots WHERE temporary AND database = current_database()"


def pid(readers: IdleReaders) -> int:
    """Read by a session, and return its PID."""
    with readers.session() as connection:
        return connection.info.backend_pid


def test_the_next_reader_gets_the_same_session(db: Database) -> None:
    """Two at once get one each."""
    with IdleReaders(db.connection, "copy-guard") as readers:
        first = pid(readers)
        assert pid(readers) == first
        with readers.session() as one, readers.session() as other:
            assert one.info.backend_pid != other.info.backend_pid


def test_a_session_that_the_server_ended_is_not_used_again(db: Database) -> None:
    """A restart or a failover ends idle sessions without a word to their client."""
    with IdleReaders(db.connection, "copy-guard") as readers:
        first = pid(readers)
        db.execute(f"SELECT pg_terminate_backend({first}, 10000)")  # type: ignore[arg-type]  # a number of the test
        assert pid(readers) != first


def test_a_server_that_stops_during_a_block_is_a_transient_error(db: Database) -> None:
    """Whichever query it interrupts. A table that is copied is tried again then."""

    def read(readers: IdleReaders) -> None:
        with readers.session() as connection:
            ended = f"SELECT pg_terminate_backend({connection.info.backend_pid}, 10000)"
            db.execute(ended)  # type: ignore[arg-type]  # a number of the test
            read_clock(connection)

    with IdleReaders(db.connection, "copy-guard") as readers, pytest.raises(Transient) as stopped:
        read(readers)
    assert stopped.value.code in {"source_stopping", "source_unreachable"}


def test_a_session_with_an_error_or_an_open_transaction_is_closed(db: Database) -> None:
    """Otherwise the next reader would see an older state of the catalog, or the same wrong server."""
    with IdleReaders(db.connection, "copy-guard") as readers:
        with pytest.raises(ValueError, match="reader"), readers.session() as failed:
            raise ValueError("of the reader")
        with readers.session() as open_one:
            open_one.execute("BEGIN")
        assert failed.closed
        assert open_one.closed


def test_idle_sessions_are_closed_after_the_last_reader(db: Database) -> None:
    """An engine without copies holds none."""
    readers = IdleReaders(db.connection, "copy-guard")
    with readers.session() as connection:
        readers.close()
        connection.execute("SELECT")
    assert not connection.closed
    readers.close()
    assert connection.closed


def test_a_walsender_exports_one_snapshot_after_another(db: Database) -> None:
    """Each snapshot has the rows of its time, and no slot is left."""
    walsenders = IdleWalsenders(db.connection)
    db.execute("CREATE TABLE t (id int)")
    lsns, pids = [], []
    for rows in range(3):
        with export_snapshot(db.connection, f"levada_x_{rows}", idle=walsenders) as snapshot:
            [(pid_of,)] = db.query(f"SELECT active_pid {SLOTS}")
            db.execute("INSERT INTO t VALUES (1)")
            with snapshot_session(db.connection, snapshot, "copy") as reader:
                assert reader.execute("SELECT count(*) FROM public.t").fetchall() == [(rows,)]
            lsns.append(snapshot.lsn)
            pids.append(pid_of)
    assert len(set(pids)) == 1
    assert lsns == sorted(set(lsns))
    assert db.query(f"SELECT slot_name {SLOTS}") == []
    walsenders.close()


def test_a_walsender_that_has_ended_is_not_used_again(db: Database) -> None:
    """That holds for one that the server ended, and for one whose copy failed."""
    walsenders = IdleWalsenders(db.connection)
    with export_snapshot(db.connection, "levada_x_1", idle=walsenders):
        pass
    first = walsenders.take("again")
    walsenders.put_back(first)
    db.execute(f"SELECT pg_terminate_backend({first.backend_pid}, 10000)")  # type: ignore[arg-type]  # a number of the test
    with export_snapshot(db.connection, "levada_x_2", idle=walsenders):
        pass
    with pytest.raises(ValueError, match="copy"), export_snapshot(db.connection, "levada_x_3", idle=walsenders):
        raise ValueError("of the copy")
    with export_snapshot(db.connection, "levada_x_4", idle=walsenders):
        assert db.query(f"SELECT slot_name {SLOTS}") == [("levada_x_4",)]
    walsenders.close()


def test_connections_of_a_burst_are_closed(db: Database) -> None:
    """Those that no call has used for some time go as soon as a call ends, and the one that is used stays."""
    kept = IdleConnections(db.connection, "destination", kept_s=0.0)
    first, second = kept.take(), kept.take()
    kept.put_back(first)
    assert first.closed
    longer = IdleConnections(db.connection, "destination")
    longer.put_back(second)
    assert longer.take() is second
    longer.put_back(second)
    longer.close()
    assert second.closed
