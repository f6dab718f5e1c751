"""The session at the source that a process keeps for its next range."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import LIMIT_S, until

from levada.copy.reader_sessions import ReaderSessions


@pytest.fixture
def sessions() -> Iterator[ReaderSessions]:
    """Those of a process that keeps the last one."""
    kept = ReaderSessions()
    kept.keep(LIMIT_S)
    yield kept
    kept.close()


def pid(sessions: ReaderSessions, db: Database, application: str = "copy") -> int:
    """Return the session's PID."""
    with sessions.session(db.connection, application) as connection:
        return connection.info.backend_pid


def test_the_next_range_is_read_in_the_same_session(sessions: ReaderSessions, db: Database) -> None:
    """One of another server or application gets a session of its own, in place of the last."""
    first = pid(sessions, db)
    assert pid(sessions, db) == first
    assert pid(sessions, db, "verify") != first


def test_a_session_that_cannot_be_used_is_closed(sessions: ReaderSessions, db: Database) -> None:
    """That holds after an error, in an open transaction, and if the server has ended it."""
    with pytest.raises(ValueError, match="task"), sessions.session(db.connection, "copy") as failed:
        raise ValueError("of the task")
    with sessions.session(db.connection, "copy") as open_one:
        open_one.execute("BEGIN")
    assert failed.closed
    assert open_one.closed
    ended = pid(sessions, db)
    db.execute(f"SELECT pg_terminate_backend({ended}, 10000)")  # type: ignore[arg-type]  # a number of the test
    assert pid(sessions, db) != ended


def test_the_session_is_closed_after_a_while(db: Database) -> None:
    """A process without tasks soon holds no connection."""
    sessions = ReaderSessions()
    sessions.keep(0.01)
    with sessions.session(db.connection, "copy") as connection:
        pass
    until(lambda: connection.closed)


def test_a_process_keeps_none_before_its_first_task(db: Database) -> None:
    """One that only sends work to others holds no connection."""
    with ReaderSessions().session(db.connection, "copy") as connection:
        connection.execute("SELECT")
    assert connection.closed
