"""Spark's JVM ends under the engine, as the kernel ends it where memory is short."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
from typing import LiteralString, cast

from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S


def execute(db: Database, *statements: str) -> None:
    """Run statements, each in a transaction of its own."""
    db.execute(*(cast("LiteralString", statement) for statement in statements))


def test_the_engine_ends_with_its_jvm(db: Database, engine: Engine) -> None:
    """The process cannot recover without its JVM, and ends. The next process goes on, and both sides become equal."""
    names = ("item", *(f"other_{n}" for n in range(6)))
    for name in names:
        execute(db, f"CREATE TABLE {name} (id int PRIMARY KEY)", f"INSERT INTO {name} SELECT generate_series(1, 1000)")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    assert engine.process is not None
    found = subprocess.run(["pgrep", "-P", str(engine.process.pid), "java"], capture_output=True, text=True, check=True)
    for number in itertools.count(2000):
        execute(db, *(f"INSERT INTO {name} VALUES ({number})" for name in names))
        if number == 2020:
            os.kill(int(found.stdout), signal.SIGKILL)
        if engine.process.poll() is not None:
            break
    assert engine.process.wait(LIMIT_S) == 1
    assert "[spark_ended]" in engine.log.splitlines()[-2]
    # A batch that fails because of it must not leave a table that waits for a user.
    assert "internal_error" not in engine.log
    db.execute("DELETE FROM item WHERE id < 500")
    engine.start()
    engine.wait_caught_up()
    engine.assert_equal(*names)
    assert engine.stop() == 0
