"""The Spark session as it is started on this machine."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Queue
from subprocess import PIPE, Popen, run

import pytest
from pyspark.sql import SparkSession
from tests.rigs.waiting import LIMIT_S

from levada.runtime.resources.spark import spark_session


def test_settings(spark: SparkSession) -> None:
    """The session is local, in UTC, without a UI, and shuffles into as many parts as it has slots."""
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.master") == "local[2]"
    assert conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_names_of_files_are_utf8(spark: SparkSession, tmp_path: Path) -> None:
    """The JVM makes a folder of any name, and the workers of Spark too, although the process has the locale C."""
    named = tmp_path / "größe_表"
    spark.range(1).write.format("json").save(str(named))
    assert (named / "_SUCCESS").exists()
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: os.environ["LC_ALL"]).collect() == ["C.UTF-8"]


def test_second_call_returns_the_session(spark: SparkSession) -> None:
    """A process has one session: asking again, from any thread, starts nothing."""
    found: list[SparkSession] = []
    thread = threading.Thread(target=lambda: found.append(spark_session("other", cores=1)))
    thread.start()
    thread.join()
    assert found[0].sparkContext is spark.sparkContext


def test_iceberg_works(spark: SparkSession, tmp_path: Path) -> None:
    """Iceberg's catalog, its SQL extensions and its procedures are there."""
    spark.conf.set("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.lake.type", "hadoop")
    spark.conf.set("spark.sql.catalog.lake.warehouse", str(tmp_path))
    spark.sql("CREATE TABLE lake.db.t (id bigint) USING iceberg")
    spark.sql("INSERT INTO lake.db.t VALUES (1), (2)")
    spark.sql("ALTER TABLE lake.db.t CREATE BRANCH b")
    spark.sql("CALL lake.system.expire_snapshots(table => 'db.t')")
    assert spark.table("lake.db.t").count() == 2


def test_postgres_driver_is_there(spark: SparkSession) -> None:
    """The JDBC driver's class can be loaded."""
    assert spark.sparkContext._jvm.org.postgresql.Driver().getMajorVersion() == 42


def test_workers_run_this_python_with_our_modules_loaded(spark: SparkSession) -> None:
    """A Python worker is this interpreter, and finds what copies need imported already."""

    def look(_: int) -> tuple[str, bool]:
        return sys.executable, {"pyarrow.parquet", "psycopg", "numpy"} <= sys.modules.keys()

    assert spark.sparkContext.parallelize([0], 1).map(look).collect() == [(sys.executable, True)]


def test_nothing_of_the_process_is_changed(spark: SparkSession) -> None:
    """Starting Spark leaves the environment, the handler of SIGINT and the current folder as they were."""
    assert "SPARK_HOME" not in os.environ
    # Ignored from the start where the tests run in the background of a shell.
    assert signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN)
    spark.sql("SELECT 1").collect()
    assert not [name for name in ("metastore_db", "derby.log", "spark-warehouse") if Path(name).exists()]


def test_output_of_the_jvm_is_logged(spark: SparkSession) -> None:
    """The JVM's output goes to the logger ``levada.spark`` with its level, and not to the console."""
    heard: Queue[logging.LogRecord] = Queue()
    handler = QueueHandler(heard)
    logging.getLogger("levada.spark").addHandler(handler)
    try:
        spark.sparkContext._jvm.java.lang.System.err.println("ERROR Test: hello from the JVM")
        record = heard.get(timeout=LIMIT_S)
    finally:
        logging.getLogger("levada.spark").removeHandler(handler)
    assert (record.levelname, record.getMessage()) == ("ERROR", "Test: hello from the JVM")


def test_settings_are_not_on_the_command_line(spark: SparkSession) -> None:
    """Settings may hold keys. Of what the process list shows to every user, none is a setting."""
    command = Path(f"/proc/{spark.sparkContext._gateway.proc.pid}/cmdline").read_text().split("\0")
    assert "org.apache.spark.deploy.SparkSubmit" in command
    assert not [word for word in command if word == "--conf" or word.startswith("spark.")]
    assert not (Path(spark.conf.get("spark.local.dir") or "") / "settings").exists()


@pytest.mark.nightly
@pytest.mark.usefixtures("own_jvm")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a process a host name of its own")
def test_a_host_name_that_does_not_resolve_is_no_hindrance() -> None:
    """A session in one JVM looks up no name: that of a laptop is often known to no name server."""
    begin = (
        "from levada.runtime.resources.spark import spark_session, stop_spark; import socket, os;"
        "socket.sethostname('nowhere.invalid'); spark = spark_session('test', cores=1);"
        "print(spark.sql('SELECT 1').collect(), 'SPARK_LOCAL_IP' in os.environ); stop_spark(spark)"
    )
    done = run(["unshare", "--uts", sys.executable, "-c", begin], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[Row(1=1)] False"), done.stderr


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("spark.driver.memory", "much", "Spark did not start: "),
        ("spark.task.cpus", "none", "The value 'none' in the config \"spark.task.cpus\" is invalid"),
    ],
)
@pytest.mark.usefixtures("own_jvm")
def test_a_setting_that_keeps_spark_from_starting(name: str, value: str, words: str) -> None:
    """Neither the JVM nor its session starts with it. The error says where to look, and the log what is wrong."""
    begin = (
        "import logging, sys; logging.basicConfig(); from levada.errors import NeedsOperator;"
        "from levada.runtime.resources.spark import spark_session\n"
        "try: spark_session('test', cores=1, conf={sys.argv[1]: sys.argv[2]})\n"
        "except NeedsOperator as error: print(error.code, error.message, error.hint, sep='\\n')"
    )
    done = run([sys.executable, "-c", begin, name, value], capture_output=True, text=True, check=False)
    code, message, hint = done.stdout.splitlines()
    assert code == "spark_start_failed"
    assert words in message
    assert "Check spec.driver.sparkConf" in hint
    assert value in done.stderr + message


@pytest.mark.usefixtures("own_jvm")
def test_folder_of_a_killed_process_is_removed_by_the_next_start(tmp_path: Path) -> None:
    """Blocks with rows and a file with settings stay behind after a kill. The next start removes them."""
    begin = "from levada.private import process_folder; print(process_folder('levada-test'), flush=True); input()"
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def started() -> tuple[Popen[str], Path]:
        process = Popen([sys.executable, "-c", begin], env=environment, stdin=PIPE, stdout=PIPE, text=True)
        assert process.stdout
        return process, Path(process.stdout.readline().strip())

    killed, left = started()
    (left / "blocks").mkdir()
    (left / "blocks" / "rows").write_text("1")
    running, held = started()
    assert left.exists()
    killed.kill()
    killed.wait()
    last, _ = started()
    try:
        assert not left.exists()
        assert held.exists()
    finally:
        for process in (running, last):
            process.kill()
            process.wait()
