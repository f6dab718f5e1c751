"""The Spark session of the process.

It is local by default, logs little, returns memory when idle, and uses the jars in this machine's cache. A setting is
taken from the first place that has it: the caller's ``conf`` (``spec.driver.sparkConf``), the file that
``LEVADA_SPARK_PROPERTIES`` names (the operator writes it for ``driver.mode: Cluster``), the destination's ``defaults``,
and this module's defaults. The lines of ``LEVADA_SPARK_CONF`` override those of that file.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from subprocess import STDOUT, Popen
from typing import IO, TYPE_CHECKING, Any, Final

from levada.errors import NeedsOperator, Permanent
from levada.local.jars import Jar, ensure_jars, pyspark_folder
from levada.local.java import require_java
from levada.private import private_file, process_folder
from levada.runtime.resources.machine import available_cores, jvm_heap, memory_limit, task_slots

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_jvm_log = logging.getLogger("levada.spark")
_starting = threading.Lock()

_LEVELS: Final = {"ERROR": logging.ERROR, "WARN": logging.WARNING}
_LEVEL: Final = re.compile(r"(ERROR|WARN) ")
# Printed by the shell scripts and the JVM before logging is configured, and by Spark for a setting of this module.
_START_NOISE: Final = re.compile(
    r"WARNING: Using incubator modules|Picked up |\s*$|SparkConf: Note that spark\.local\.dir will be overridden"
)

_JVM_OPTIONS: Final = (
    # Without the C2 compiler a session starts in 8 CPU seconds instead of 15. Compaction takes a third longer.
    "-XX:TieredStopAtLevel=1",
    # The collector with the least memory outside the heap. It returns free heap to the system.
    "-XX:+UseSerialGC",
    # By default the heap begins with a 64th of the machine's memory, and never shrinks below that.
    "-Xms64m",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
    "-XX:-UsePerfData",
)

_UTF8: Final[Mapping[str, str]] = {"LC_ALL": "C.UTF-8"}
"""The locale of each JVM and of its Python workers. A JVM encodes names of files by it, in C with ``?`` for letters.

With that of another language, a JVM has messages and lower-case letters of that language.
"""

_CLASS_PATHS: Final = ("spark.driver.extraClassPath", "spark.executor.extraClassPath")
_JAVA_OPTIONS: Final = ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions")
"""Settings whose values here and in the user's ``conf`` are joined."""

_HOST: Final = "spark.driver.host"
_LOCATIONS: Final = frozenset(
    {"spark.master", _HOST, "spark.driver.bindAddress", "spark.driver.port", "spark.blockManager.port"}
)
_BY_SUBMIT: Final = ("spark.jars", "spark.files", "spark.archives", "spark.kerberos.", "spark.yarn.", "spark.submit.")
_POD_NAMES: Final = "spark.kubernetes.executor.podNamePrefix"
_PROPERTIES: Final = "LEVADA_SPARK_PROPERTIES"
_OVERRIDES: Final = "LEVADA_SPARK_CONF"
_SUBMIT: Final = "PYSPARK_SUBMIT_ARGS"
_IN_ONE_JVM: Final = re.compile(r"local(\[|$)")


def spark_session(
    name: str,
    *,
    cores: int | str = "*",
    conf: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    jars: Sequence[Jar] = (),
) -> SparkSession:
    """Return the process's Spark session. Start it if there is none.

    ``cores`` is the number of task slots of a local session, ``*`` for what its cores and memory allow.
    The JVM's heap follows from the memory too. ``conf`` overrides every other setting, ``spark.master`` included.
    ``defaults`` and ``jars`` are those of the destination. A session that runs already keeps what it has. Executors
    must have the same Python and jars at the same paths, as in the same image. The output of the JVM goes to the logger
    ``levada.spark``.

    Raise NeedsOperator ``pyspark_missing`` without pyspark, ``spark_start_failed`` if Spark does not start, and others
    if this machine has no Java or jars and cannot download them.
    """
    pyspark_folder()
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    with _starting:
        if SparkContext._active_spark_context is None:
            logging.getLogger("py4j").setLevel(logging.WARNING)
            settings = _settings(name, str(cores), {**(defaults or {}), **_properties(), **(conf or {})}, jars)
            spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            with _environment(settings["spark.master"]), _own_sigint():
                gateway = None if SparkContext._gateway else _launch_jvm(settings)
                with _start_errors():
                    _log_lost_updates(SparkContext(conf=spark_conf, gateway=gateway))
        return SparkSession.builder.getOrCreate()


def has_session() -> bool:
    """Return True if the process has a running Spark session. Raise NeedsOperator ``pyspark_missing`` if it cannot."""
    pyspark_folder()
    # To import it takes a command longer than the question.
    loaded = sys.modules.get("pyspark")
    return loaded is not None and loaded.SparkContext._active_spark_context is not None


@contextmanager
def borrowed_session(
    name: str,
    *,
    conf: Mapping[str, str] | None = None,
    defaults: Mapping[str, str] | None = None,
    jars: Sequence[Jar] = (),
) -> Iterator[SparkSession]:
    """Yield a session for a short check, local and without executors.

    A session that runs already is used and kept. A new one is stopped at the end. Settings in ``conf`` for the
    addresses of the driver and its executors are ignored.
    """
    running = has_session()
    here = {key: value for key, value in (conf or {}).items() if key not in _LOCATIONS}
    spark = spark_session(name, cores=1, conf={**here, "spark.master": "local[1]"}, defaults=defaults, jars=jars)
    try:
        yield spark
    finally:
        if not running:
            stop_spark(spark)


def settings_given(conf: Mapping[str, str]) -> Mapping[str, str]:
    """Return the settings of the user and of the operator, without those of the destination and of this module."""
    return {**_properties(), **conf}


def settings_of_check(
    conf: Mapping[str, str], defaults: Mapping[str, str], jars: Sequence[Jar]
) -> Mapping[str, str] | None:
    """Return the settings that `borrowed_session` gives a new session.

    Return None if one of them has an effect through spark-submit or a session alone.
    """
    given = {**defaults, **settings_given(conf)}
    if any(key.startswith(_BY_SUBMIT) for key in given):
        return None
    here = {key: value for key, value in given.items() if key not in _LOCATIONS}
    return _settings("levada check", "1", {**here, "spark.master": "local[1]"}, jars)


@contextmanager
def logged_output() -> Iterator[IO[str]]:
    """Yield a pipe whose lines, also those of processes that the block starts, go to the logger ``levada.spark``."""
    reading, writing = os.pipe()
    output = os.fdopen(reading, errors="replace")
    threading.Thread(target=_log_output, args=(output,), name="spark-log", daemon=True).start()
    with os.fdopen(writing, "w") as stream:
        yield stream


def check_jvm(spark: SparkSession) -> None:
    """Raise Permanent ``spark_ended`` if the session's JVM has ended.

    The process starts no second JVM, so it must be restarted.
    """
    code = _exit_code(spark)
    if code is not None:
        raise Permanent(
            "spark_ended",
            f"Spark's JVM has ended, with exit code {code}",
            hint="-9 means that it was killed, often for lack of memory. For other codes see the log",
        )


def stop_spark(spark: SparkSession) -> None:
    """Stop the session. A JVM that has ended already is no error."""
    from py4j.protocol import Py4JError

    if _exit_code(spark) is not None:
        return
    try:
        spark.stop()
    except (Py4JError, OSError) as error:
        # A signal to the process group also ends the JVM.
        _jvm_log.debug("Spark's JVM does not answer: %s", error)


def _exit_code(spark: SparkSession) -> int | None:
    """Return the exit code of the JVM, or None while it runs or if another process started it."""
    process: Popen[str] | None = getattr(spark.sparkContext._gateway, "proc", None)
    return None if process is None else process.poll()


def _settings(name: str, cores: str, conf: Mapping[str, str], jars: Sequence[Jar] = ()) -> dict[str, str]:
    limit = memory_limit()
    slots = str(task_slots(available_cores(), limit)) if cores == "*" else cores
    scratch = _scratch()
    settings = {
        "spark.app.name": name,
        "spark.master": f"local[{slots}]",
        "spark.driver.memory": f"{jvm_heap(limit) >> 20}m",
        "spark.python.daemon.module": "levada.copy.spark_daemon",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": slots,
        # Levada creates no managed table in Spark's own catalog. This keeps any other one out of the current folder.
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        # Spark sets 300 MB of the heap apart for itself, and refuses to start with less than 1.5 times as much.
        "spark.testing.reservedMemory": str(jvm_heap(limit) // 4),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    log4j = f'"-Dlog4j2.configurationFile={resources.files("levada.runtime.resources") / "log4j2.properties"}"'
    # With spark.jars, Spark would copy these 50 MB at each start and to each executor.
    class_path = {"extraClassPath": os.pathsep.join(map(str, ensure_jars(jars)))} if jars else {}
    # Spark and its data sources leave folders there when the JVM is killed.
    options = " ".join((*_JVM_OPTIONS, log4j, f'"-Djava.io.tmpdir={scratch}"'))
    settings |= _prefixed("spark.driver", {**class_path, "extraJavaOptions": options})
    if _IN_ONE_JVM.match(conf.get("spark.master", "local")):
        # The machine's host name may not resolve or be reachable.
        settings |= {_HOST: "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
        # Blocks on disk contain rows, and other users can read Spark's own folders.
        settings["spark.local.dir"] = str(scratch)
    else:
        settings |= _prefixed("spark.executor", {**class_path, "extraJavaOptions": log4j})
        settings |= _prefixed("spark.executorEnv", _UTF8)
    joined = {
        key: separator.join([settings[key], conf[key]])
        for keys, separator in ((_CLASS_PATHS, os.pathsep), (_JAVA_OPTIONS, " "))
        for key in keys
        if key in settings and key in conf
    }
    return {**settings, **conf, **joined, **_pod_names(conf)}


def _prefixed(prefix: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.{name}": value for name, value in settings.items()}


@cache
def _scratch() -> Path:
    """Return the folder for the JVM's temporary files, which may contain rows and keys."""
    return process_folder("levada-spark")


def _pod_names(conf: Mapping[str, str]) -> dict[str, str]:
    """Return the prefix of the executor pods' names, made unique for this start by 11 more characters.

    Pods of the previous start may still exist.
    """
    prefix = conf.get(_POD_NAMES)
    return {} if prefix is None else {_POD_NAMES: f"{prefix}-{time.time_ns() // 1_000_000 % 2**40:010x}"}


def _properties() -> dict[str, str]:
    """Return the operator's settings, whose file and variable have the format of spark-defaults.conf."""
    named = os.environ.get(_PROPERTIES)
    text = f"{Path(named).read_text()}\n{os.environ.get(_OVERRIDES, '')}" if named else ""
    lines = (line.split(None, 1) for line in text.splitlines() if not line.startswith("#"))
    found = {line[0]: line[1].strip() if len(line) > 1 else "" for line in lines if line}
    host = found.get(_HOST, "")
    # A pod's address as Kubernetes writes it. Spark wants that of IPv6 in brackets.
    return {**found, _HOST: f"[{host}]"} if ":" in host and not host.startswith("[") else found


def _log_lost_updates(context: SparkContext) -> None:
    """Log the end of the connection for accumulators, for which pyspark prints a traceback. `check_jvm` reports it."""

    def log(request: object, client_address: object) -> None:
        _jvm_log.debug("the JVM closed the connection for accumulators", exc_info=True)

    context._accumulatorServer.handle_error = log  # type: ignore[method-assign]  # pyspark has no setting for it


def _launch_jvm(settings: Mapping[str, str]) -> Any:
    """Start the JVM and return its gateway.

    The settings are passed in a file, because every user of the machine can read a command line.
    """
    from pyspark.java_gateway import launch_gateway

    # If a JVM ends before it answers, pyspark returns neither the process nor its output. The pipe keeps the output.
    with logged_output() as output, _start_errors(), _submit_arguments(settings):
        streams = {"stdout": output, "stderr": STDOUT}
        return launch_gateway(None, streams)  # type: ignore[no-untyped-call]  # as pyspark has it


@contextmanager
def _submit_arguments(settings: Mapping[str, str]) -> Iterator[None]:
    """Pass the settings to spark-submit in a private file. The JVM has read it once it answers pyspark."""
    file = _scratch() / "settings"
    before = os.environ.get(_SUBMIT)
    try:
        with private_file(file, "w") as out:
            out.write(java_properties(settings))
        os.environ[_SUBMIT] = f"--properties-file {shlex.quote(str(file))} {before or 'pyspark-shell'}"
        yield
    finally:
        file.unlink(missing_ok=True)
        if before is None:
            os.environ.pop(_SUBMIT, None)
        else:
            os.environ[_SUBMIT] = before


def java_properties(settings: Mapping[str, str]) -> str:
    """Return the settings in the format of java.util.Properties, in ASCII."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items())


def _escaped(text: str) -> str:
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[i : i + 2]) for i in range(0, len(units), 2)]
    return "".join(chr(c) if chr(c).isascii() and chr(c).isalnum() else f"\\u{c:04x}" for c in codes)


@contextmanager
def _start_errors() -> Iterator[None]:
    """Raise NeedsOperator ``spark_start_failed`` for any error in the start of the JVM or of its session."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
        # py4j names the call first, and then the exception of the JVM.
        words = next((line.removeprefix(": ") for line in lines if line.startswith(": ")), lines[0])
        raise NeedsOperator(
            "spark_start_failed",
            f"Spark did not start: {words}",
            hint="see the JVM's output in the log. Check spec.driver.sparkConf, the memory limit and ulimit -n",
        ) from error


def _log_output(output: IO[str]) -> None:
    """Log the JVM's output until it ends. A line without a level continues the previous message."""
    level = logging.WARNING
    for line in output:
        if match := _LEVEL.match(line):
            level = _LEVELS[match[1]]
            line = line[match.end() :]
        _jvm_log.log(logging.DEBUG if _START_NOISE.match(line) else level, "%s", line.rstrip())


@contextmanager
def _environment(master: str) -> Iterator[None]:
    """Set the environment variables from which pyspark takes its Java, Spark and Python. It reads them nowhere else."""
    ours = {
        **_UTF8,
        # By default glibc keeps freed memory of each thread apart: 15 MB of an idle JVM.
        "MALLOC_ARENA_MAX": os.environ.get("MALLOC_ARENA_MAX", "2"),
        "JAVA_HOME": str(require_java().home_for_spark(_scratch() / "java")),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(pyspark_folder()),
    }
    if _IN_ONE_JVM.match(master):
        # Without it spark-submit looks up the machine's host name, and ends if that does not resolve.
        ours["SPARK_LOCAL_IP"] = os.environ.get("SPARK_LOCAL_IP", "127.0.0.1")
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
    """Keep the process's handler of SIGINT, which a new SparkContext replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
