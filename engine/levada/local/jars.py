"""Jars that Spark needs in addition to its own, with checksums. The Ivy that pyspark ships downloads them once.

Ivy's default settings determine the repositories. A settings file in ``LEVADA_IVY_SETTINGS`` replaces them, for a
mirror or a login.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import subprocess
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from levada.errors import NeedsOperator
from levada.local.cache import cache_folder, only_process
from levada.local.java import ensure_java

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar by its Maven coordinates and the SHA-256 of its content, in hexadecimal."""

    organisation: str
    module: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        """The file's name in the cache."""
        return f"{self.module}-{self.version}.jar"

    def __str__(self) -> str:
        return f"{self.organisation}:{self.module}:{self.version}"


def read_jars(file: Path) -> tuple[Jar, ...]:
    """Return the jars of a TOML file, which has a table ``[[jar]]`` with the fields of `Jar` for each."""
    return tuple(Jar(**fields) for fields in tomllib.loads(file.read_text())["jar"])


def ensure_jars(jars: Iterable[Jar]) -> tuple[Path, ...]:
    """Return the jars' paths in the cache. Download jars that are missing or have a wrong checksum.

    Raise NeedsOperator ``jar_unavailable`` or ``jar_checksum`` if a jar cannot be obtained.
    """
    folder = cache_folder() / "jars"
    wanted = {jar: folder / jar.file_name for jar in jars}
    if not all(_is(path, jar) for jar, path in wanted.items()):
        with only_process(folder) as scratch:
            for jar, path in wanted.items():
                # Another process may have downloaded it while this one waited.
                if not _is(path, jar):
                    _fetch(jar, path, scratch)
    return tuple(wanted.values())


def pyspark_folder() -> Path:
    """Return pyspark's folder without importing it. Raise NeedsOperator ``pyspark_missing``."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise NeedsOperator("pyspark_missing", "pyspark is not installed", hint="pip install 'levada[spark]'")
    return Path(spec.submodule_search_locations[0])


def _is(path: Path, jar: Jar) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == jar.sha256
    except FileNotFoundError:
        return False


def _fetch(jar: Jar, target: Path, scratch: Path) -> None:
    _log.info("downloading %s", jar)
    output = _run_ivy(jar, scratch)
    fetched = scratch / jar.file_name
    if not fetched.exists():
        _log.debug("%s", output)
        raise NeedsOperator(
            "jar_unavailable",
            f"{jar} could not be downloaded",
            hint=f"put the file at {target}, or set LEVADA_IVY_SETTINGS to an Ivy settings file with a mirror",
        )
    if not _is(fetched, jar):
        raise NeedsOperator(
            "jar_checksum",
            f"{jar} was downloaded, but its SHA-256 is not {jar.sha256}",
            hint="the repository or a proxy serves another file: check the Ivy settings",
        )
    fetched.replace(target)


def _run_ivy(jar: Jar, scratch: Path) -> str:
    """Let Ivy download the jar into ``scratch``. Its cache is there too, so no partial download is ever reused."""
    ivy = next((pyspark_folder() / "jars").glob("ivy-*.jar"))
    settings = os.environ.get("LEVADA_IVY_SETTINGS")
    command: list[str | Path] = [ensure_java().executable, "-jar", ivy, *(("-settings", settings) if settings else ())]
    command += ["-cache", scratch / "ivy", "-dependency", jar.organisation, jar.module, jar.version, "-notransitive"]
    command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]", "-confs", "default"]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    return done.stdout + done.stderr
