"""The Spark session: local by default, quiet, small when idle, with the jars of this machine's cache."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import resources
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import IO, TYPE_CHECKING, Any, Final

from levada.local.jars import ensure_jars, pyspark_folder
from levada.local.java import ensure_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_jvm_log = logging.getLogger("levada.spark")
_starting = threading.Lock()

_LEVELS: Final = {"ERROR": logging.ERROR, "WARN": logging.WARNING}
_LEVEL: Final = re.compile(r"(ERROR|WARN) ")
# Printed by the shell scripts and the JVM before any logging is configured.
_START_NOISE: Final = re.compile(r"WARNING: Using incubator modules|Picked up |\s*$")

_JVM_OPTIONS: Final = (
    # Of the collectors it needs the least memory beside the heap, and gives the heap back.
    "-XX:+UseSerialGC",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-XX:-UsePerfData",
)


def spark_session(
    name: str, *, cores: int | str = "*", memory: str | None = None, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return the process's Spark session, started if there is none yet.

    ``cores``: task slots of ``local[…]``, ``*`` for all; ``memory``: the JVM's heap as the JVM writes it (``2g``).
    ``conf`` goes before everything set here, ``spark.master`` included. Raise NeedsOperator if this machine has no
    Java or jars and cannot get them. What the JVM prints goes to the logger ``levada.spark``.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    with _starting:
        if SparkContext._active_spark_context is None:
            settings = _settings(name, str(cores), memory, conf or {})
            spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            with _environment(), _own_sigint():
                gateway = None if SparkContext._gateway else _launch_jvm(spark_conf)
                SparkContext(conf=spark_conf, gateway=gateway)
        return SparkSession.builder.getOrCreate()


def _settings(name: str, cores: str, memory: str | None, conf: Mapping[str, str]) -> dict[str, str]:
    slots = str(len(os.sched_getaffinity(0))) if cores == "*" else cores
    settings = {
        "spark.app.name": name,
        "spark.master": f"local[{slots}]",
        "spark.driver.memory": memory or "1g",
        "spark.jars": ",".join(map(str, ensure_jars())),
        "spark.python.daemon.module": "levada.runtime.worker_daemon",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": slots,
        # Levada makes no managed table in Spark's own catalog; were there one, not in the current folder.
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "levada-spark-warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if conf.get("spark.master", "local").startswith("local"):
        # The machine's own name need not resolve, nor be reachable.
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    log4j = resources.files("levada.runtime") / "log4j2.properties"
    options = (*_JVM_OPTIONS, f'"-Dlog4j2.configurationFile={log4j}"', conf.get("spark.driver.extraJavaOptions", ""))
    return settings | dict(conf) | {"spark.driver.extraJavaOptions": " ".join(options).strip()}


def _launch_jvm(conf: Any) -> Any:
    from pyspark.java_gateway import launch_gateway

    gateway = launch_gateway(  # type: ignore[no-untyped-call]  # as pyspark has it
        conf, {"stdout": PIPE, "stderr": STDOUT, "text": True, "errors": "replace"}
    )
    threading.Thread(target=_log_output, args=(gateway.proc.stdout,), name="spark-log", daemon=True).start()
    return gateway


def _log_output(output: IO[str]) -> None:
    """Log what the JVM prints, line by line, until it ends; lines without a level go on the message before them."""
    level = logging.WARNING
    for line in output:
        if match := _LEVEL.match(line):
            level = _LEVELS[match[1]]
            line = line[match.end() :]
        _jvm_log.log(logging.DEBUG if _START_NOISE.match(line) else level, "%s", line.rstrip())


@contextmanager
def _environment() -> Iterator[None]:
    """Show pyspark the Java, the Spark and the Python to use; its start reads them from the environment alone."""
    ours = {
        "JAVA_HOME": str(ensure_java().home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(pyspark_folder()),
    }
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _own_sigint() -> Iterator[None]:
    """Keep the process's handler of SIGINT: a new SparkContext puts its own there."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
