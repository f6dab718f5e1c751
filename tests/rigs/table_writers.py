"""Sessions that write to a table while a test runs."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psycopg
from tests.rigs.database import Database

Change = Callable[[psycopg.Connection, random.Random], None]


def insert_some(connection: psycopg.Connection, rng: random.Random) -> None:
    """Insert up to 50 rows."""
    connection.execute("INSERT INTO t (item) SELECT 'new ' || g FROM generate_series(1, %s) g", [rng.randint(1, 50)])


def update_some(connection: psycopg.Connection, rng: random.Random) -> None:
    """Update one row of 17."""
    connection.execute("UPDATE t SET item = item || 'x', v = v + 1 WHERE id %% 17 = %s", [rng.randint(0, 16)])


def delete_some(connection: psycopg.Connection, rng: random.Random) -> None:
    """Delete one row of 41."""
    connection.execute("DELETE FROM t WHERE id %% 41 = %s", [rng.randint(0, 40)])


def long_transaction(connection: psycopg.Connection, rng: random.Random) -> None:
    """Change rows several times in one transaction, which half of the time is rolled back."""
    with contextlib.suppress(InterruptedError), connection.transaction():
        for _ in range(3):
            update_some(connection, rng)
            connection.execute("SELECT pg_sleep(0.2)")
        if rng.random() < 0.5:
            raise InterruptedError


def truncate(connection: psycopg.Connection, rng: random.Random) -> None:
    """Empty the table and fill it again in one transaction."""
    with connection.transaction():
        connection.execute("TRUNCATE t")
        connection.execute("INSERT INTO t (item) SELECT 'fresh ' || g FROM generate_series(1, 400) g")
    connection.execute("SELECT pg_sleep(1.5)")


def alter(connection: psycopg.Connection, rng: random.Random) -> None:
    """Add or drop a column."""
    name = f"c{rng.randint(0, 3)}"
    if rng.random() < 0.6:
        default = rng.choice(["", " DEFAULT 'd'"])
        connection.execute(f"ALTER TABLE t ADD COLUMN IF NOT EXISTS {name} text{default}")
    else:
        connection.execute(f"ALTER TABLE t DROP COLUMN IF EXISTS {name}")
    connection.execute("SELECT pg_sleep(2)")


@contextmanager
def writers(db: Database, *changes: Change) -> Iterator[None]:
    """Run one writer for each kind of change during the block. Errors such as deadlocks are ignored."""
    ended = threading.Event()

    def write(change: Change, seed: int) -> None:
        rng = random.Random(seed)
        with db.connect() as connection:
            connection.execute("SET lock_timeout = '3s'")
            while not ended.wait(0.05):
                with contextlib.suppress(psycopg.Error):
                    change(connection, rng)

    threads = [threading.Thread(target=write, args=(change, i)) for i, change in enumerate(changes)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
