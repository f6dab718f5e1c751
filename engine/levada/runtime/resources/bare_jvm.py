"""The JVM of `levada.destinations.check_jvm`, started without spark-submit and without a session."""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from subprocess import PIPE, Popen
from typing import IO, TYPE_CHECKING, Any, Final

from levada.destinations.check_jvm import CheckJvm
from levada.errors import NeedsOperator
from levada.local.jars import pyspark_folder
from levada.local.java import require_java
from levada.runtime.resources.spark import logged_output, settings_given, settings_of_check

if TYPE_CHECKING:
    from levada.local.jars import Jar

_OPENED: Final = (
    "java.lang",
    "java.lang.invoke",
    "java.lang.reflect",
    "java.io",
    "java.net",
    "java.nio",
    "java.util",
    "java.util.concurrent",
    "java.util.concurrent.atomic",
    "sun.nio.ch",
    "sun.nio.cs",
    "sun.security.action",
    "sun.util.calendar",
)
"""Packages of Java that spark-submit opens to reflection, by which py4j calls methods too."""

_SERVER: Final = ("py4j.GatewayServer", "--die-on-broken-pipe", "--enable-auth", "0")
_ENVIRONMENT: Final = {"LC_ALL": "C.UTF-8", "MALLOC_ARENA_MAX": "2"}
_CONFIGURING: Final = ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")
"""Variables with folders of configuration files, which are part of the class path."""
_REACHING: Final = ("spark.hadoop.", "spark.sql.catalog.", "spark.driver.extra", "spark.driver.defaultJavaOptions")
"""Prefixes of settings that may change how a JVM reaches files and servers."""
_OPTIONS: Final = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS")
"""Variables with options of each JVM. Those that set a property may name a proxy, or other certificates."""
_starting: Final = threading.Lock()
_running: Final[dict[tuple[str, ...], _Running]] = {}
"""The JVMs of this process, by what they were started with. They end with this process."""


def bare_jvm(*, conf: Mapping[str, str], defaults: Mapping[str, str], jars: Sequence[Jar]) -> CheckJvm | None:
    """Return a JVM for a check, which the process starts once, when needed. None: the check needs a session.

    ``conf``, ``defaults`` and ``jars`` are those of `levada.runtime.resources.spark.spark_session`. Raise NeedsOperator
    ``pyspark_missing``, and others if there is no Java or jar.
    """
    settings = settings_of_check(conf, defaults, jars)
    if settings is None:
        return None
    require_java()
    return _BareJvm(settings, _is_plain({*defaults, *settings_given(conf)}))


@dataclass(frozen=True, slots=True)
class _BareJvm(CheckJvm):
    """A JVM that starts with the first use."""

    @property
    def gateway(self) -> Any:
        """The gateway of the process's JVM with these settings."""
        settings = self.settings
        command = (*shlex.split(settings.get("spark.driver.extraJavaOptions", "")), "-classpath", _class_path(settings))
        with _starting:
            found = _running.get(command)
            if found is None or found.process.poll() is not None:
                found = _running[command] = _start(command)
        return found.gateway


def _is_plain(names: Iterable[str]) -> bool:
    environment = os.environ
    return (
        not any(name.startswith(_REACHING) for name in names)
        and not any(name in environment for name in _CONFIGURING)
        and not any("-D" in environment.get(name, "") for name in _OPTIONS)
        and not (pyspark_folder() / "conf").exists()
    )


def _class_path(settings: Mapping[str, str]) -> str:
    """Return the class path that spark-submit gives a driver."""
    home, environment = pyspark_folder(), os.environ
    parts = (
        settings.get("spark.driver.extraClassPath"),
        environment.get("SPARK_CONF_DIR", f"{home}/conf"),
        # As spark-submit has it, before all others.
        *map(str, sorted(home.glob("jars/slf4j-api-*.jar"))),
        f"{home}/jars/*",
        *(environment.get(name) for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR", "SPARK_DIST_CLASSPATH")),
    )
    return os.pathsep.join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class _Running:
    process: Popen[bytes]
    gateway: Any


def _start(command: tuple[str, ...]) -> _Running:
    from py4j.protocol import Py4JError

    with logged_output() as output:
        try:
            return _launched(command, output)
        except (OSError, ValueError, Py4JError) as error:
            raise NeedsOperator(
                "spark_start_failed",
                f"a JVM for the check did not start: {error}",
                hint="see the JVM's output in the log. Check spec.driver.sparkConf, the memory limit and ulimit -n",
            ) from error


def _launched(command: tuple[str, ...], output: IO[str]) -> _Running:
    from py4j.java_gateway import GatewayParameters, JavaGateway

    opened = (f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED)
    program = (str(require_java().executable), *opened, *command, *_SERVER)
    process = Popen(program, stdin=PIPE, stdout=PIPE, stderr=output, env={**os.environ, **_ENVIRONMENT})
    assert process.stdout is not None
    with process.stdout:
        answer = [process.stdout.readline().decode().strip() for _ in range(2)]
    if not answer[1]:
        raise OSError(f"it ended with the exit code {process.wait()}")
    parameters = GatewayParameters(port=int(answer[0]), auth_token=answer[1], auto_convert=True)
    return _Running(process, JavaGateway(gateway_parameters=parameters))
