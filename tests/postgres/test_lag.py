"""The end of the server's WAL."""

from __future__ import annotations

from tests.conftest import Database

from levada.local.postgres import temporary_postgres
from levada.postgres.lag import current_wal_lsn
from levada.values import Lsn


def test_the_end_of_the_wal_is_above_every_commit() -> None:
    """Also above an asynchronous commit that the server would flush only in ten seconds, and it is flushed then."""
    settings = {"wal_writer_delay": "10s", "wal_writer_flush_after": "100MB", "synchronous_commit": "off"}
    with temporary_postgres(settings=settings) as server:
        db = Database(server, "postgres")
        db.execute("CREATE TABLE t (id int)")
        with db.connection.connect() as connection:
            for _ in range(3):
                db.execute("INSERT INTO t VALUES (1)")
                [(committed,)] = db.query("SELECT pg_current_wal_insert_lsn()::text")
                end = current_wal_lsn(connection)
                [(flushed,)] = db.query("SELECT pg_current_wal_flush_lsn()::text")
                # At the end of a page the insert position is already past the next page's header.
                assert Lsn.parse(committed) - 40 <= end <= Lsn.parse(flushed)
