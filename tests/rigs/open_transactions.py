"""Transactions that the server sends before their end: its settings for it, and clients that play random ones."""

from __future__ import annotations

import random
from typing import Any

import psycopg
from psycopg import sql
from tests.rigs.database import Database


def send_immediately(c: psycopg.Connection[Any]) -> None:
    """Let PostgreSQL 16 and newer send each change of this database before the end of its transaction."""
    if c.info.server_version >= 160_000:
        setting = sql.SQL("debug_logical_replication_streaming")
        c.execute(sql.SQL("ALTER DATABASE {} SET {} = 'immediate'").format(sql.Identifier(c.info.dbname), setting))


class Client:
    """A session that plays random statements on a table of its own, and inserts into one that all share."""

    def __init__(self, db: Database, number: int, seed: int) -> None:
        self._random = random.Random(f"{seed}/{number}")
        self._connection = psycopg.connect(db.uri, autocommit=True)
        self._own = sql.Identifier(f"own{number}")
        self._open = 0
        """The depth of savepoints, and of the transaction around them."""
        self._columns = 0

    def step(self) -> None:
        c = self._connection
        if not self._open:
            c.execute("BEGIN")
            self._open = 1
            return
        match self._random.choices(range(10), (30, 8, 6, 3, 12, 7, 6, 4, 6, 3))[0]:
            case 0:
                c.execute(sql.SQL("INSERT INTO {} (v) SELECT 'x' FROM generate_series(1, 5)").format(self._own))
            case 1:
                c.execute(sql.SQL("UPDATE {} SET v = v || 'y' WHERE id % 3 = 0").format(self._own))
            case 2:
                c.execute(sql.SQL("DELETE FROM {} WHERE id % 5 = 0").format(self._own))
            case 3:
                c.execute(sql.SQL("TRUNCATE {}").format(self._own))
            case 4:
                self._open += 1
                c.execute(f"SAVEPOINT s{self._open}")  # type: ignore[arg-type]  # a number
            case 5 if self._open > 1:
                c.execute(f"ROLLBACK TO SAVEPOINT s{self._open}")  # type: ignore[arg-type]  # a number
            case 6 if self._open > 1:
                c.execute(f"RELEASE SAVEPOINT s{self._open}")  # type: ignore[arg-type]  # a number
                self._open -= 1
            case 7:
                self._columns += 1
                added = sql.Identifier(f"c{self._columns}")
                c.execute(sql.SQL("ALTER TABLE {} ADD COLUMN {} int").format(self._own, added))
            case 8:
                c.execute("INSERT INTO shared DEFAULT VALUES")
            case _:
                self.end(self._random.choice(["COMMIT", "COMMIT", "ROLLBACK"]))

    def end(self, how: str = "COMMIT") -> None:
        if self._open:
            self._connection.execute(how)  # type: ignore[arg-type]  # one of two words
        self._open = 0

    def close(self) -> None:
        self._connection.close()
