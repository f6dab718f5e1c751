"""A server whose messages are in another language, which only a superuser can change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import LiteralString

import psycopg
import pytest
from tests.rigs.database import Database, StartPostgres, connection_to
from tests.rigs.waiting import until
from tests.servers.postgres import DEBIAN

from levada.errors import LevadaError
from levada.local.postgres import EmbeddedPostgres
from levada.postgres.failures import source_errors
from levada.postgres.replication import execute_replication
from levada.postgres.silence import Silence

STATEMENTS: dict[str, LiteralString] = {
    "slot_missing": "SELECT pg_drop_replication_slot('none')",
    "slot_exists": "SELECT pg_create_logical_replication_slot('s', 'pgoutput')",
    "publication_missing": (
        "SELECT pg_logical_slot_peek_binary_changes('s', NULL, NULL, 'proto_version', '1', 'publication_names', 'none')"
    ),
    "snapshot_gone": "BEGIN ISOLATION LEVEL REPEATABLE READ; SET TRANSACTION SNAPSHOT '00000003-00000002-1'",
    "row_security": "SET ROLE plain; SET row_security = off; TABLE public.t",
    "replication_privilege_missing": "SET ROLE plain; SELECT pg_create_logical_replication_slot('n', 'pgoutput')",
}


@pytest.fixture(scope="module", params=["de", "fr"])
def foreign(request: pytest.FixtureRequest, start_postgres: StartPostgres) -> Iterator[EmbeddedPostgres]:
    """Debian's server, whose package has translations. One that does not use them here is skipped."""
    programs = DEBIAN / "15" / "bin"
    if not programs.exists():
        pytest.skip("PostgreSQL 15 is missing: apt-get install postgresql-15")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANGUAGE", request.param)
        with start_postgres(programs=programs, settings={"lc_messages": "C.utf8"}) as server:
            db = Database(server, "postgres")
            with pytest.raises(psycopg.Error) as error:
                db.query("SELECT 1/0")
            if error.value.diag.message_primary == "division by zero":
                pytest.skip("this system has no translations for the locale C.utf8")
            db.execute("CREATE TABLE t (id int)", "ALTER TABLE t ENABLE ROW LEVEL SECURITY", "CREATE ROLE plain")
            db.execute("GRANT SELECT ON t TO plain", "INSERT INTO t VALUES (1)", "CREATE ROLE closed")
            db.query("SELECT pg_create_logical_replication_slot('s', 'pgoutput')")
            # Decoding reads what is on the disk.
            db.execute("INSERT INTO t VALUES (2)", "CHECKPOINT")
            yield server
            db.close()


@pytest.mark.parametrize("code", STATEMENTS)
def test_a_failed_statement_has_the_code_of_the_english_message(foreign: EmbeddedPostgres, code: str) -> None:
    """Also over a walsender's connection, for each that is one statement."""
    connection, db = connection_to(foreign), Database(foreign, "postgres")

    def by_sql() -> None:
        with source_errors("trying"), connection.connect() as session:
            session.execute(STATEMENTS[code])

    def by_walsender() -> None:
        session = connection.connect_replication()
        try:
            execute_replication(session, STATEMENTS[code], "trying", Silence(60))
        finally:
            session.finish()

    ways: list[Callable[[], None]] = [by_sql, by_walsender]
    for way in ways[:1] if ";" in STATEMENTS[code] else ways:
        # The session before may still hold it.
        until(lambda: db.query("SELECT FROM pg_replication_slots WHERE active") == [])
        with pytest.raises(LevadaError) as error:
            way()
        assert error.value.code == code, error.value.message
    db.close()


def test_a_refused_login_is_no_unreachable_server(foreign: EmbeddedPostgres) -> None:
    """The message is the server's, and no hint doubts the address."""
    for user in ("closed", "nobody"):
        with pytest.raises(LevadaError) as error:
            replace(connection_to(foreign), user=user).connect()
        assert error.value.code == "source_access_denied", error.value.message
        assert "the source" in error.value.hint
        assert error.value.passes
