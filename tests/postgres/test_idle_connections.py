"""Sessions that are kept for the next reader of the catalog."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database

from levada.postgres.idle_connections import IdleReaders


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
