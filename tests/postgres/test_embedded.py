"""The embedded server is what the rest of the tests believe it is."""

from __future__ import annotations

from tests.rigs.database import Database


def test_server_has_logical_wal(db: Database) -> None:
    """The embedded server writes WAL that logical decoding can read, and the test is alone in its database."""
    assert db.query("SHOW wal_level") == [("logical",)]
    assert db.query("SELECT current_database()") == [(db.name,)]
