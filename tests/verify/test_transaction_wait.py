"""The line that a verification prints while transactions are open at the source."""

from __future__ import annotations

from tests.rigs.database import Database

from levada.runtime.verifications.transaction_wait import TransactionWait
from levada.values import QualifiedTable


def test_the_oldest_open_transaction_is_named(db: Database) -> None:
    """The line has the statement that ends it. A transaction that has only read is not waited for."""
    db.execute("CREATE TABLE t (id int)")
    told: list[str] = []

    def look() -> None:
        wait = TransactionWait(
            db.connection, QualifiedTable("public", "t"), lambda: None, told=told.append, look_at=0.0
        )
        wait.interrupt()

    with db.connect() as opened, opened.transaction():
        opened.execute("SELECT FROM t")
        look()
        assert told == []
        opened.execute("INSERT INTO t VALUES (1)")
        look()
        [line] = told
        assert line.startswith(
            f"waiting for PID {opened.info.backend_pid} of role postgres in database {db.name}, open"
        )
        assert line.endswith(f"(end it, or wait for it: SELECT pg_terminate_backend({opened.info.backend_pid}))")
