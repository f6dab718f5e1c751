"""The sizes and the rates of tables that are locked, were never analysed, or have large values."""

from __future__ import annotations

import pytest
from tests.rigs.database import Database

from levada.postgres.estimates import estimate_tables
from levada.postgres.rates import ReadLimits, read_rate
from levada.values import QualifiedTable

NOTES, WIDE = QualifiedTable("public", "notes"), QualifiedTable("public", "wide")


@pytest.fixture
def tables(db: Database) -> Database:
    """A database with a table of many rows, and one whose values are in TOAST."""
    db.execute(
        "CREATE TABLE notes (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = off)",
        "INSERT INTO notes SELECT i, repeat(md5(i::text), 20) FROM generate_series(1, 60000) i",
        "CREATE TABLE wide (id int PRIMARY KEY, v text) WITH (autovacuum_enabled = off)",
        "ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
        "INSERT INTO wide SELECT i, repeat(md5(i::text), 3000) FROM generate_series(1, 500) i",
    )
    return db


def test_a_locked_table_has_the_size_of_its_last_vacuum(tables: Database) -> None:
    """The estimate does not wait for the lock, and is marked. Before, a table that was never analysed has one too."""
    with tables.connection.connect() as connection, tables.connect() as other:
        known = estimate_tables(connection, [NOTES, WIDE])
        assert all(estimate.current and estimate.rows for estimate in known.values())
        assert known[WIDE].bytes > 48_000_000
        other.execute("VACUUM ANALYZE notes")
        other.execute("BEGIN")
        other.execute("LOCK TABLE notes IN ACCESS EXCLUSIVE MODE")
        stale = estimate_tables(connection, [NOTES, WIDE])
        assert not any(estimate.current for estimate in stale.values())
        assert stale[NOTES].rows == 60_000
        assert stale[WIDE].rows is None
        assert 0.9 < stale[NOTES].bytes / known[NOTES].bytes < 1.1
        assert read_rate(connection, NOTES) is None


def test_a_sample_is_bounded_by_its_bytes(tables: Database) -> None:
    """Tables that were never analysed are measured. Few blocks of large values are read, for a limited time."""
    few, all_of_it = ReadLimits(bytes=1 << 20, least_s=0.0), ReadLimits(bytes=1 << 40, most_s=0.001, least_s=0.0)
    tables.execute("UPDATE wide SET id = id + 1000 WHERE id > 250")
    with tables.connection.connect() as connection:
        assert read_rate(connection, NOTES, few) is not None
        assert read_rate(connection, WIDE, few) is not None
        assert read_rate(connection, WIDE, all_of_it) is None
        assert connection.execute("SELECT 1").fetchone() == (1,)
