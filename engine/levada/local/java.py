"""A Java that Spark runs on: found on this machine, else fetched with the package ``install-jdk``."""

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
"""What Spark 4.1 supports (its documentation, "Downloading"); others may start and fail late."""

_FETCHED: Final = "17"
_VERSION: Final = re.compile(r'version "(\d+)')
_USUAL: Final = (
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
    """A Java on this machine; ``home`` is what ``JAVA_HOME`` would be."""

    home: Path
    version: int

    @property
    def executable(self) -> Path:
        """The ``java`` command."""
        return self.home / "bin" / "java"


def find_java() -> Java | None:
    """Return the first suitable Java of ``JAVA_HOME``, ``PATH``, the usual folders and the cache; None without one."""
    return next(filter(None, map(_inspect, dict.fromkeys(_candidates()))), None)


def ensure_java() -> Java:
    """Return a suitable Java, fetched into the cache if this machine has none.

    Raise NeedsOperator (``java_missing``) if none can be had.
    """
    if (java := find_java()) is not None:
        return java
    folder = cache_folder() / "java"
    with only_process(folder) as scratch:
        # Another process may have fetched one while this one waited.
        java = find_java() or _fetch(folder, scratch)
    if java is None:
        raise NeedsOperator(
            "java_missing",
            f"no Java {' or '.join(map(str, VERSIONS))} in JAVA_HOME, PATH or the usual folders, and none was fetched",
            hint="apt-get install openjdk-17-jre-headless (or its like), and JAVA_HOME if it is in no usual folder",
        )
    return java


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home)
    for folder in os.get_exec_path():
        if (java := Path(folder) / "java").exists():
            yield java.resolve().parent.parent
    for pattern in (*_USUAL, f"{cache_folder()}/java/*"):
        path = Path(pattern).expanduser()
        yield from sorted(path.parent.glob(path.name))


def _inspect(home: Path) -> Java | None:
    """Ask the Java itself: folder names and release files tell too little."""
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
    """Fetch a Java into ``folder``; None if that fails, for whatever reason."""
    try:
        import jdk
    except ImportError:
        return None
    _log.info("fetching Java %s into %s", _FETCHED, folder)
    try:
        home = Path(jdk.install(_FETCHED, jre=True, path=str(scratch)))
        return _inspect(home.rename(folder / home.name)) if _inspect(home) else None
    except (jdk.JdkError, OSError) as error:
        _log.warning("Java could not be fetched: %s", error)
        return None
