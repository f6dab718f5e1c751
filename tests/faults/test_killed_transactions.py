"""Transactions that are staged before their end, while the engine is killed at each step of one of them."""

from __future__ import annotations

import psycopg
import pytest
from psycopg import sql
from tests.rigs.database import Database
from tests.rigs.ducklake import differences, lake, write_manifest
from tests.rigs.engine import Engine
from tests.rigs.waiting import until
from tests.servers.ducklake import DuckLake

__all__ = ["lake"]


def insert(c: psycopg.Connection[tuple[object, ...]], first: int) -> None:
    """Insert what is more than the source keeps in memory, and than the engine keeps undecoded."""
    c.execute(
        "INSERT INTO orders SELECT i, repeat(md5(i::text), 40) FROM generate_series(%s::int, %s::int) i",
        [first, first + 11_999],
    )


def early_files(engine: Engine) -> list[str]:
    """The staged files of transactions that have not ended, or were staged before their end."""
    return [path.name for path in engine.folder.rglob("open-*")]


@pytest.mark.nightly
def test_kills_around_a_commit(engine: Engine, db: Database, lake: DuckLake) -> None:
    """Killed before, at and after a COMMIT, with another transaction in progress, the table is equal at the end."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (0, 'first')")
    with db.connect() as c:
        setting = sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'")
        c.execute(setting.format(sql.Identifier(db.name)))
    write_manifest(engine, lake)
    engine.start()
    engine.wait_caught_up()
    with db.connect() as one, db.connect() as other:
        db.execute("UPDATE orders SET v = 'streamed'")
        engine.wait_caught_up()
        for turn in range(3):
            one.execute("BEGIN")
            other.execute("BEGIN")
            insert(one, 100_000 * turn + 1)
            insert(other, 100_000 * turn + 50_001)
            until(lambda: len(early_files(engine)) > 1)
            if turn == 0:
                engine.kill()
                engine.start()
                until(lambda: len(early_files(engine)) > 1)
            one.execute("UPDATE orders SET v = 'moved', id = -id WHERE id % 1000 = 1")
            one.execute("COMMIT")
            if turn == 1:
                engine.kill()
                engine.start()
            insert(other, 100_000 * turn + 80_001)
            other.execute("COMMIT" if turn < 2 else "ROLLBACK")
            if turn == 2:
                engine.wait_for(lambda p: p["capture"]["transactions"] > 0)
                engine.kill()
                engine.start()
    engine.wait_caught_up()
    assert differences(db, lake, "orders") == []
    until(lambda: early_files(engine) == [])
    assert engine.stop() == 0
