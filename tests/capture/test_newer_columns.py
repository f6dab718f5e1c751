"""The columns that may have been changed after a transaction, read from a real catalog."""

from __future__ import annotations

import psycopg
from tests.rigs.database import Database

from levada.postgres.catalog import read_newer_columns
from levada.values import TableId


def _number(connection: psycopg.Connection[tuple[int]]) -> int:
    """Return the number of the session's transaction."""
    [(xid,)] = connection.execute("SELECT pg_current_xact_id()::text::bigint").fetchall()
    return xid


def test_a_transaction_with_a_lower_number_may_be_the_later_one(db: Database) -> None:
    """Columns that it changes count as newer than those of rows from before it, and others do not."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v int)")
    db.query("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", db.name)
    [(table,)] = db.query("SELECT 't'::regclass::oid::int")
    try:
        with db.connect() as early, db.connect() as rows:
            early.execute("BEGIN")
            lower = _number(early)
            rows.execute("BEGIN")
            rows.execute("INSERT INTO t VALUES (1, 1)")
            xid = _number(rows)
            rows.execute("COMMIT")
            early.execute("ALTER TABLE t ADD COLUMN z int")
            early.execute("COMMIT")
            assert lower < xid
            assert read_newer_columns(rows, TableId(table), xid, db.name) == {3}
    finally:
        db.query("SELECT pg_drop_replication_slot(%s)", db.name)
