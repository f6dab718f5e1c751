"""Sessions of the catalog that a running pipeline keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.rigs.database import Database

from levada.postgres.connection import PostgresConnection
from levada.postgres.kept_sessions import KeptSessions
from levada.postgres.lag import sample_lag
from levada.postgres.slots import create_slot, drop_slot

CHANGED = "SELECT name, setting FROM pg_settings WHERE source = 'session' ORDER BY 1"
OPEN = "SELECT count(*)::int FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


def pid(sessions: KeptSessions, server: PostgresConnection) -> int:
    """Read by a session, and return its PID."""
    with sessions.session(server, "start") as connection:
        return connection.info.backend_pid


def test_the_next_reader_gets_the_same_session(db: Database) -> None:
    """Two at once get one each. The server shows what a session is used for."""
    sessions = KeptSessions()
    with sessions.keeping(db.connection):
        first = pid(sessions, db.connection)
        with sessions.session(db.connection, "lag") as one, sessions.session(db.connection, "watch") as other:
            assert first == one.info.backend_pid != other.info.backend_pid
            names = {of.execute("SHOW application_name").fetchone() for of in (one, other)}
            assert names == {("levada:lag",), ("levada:watch",)}


def test_sessions_are_closed_with_their_last_keeper(db: Database) -> None:
    """A command that reads once keeps none, and neither does a pipeline that has ended."""
    sessions = KeptSessions()
    with sessions.session(db.connection, "check") as single:
        assert not single.closed
    assert single.closed
    with sessions.keeping(db.connection):
        with sessions.keeping(db.connection), sessions.session(db.connection, "start") as shared:
            pass
        with sessions.session(db.connection, "start") as later:
            sessions.forget(db.connection)
        assert shared.closed
        assert later.closed
        sessions.keep(db.connection)
    assert db.query(OPEN) == [(0,)]


def test_each_server_has_its_own(db: Database) -> None:
    """A store may be another database, and a login another role."""
    sessions = KeptSessions()
    elsewhere = replace(db.connection, database="postgres")
    with sessions.keeping(db.connection), sessions.keeping(elsewhere):
        assert pid(sessions, db.connection) != pid(sessions, elsewhere)


def test_a_session_that_the_server_ended_is_not_used_again(db: Database) -> None:
    """A restart or a failover ends idle sessions without a word to their client."""
    sessions = KeptSessions()
    with sessions.keeping(db.connection):
        first = pid(sessions, db.connection)
        db.execute(f"SELECT pg_terminate_backend({first}, 10000)")  # type: ignore[arg-type]  # a number of the test
        assert pid(sessions, db.connection) != first


def test_an_error_closes_every_idle_session(db: Database) -> None:
    """It may be that of a setting or of a server that only a new session does not have."""
    sessions = KeptSessions()
    with sessions.keeping(db.connection):
        with sessions.session(db.connection, "start") as idle, sessions.session(db.connection, "lag"):
            pass
        with pytest.raises(ValueError, match="reader"), sessions.session(db.connection, "watch") as failed:
            raise ValueError("of the reader")
        assert idle.closed
        assert failed.closed
        with sessions.session(db.connection, "start") as open_one:
            open_one.execute("BEGIN")
        assert open_one.closed


def test_a_session_has_further_readers_for_a_limited_time(db: Database) -> None:
    """After a failover, the session of an address may be one of the former server."""
    for sessions in (KeptSessions(oldest_s=0.0), KeptSessions(idle_s=0.0)):
        with sessions.keeping(db.connection), sessions.session(db.connection, "start") as first:
            pass
        assert first.closed


def test_readers_leave_no_setting_behind(db: Database) -> None:
    """The next reader would have the limits of another one."""
    db.execute("CREATE PUBLICATION p FOR ALL TABLES")
    sessions = KeptSessions()
    with sessions.keeping(db.connection):
        with sessions.session(db.connection, "start") as connection:
            before = connection.execute(CHANGED).fetchall()
            create_slot(connection, "kept")
            assert connection.execute(CHANGED).fetchall() == before
            drop_slot(connection, "kept")
        assert sample_lag(db.connection, "kept") is None
