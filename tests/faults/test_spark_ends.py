"""Spark's JVM ends under the engine, as the kernel ends it where memory is short."""

from __future__ import annotations

import os
import signal
import subprocess

from tests.conftest import Database
from tests.scenarios.engine import TIMEOUT_S, Engine


def test_the_engine_ends_with_its_jvm(db: Database, engine: Engine) -> None:
    """Nothing in the process could mend it; the process that is started next goes on, and both sides become equal."""
    db.execute("CREATE TABLE item (id int PRIMARY KEY)", "INSERT INTO item SELECT generate_series(1, 1000)")
    engine.write_manifest()
    engine.start()
    engine.wait_caught_up()
    assert engine.process is not None
    found = subprocess.run(["pgrep", "-P", str(engine.process.pid), "java"], capture_output=True, text=True, check=True)
    os.kill(int(found.stdout), signal.SIGKILL)
    assert engine.process.wait(TIMEOUT_S) == 1
    assert "[spark_ended]" in engine.log.splitlines()[-2]
    db.execute("DELETE FROM item WHERE id < 500")
    engine.start()
    engine.wait_caught_up()
    engine.assert_equal("item")
    assert engine.stop() == 0
