"""Transactions that are staged before their end, while the engine is killed or taken over at a step of one of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psycopg
import pytest
from psycopg import sql
from tests.rigs.database import Database
from tests.rigs.ducklake import differences, lake, write_manifest
from tests.rigs.engine import Engine, Second
from tests.rigs.waiting import LIMIT_S, until
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


@pytest.mark.nightly
def test_a_takeover_in_the_middle(engine: Engine, db: Database, lake: DuckLake, tmp_path: Path) -> None:
    """The rows are there exactly once, and the paused engine ends without a write when it goes on."""
    db.execute("CREATE TABLE orders (id int PRIMARY KEY, v text)", "INSERT INTO orders VALUES (0, 'first')")
    with db.connect() as c:
        setting = sql.SQL("ALTER DATABASE {} SET logical_decoding_work_mem = '64kB'")
        c.execute(setting.format(sql.Identifier(db.name)))
    write_manifest(engine, lake)
    engine.start()
    engine.wait_caught_up()
    running = engine
    try:
        for turn, ends in enumerate(("before", "after", "rolled back")):
            with db.connect() as one, db.connect() as other:
                one.execute("BEGIN")
                other.execute("BEGIN")
                insert(one, 100_000 * turn + 1)
                insert(other, 100_000 * turn + 50_001)
                until(lambda: len(early_files(engine)) > 1)
                one.execute("SAVEPOINT a")
                insert(one, 100_000 * turn + 20_001)
                if ends == "rolled back":
                    one.execute("ROLLBACK TO a")
                one.execute("UPDATE orders SET v = 'moved', id = -id WHERE id % 1000 = 1")
                if ends == "before":
                    one.execute("COMMIT")
                paused, folder = running, tmp_path / f"engine{turn}"
                assert paused.process is not None
                os.killpg(paused.process.pid, signal.SIGSTOP)
                folder.mkdir()
                running = Second(engine, folder)
                running.start()
                # As the server does a minute later by itself.
                db.query(
                    "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
                )
                if ends != "before":
                    one.execute("COMMIT")
                running.wait_for(lambda p: p["ready"])
                os.killpg(paused.process.pid, signal.SIGCONT)
                insert(other, 100_000 * turn + 80_001)
                other.execute("ROLLBACK" if ends == "after" else "COMMIT")
                assert paused.process.wait(LIMIT_S) != 0
                assert "stale_epoch" in paused.log
                running.wait_caught_up()
                assert differences(db, lake, "orders") == []
        until(lambda: early_files(engine) == [])
        assert running.stop() == 0
    finally:
        running.kill()
