"""A Java for Spark: found on this machine, or else downloaded with the package ``install-jdk``."""

from __future__ import annotations

import logging
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator
from levada.local.cache import cache_folder, only_process

_log = logging.getLogger(__name__)

VERSIONS: Final = (17, 21)
"""The versions that Spark 4.1 supports (its documentation, "Downloading"). Others may start and fail later."""

_DOWNLOADED: Final = "17"
_VERSION: Final = re.compile(r'version "(\d+)')
USUAL_FOLDERS: Final = (
    "/usr/lib/jvm/*",
    "/usr/java/*",
    "/opt/java/*",
    "/opt/*jdk*",
    "/opt/*jre*",
    "~/.sdkman/candidates/java/*",
    "~/.jdk/*",
    "~/.jre/*",
)


@dataclass(frozen=True, slots=True)
class Java:
    """A Java on this machine. ``home`` is its ``JAVA_HOME``."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """The path of the ``java`` command."""
        return self.home / "bin" / "java"


def find_java() -> Java | None:
    """Return the first supported Java in ``JAVA_HOME``, ``PATH``, the usual folders and the cache, or None."""
    return next(filter(None, map(_inspect, dict.fromkeys(_candidates()))), None)


def ensure_java() -> Java:
    """Return a supported Java, downloaded into the cache if this machine has none.

    Raise NeedsOperator ``java_missing`` if there is none.
    """
    if (java := find_java()) is not None:
        return java
    folder = cache_folder() / "java"
    with only_process(folder) as scratch:
        # Another process may have downloaded one while this one waited.
        java = find_java() or _fetch(folder, scratch)
    if java is None:
        raise NeedsOperator(
            "java_missing",
            f"no Java {' or '.join(map(str, VERSIONS))} in JAVA_HOME, PATH or the usual folders, and no download",
            hint="apt-get install openjdk-17-jre-headless (or similar), and JAVA_HOME if the folder is unusual",
        )
    return java


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    for folder in os.get_exec_path():
        if (java := Path(folder) / "java").exists():
            yield java.resolve().parent.parent
    for pattern in (*USUAL_FOLDERS, f"{cache_folder()}/java/*"):
        path = Path(pattern).expanduser()
        yield from sorted(path.parent.glob(path.name))


def _inspect(home: Path) -> Java | None:
    """Return the Java in a folder, or None if it is not supported.

    The Java is run, because folder names and release files are not reliable.
    """
    executable = home / "bin" / "java"
    if not os.access(executable, os.X_OK):
        return None
    try:
        done = subprocess.run(
            [executable, "-version"], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(done.stderr + done.stdout)
    if done.returncode or match is None or int(match[1]) not in VERSIONS:
        return None
    return Java(home, int(match[1]))


def _fetch(folder: Path, scratch: Path) -> Java | None:
    """Download a Java into ``folder``. Return None if that fails for any reason."""
    try:
        import jdk
    except ImportError:
        return None
    _log.info("downloading Java %s into %s", _DOWNLOADED, folder)
    try:
        home = Path(jdk.install(_DOWNLOADED, jre=True, path=str(scratch)))
        return _inspect(home.rename(folder / home.name)) if _inspect(home) else None
    except (jdk.JdkError, OSError) as error:
        _log.warning("Java could not be downloaded: %s", error)
        return None
