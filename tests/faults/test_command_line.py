"""The command line at a start that does not go as planned."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tests.operator.samples import at, pod, waiting, written
from tests.rigs.database import Database
from tests.rigs.engine import Engine
from tests.rigs.waiting import LIMIT_S
from tests.servers.ports import free_port
from tests.servers.s3 import BUCKET, object_store

from levada.cli.exit_codes import Exit


@pytest.fixture
def shop(engine: Engine, db: Database) -> Engine:
    """A manifest over one table."""
    db.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 10)")
    engine.write_manifest()
    return engine


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_group_while_spark_starts_is_a_clean_stop(shop: Engine, number: signal.Signals) -> None:
    """Ctrl-C and a service manager signal Spark's JVM too. What breaks by that is not reported as an error."""
    shop.start()
    shop.wait_log("starting Spark")
    time.sleep(1)  # so that there is a JVM; the outcome is the same without one
    assert shop.process is not None
    os.killpg(shop.process.pid, number)
    assert shop.process.wait(LIMIT_S) == Exit.OK
    assert "stopped before it had started" in shop.log
    assert "error" not in shop.log.lower()
    assert not shop.db.query("SELECT 1 FROM pg_replication_slots WHERE database = current_database()")


def test_the_time_limit_counts_from_the_call(shop: Engine) -> None:
    """A limit that is over before the pipeline has started ends the command then, with the exit code of a limit.

    No machine starts Spark within a second, and a slow one does not get as far.
    """
    done = shop.levada("run", *shop.options(), "--until", "caught-up", "--timeout", "1", check=False)
    assert done.returncode == Exit.TIMED_OUT, done.stdout + done.stderr
    assert "not started after 1.0s, stopped" in done.stdout


def test_check_reports_what_a_start_would_meet(shop: Engine, tmp_path: Path) -> None:
    """A lake, a staging area and a work folder that cannot be written are reported. A ready pipeline then starts."""
    blocked = tmp_path / "a-file"
    blocked.write_text("not a folder")
    destination = {"catalog": {"type": "Hadoop", "warehouse": f"file://{blocked}/lake"}, "namespace": "shop_{schema}"}
    shop.spec = {"destination": {"iceberg": destination}, "staging": {"uri": f"file://{blocked}/staging"}}
    shop.write_manifest()
    done = shop.levada("check", *shop.options(), "--work-dir", str(blocked / "work"), check=False)
    assert done.returncode == Exit.PREFLIGHT, done.stdout + done.stderr
    assert done.stderr.count("error:") == 3, done.stderr
    for words in ("[work_dir_unusable]", "staging: cannot", f"write to file:{blocked}/lake"):
        assert words in done.stderr.replace("file://", "file:"), done.stderr
    shop.spec = {}
    shop.write_manifest()
    done = shop.levada("check", *shop.options())
    assert "ready, 1 table selected" in done.stdout
    assert not shop.warehouse.exists(), "the check leaves nothing behind"
    assert not (shop.folder / "staging").exists()
    shop.levada("run", *shop.options(), "--until", "caught-up")
    shop.assert_equal("t")


def test_a_wrong_key_of_the_lake_is_in_the_plan_and_in_the_preflight(shop: Engine, tmp_path: Path) -> None:
    """The lake is opened before anything is touched. The plan has the estimates all the same."""
    with object_store(tmp_path / "s3", port=free_port(), secret="the-right-one") as s3:
        shop.write_secret("lake", {"jdbc.user": "postgres", **s3.keys, "s3.secret-access-key": "another"})
        uri = f"jdbc:postgresql://127.0.0.1:{shop.db.server.port}/{shop.db.name}"
        catalog = {"type": "Jdbc", "uri": uri, "warehouse": f"s3://{BUCKET}/lake", "properties": s3.place}
        shop.spec = {
            "destination": {
                "iceberg": {"namespace": "shop", "catalog": catalog, "credentialsSecretRef": {"name": "lake"}}
            },
            "tables": {"include": [{"schema": "public", "name": "t"}]},
        }
        shop.write_manifest()
        planned = shop.levada("plan", *shop.options(), "-o", "json", check=False)
        assert planned.returncode == Exit.PREFLIGHT, planned.stdout + planned.stderr
        found = json.loads(planned.stdout)
        assert [table["name"] for table in found["plan"]["tables"]] == ["t"]
        codes = [problem["code"] for problem in found["problems"]]
        (log := tmp_path / "termination-log").touch()
        work = ("--work-dir", str(tmp_path))
        checked = shop.levada("check", *shop.options(), *work, check=False, LEVADA_TERMINATION_LOG=str(log))
    assert checked.returncode == Exit.PREFLIGHT
    ended = {"exitCode": Exit.PREFLIGHT, "reason": "Error", "message": log.read_text(), "finishedAt": written(at(-10))}
    failure = pod(**waiting("preflight", "CrashLoopBackOff", **ended)).failure
    assert failure is not None
    assert (failure.reason, failure.code, codes) == ("PreflightFailed", "destination_denied", ["destination_denied"])
    assert not shop.db.query("SELECT 1 FROM pg_replication_slots WHERE database = current_database()")


def test_signals_to_the_group_while_copying_and_streaming(shop: Engine) -> None:
    """Ctrl-C and a service manager end the copy or the stream, and with it Spark's JVM. The next start goes on."""
    rows = "SELECT i AS id, repeat(md5(i::text), 4) AS v FROM generate_series(1, 2000000) i"
    shop.db.execute(f"CREATE TABLE large AS {rows}", "ALTER TABLE large ADD PRIMARY KEY (id)")
    shop.start()
    shop.wait_for(lambda p: any((t["name"], t["phase"]) == ("large", "DataSync") for t in p["tables"]))
    signal_group(shop, signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGINT):
        shop.start()
        shop.wait_caught_up()
        shop.db.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
        signal_group(shop, number)
    shop.start()
    shop.wait_caught_up()
    shop.assert_equal("t", "large")
    second = shop.levada("run", *shop.options(), check=False)
    assert second.returncode == Exit.PREFLIGHT
    assert "[engine_running]" in second.stderr
    assert shop.progress() is not None, "the first one goes on"  # paced: any progress
    assert shop.stop() == Exit.OK
    for words in ("dropped", "does not exist"):
        assert words in shop.levada("cleanup", *shop.options(), "--yes").stdout


def signal_group(shop: Engine, number: signal.Signals) -> None:
    """Send the signal to the engine and to its children. The end is clean."""
    assert shop.process is not None
    before = len(shop.log)
    os.killpg(shop.process.pid, number)
    assert shop.process.wait(LIMIT_S) == Exit.OK, shop.log[before:]
    told = shop.log[before:]
    assert "shop: stopped" in told
    assert "Traceback" not in told, told
    assert " ERROR " not in told, told
