"""A table with columns that describe the last change of each row, while the engine is killed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.rigs.database import Database
from tests.rigs.engine import Engine

pytestmark = pytest.mark.nightly


def test_the_values_survive_kills(engine: Engine, db: Database) -> None:
    """After each kill -9, every row has the transaction, the operation and the LSN of its last change."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY, xid bigint, op text, low pg_lsn)")
    db.execute("INSERT INTO t SELECT i, 0, 'R', '0/0' FROM generate_series(1, 300) i")
    place: dict[str, Any] = {"host": "127.0.0.1", "port": db.server.port, "database": db.name}
    place |= {"schema": "replica", "tls": {"mode": "Disable"}, "credentialsSecretRef": {"name": "pg"}}
    tables = {"include": [{"schema": "public", "name": "t"}], "metadata": ["Lsn", "Operation", "TransactionId"]}
    engine.spec = {"destination": {"postgres": place}, "tables": tables, "freshnessSeconds": 1}
    engine.write_manifest()
    stamp = "pg_current_xact_id()::text::bigint, '{}', pg_current_wal_insert_lsn()"
    for turn in range(3):
        engine.start()
        engine.wait_for(lambda p: p["tables"] and p["tables"][0]["phase"] == "Ready")
        for number in range(60):
            first = (turn * 60 + number) % 290
            db.execute(
                f"BEGIN; DELETE FROM t WHERE id = {first + 1};"
                f" UPDATE t SET (xid, op, low) = ({stamp.format('U')}) WHERE id % 7 = {number % 7};"
                f" INSERT INTO t VALUES ({1000 + turn * 60 + number}, {stamp.format('I')}); END"
            )
        if turn < 2:
            engine.kill()
    engine.wait_caught_up()
    wrong = db.query(
        "SELECT id, t.*, r.* FROM t FULL JOIN replica.t r USING (id) WHERE (r._levada_operation <> 'R'"
        " AND (t.xid, t.op) IS DISTINCT FROM (r._levada_transaction_id, r._levada_operation))"
        " OR (t.xid, t.op, t.low) IS DISTINCT FROM (r.xid, r.op, r.low) OR (r._levada_operation = 'R' AND t.xid > 0)"
        " OR (r._levada_operation <> 'R' AND '0/0'::pg_lsn + r._levada_lsn < t.low)"
    )
    assert wrong == []
    engine.kill()
