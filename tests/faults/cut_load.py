"""Money that moves between two tables while cuts are made."""

from __future__ import annotations

import json
import random
from typing import Any

from pyiceberg.table import StaticTable
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.writers import Writers

TOTAL = 20_000


MONEY = {"savings": "balance", "checking": "balance", "entries": "amount", "unused": "balance", "idle": "balance"}
"""The tables that have money, each with its column."""


TABLES = (
    "CREATE TABLE savings (id int PRIMARY KEY, balance bigint, note text)",
    "CREATE TABLE checking (id int PRIMARY KEY, balance bigint)",
    "CREATE TABLE entries (amount bigint, note text)",
    "ALTER TABLE entries REPLICA IDENTITY FULL",
    "CREATE TABLE unused (id int PRIMARY KEY, balance bigint)",
    "CREATE TABLE idle (id int PRIMARY KEY, balance bigint)",
    "INSERT INTO savings SELECT i, 100, repeat('x', 200) FROM generate_series(1, 100) i",
    "INSERT INTO checking SELECT i, 90 FROM generate_series(1, 100) i",
    "INSERT INTO idle VALUES (1, 1000)",
)


class Load(Writers):
    """Transactions that move money, from several connections. Some are open for seconds, and some are large."""

    def __init__(self, db: Database) -> None:
        super().__init__(db, threads=3)
        self._chances = [random.Random(seed) for seed in range(3)]

    def write(self, connection: Any, seed: int) -> None:
        with connection.transaction():
            self._move(connection, self._chances[seed], seed)
        self.stopped.wait(0.01)

    def _move(self, c: Any, chance: random.Random, seed: int) -> None:
        # Each thread has accounts of its own, so that open transactions lock no other's rows.
        one, two = chance.randrange(seed + 1, 100, 3), chance.randrange(seed + 1, 100, 3)
        amount = chance.randrange(1, 50)
        match chance.randrange(100):
            case n if n < 70:
                c.execute(f"UPDATE savings SET balance = balance - {amount} WHERE id = {one}")
                c.execute(f"UPDATE checking SET balance = balance + {amount} WHERE id = {two}")
            case n if n < 90:
                c.execute(f"UPDATE checking SET balance = balance - {amount} WHERE id = {one}")
                c.execute(f"INSERT INTO entries VALUES ({amount}, 'paid')")
            case n if n < 95:
                c.execute(f"UPDATE savings SET balance = balance - {amount} WHERE id = {one}")
                self.stopped.wait(chance.uniform(1, 6))
                c.execute(f"UPDATE checking SET balance = balance + {amount} WHERE id = {two}")
            case n if n < 98:
                c.execute(f"UPDATE savings SET balance = balance - 1 WHERE (id - 1) % 3 = {seed}")
                moved = f"(SELECT count(*) FROM savings WHERE (id - 1) % 3 = {seed})"
                c.execute(f"UPDATE checking SET balance = balance + {moved} WHERE id = {one}")
            case _:
                c.execute(f"DELETE FROM checking WHERE id = {1000 + seed}")
                c.execute(f"INSERT INTO checking VALUES ({1000 + seed}, {amount})")
                c.execute(f"UPDATE savings SET balance = balance - {amount} WHERE id = {one}")
                c.execute(f"UPDATE savings SET balance = balance + {amount} WHERE id = {two}")
                c.execute(f"DELETE FROM checking WHERE id = {1000 + seed}")


def lake_table(engine: Engine, table: str) -> StaticTable:
    """Return a table as PyIceberg sees it."""
    folder = engine.warehouse / "shop_public" / table / "metadata"
    version = (folder / "version-hint.text").read_text()
    return StaticTable.from_metadata(str(folder / f"v{version}.metadata.json"))


def listed(engine: Engine) -> dict[str, dict[str, Any]]:
    """Return what `levada cuts` lists, by name."""
    document = json.loads(engine.levada("cuts", *engine.options(), "-o", "json").stdout)
    return {cut["name"]: cut for cut in document["cuts"]}
