"""Jars that Spark needs in addition to its own, with checksums. The Ivy that pyspark ships downloads them once.

A bundle has the jars in one file, for machines that can download nothing.

Ivy's default settings determine the repositories. A settings file in ``LEVADA_IVY_SETTINGS`` replaces them, for a
mirror or a login.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import logging
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from levada.errors import NeedsOperator
from levada.local.java import require_java

_log = logging.getLogger(__name__)

_TRUSTED: Final = (Path("/etc/ssl/certs/java/cacerts"), Path("/etc/pki/java/cacerts"))
"""The certificates that Debian and Red Hat keep for every Java. The Java of a Python package knows only public ones."""
_TRUST_OPTION: Final = "javax.net.ssl.trustStore"
_ACCESS_ERROR: Final = re.compile(r"(?:Server access error at url \S+ \()(?:[a-z]\w*\.)*(\S.*)\)")
"""Ivy's line about a repository that does not answer, with Java's error."""


@dataclass(frozen=True, slots=True)
class Jar:
    """A jar by its Maven coordinates, and its content by the number of bytes and the SHA-256 in hexadecimal."""

    organisation: str
    module: str
    version: str
    bytes: int
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


def built_in_jars() -> tuple[Jar, ...]:
    """Return the jars of the destinations in this package. The destinations need not be importable."""
    destinations = Path(__file__).parents[1] / "destinations"
    return tuple(jar for file in sorted(destinations.glob("*/jars.toml")) for jar in read_jars(file))


Downloaded = Callable[[Jar, int], None]
"""A function that receives a jar and the number of its bytes that were downloaded so far."""


def jars_folder() -> Path:
    """Return the jars' folder in the cache. It may not exist yet."""
    return cache_folder() / "jars"


def missing_jars(jars: Iterable[Jar]) -> tuple[Jar, ...]:
    """Return the jars that are not in the cache, or have a wrong checksum there."""
    return tuple(jar for jar in jars if not _is(jars_folder() / jar.file_name, jar))


def ensure_jars(jars: Iterable[Jar], downloaded: Downloaded | None = None) -> tuple[Path, ...]:
    """Return the jars' paths in the cache. Download jars that are missing or have a wrong checksum.

    Raise NeedsOperator ``jar_unavailable`` or ``jar_checksum`` if a jar cannot be obtained.
    """
    wanted, folder = tuple(jars), jars_folder()
    if missing_jars(wanted):
        with only_process(folder) as scratch:
            # Another process may have downloaded some while this one waited.
            for jar in missing_jars(wanted):
                _fetch(jar, folder / jar.file_name, scratch, downloaded)
    return tuple(folder / jar.file_name for jar in wanted)


def write_bundle(jars: Iterable[Jar], file: Path) -> None:
    """Write the jars of the cache into one file.

    Raise NeedsOperator ``bundle_unwritable``, or an error of `ensure_jars` if a jar cannot be obtained.
    """
    paths = ensure_jars(jars)
    part = file.with_name(f"{file.name}.part")
    try:
        with tarfile.open(part, "w") as bundle:
            for path in paths:
                bundle.add(path, path.name)
        part.replace(file)
    except OSError as error:
        raise NeedsOperator(
            "bundle_unwritable",
            f"{file} cannot be written: {error.strerror}",
            hint="name a file in a folder that exists and can be written",
        ) from error


def read_bundle(jars: Iterable[Jar], file: Path) -> None:
    """Copy the jars that are missing in the cache from a bundle.

    Raise NeedsOperator ``bundle_unusable`` if the file is none, or lacks one of the jars, missing or not.
    """
    jars, folder = tuple(jars), jars_folder()
    try:
        with tarfile.open(file) as bundle:
            names = frozenset(bundle.getnames())
    except (OSError, tarfile.TarError) as error:
        raise _unusable(file, "cannot be read as a bundle") from error
    if lacks := [jar for jar in jars if jar.file_name not in names]:
        raise _unusable(file, f"has no {lacks[0]}")
    with only_process(folder) as scratch:
        for jar in missing_jars(jars):
            try:
                with tarfile.open(file) as bundle:
                    bundle.extract(jar.file_name, scratch, filter="data")
            except (OSError, KeyError, tarfile.TarError) as error:
                raise _unusable(file, f"has no {jar}") from error
            if not _is(scratch / jar.file_name, jar):
                raise _unusable(file, f"has a damaged {jar}")
            (scratch / jar.file_name).replace(folder / jar.file_name)


def pyspark_folder() -> Path:
    """Return pyspark's folder without importing it. Raise NeedsOperator ``pyspark_missing``."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise NeedsOperator("pyspark_missing", "pyspark is not installed", hint="pip install 'levada[spark]'")
    return Path(spec.submodule_search_locations[0])


def _is(path: Path, jar: Jar) -> bool:
    try:
        found = path.stat()
        return _digest(path, found.st_ino, found.st_size, found.st_ctime_ns) == jar.sha256
    except (FileNotFoundError, NotADirectoryError):
        return False


@lru_cache(maxsize=64)
def _digest(path: Path, *_: int) -> str:
    """Return the SHA-256 of a file. It is read again if one of the numbers, which any write changes, is another."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unusable(file: Path, why: str) -> NeedsOperator:
    return NeedsOperator(
        "bundle_unusable",
        f"{file} {why}",
        hint="write a bundle with this version of Levada on a machine with a network:"
        " levada setup --offline-bundle FILE",
    )


def _fetch(jar: Jar, target: Path, scratch: Path, downloaded: Downloaded | None) -> None:
    _log.info("downloading %s (%d MB) into %s", jar, jar.bytes // 1_000_000, target.parent)
    output = _run_ivy(jar, scratch, downloaded)
    fetched = scratch / jar.file_name
    if not fetched.exists():
        _log.debug("%s", output)
        reason = _ACCESS_ERROR.search(output)
        raise NeedsOperator(
            "jar_unavailable",
            f"{jar} could not be downloaded" + (f": {reason[1]}" if reason else ""),
            hint="without a network: run levada setup --offline-bundle FILE on another machine, then here"
            f" levada setup --from-bundle FILE, or put the jar at {target}. LEVADA_IVY_SETTINGS sets a mirror,"
            " JAVA_TOOL_OPTIONS a proxy or certificates",
        )
    if not _is(fetched, jar):
        raise NeedsOperator(
            "jar_checksum",
            f"{jar} was downloaded, but its SHA-256 is not {jar.sha256}",
            hint="the repository or a proxy serves another file: check the Ivy settings",
        )
    fetched.replace(target)


def _run_ivy(jar: Jar, scratch: Path, downloaded: Downloaded | None) -> str:
    """Let Ivy download the jar into ``scratch``. Its cache is there too, so no partial download is ever reused."""
    ivy = next((pyspark_folder() / "jars").glob("ivy-*.jar"))
    settings = os.environ.get("LEVADA_IVY_SETTINGS")
    command: list[str | Path] = [
        require_java().executable,
        # It ends before the second compiler has made it faster.
        "-XX:TieredStopAtLevel=1",
        *trust_options(os.environ.get("JAVA_TOOL_OPTIONS", "")),
        "-jar",
        ivy,
        *(("-settings", settings) if settings else ()),
    ]
    command += ["-cache", scratch / "ivy", "-dependency", jar.organisation, jar.module, jar.version, "-notransitive"]
    command += ["-retrieve", f"{scratch}/[artifact]-[revision].[ext]", "-confs", "default"]
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            while _runs(process):
                if downloaded is not None:
                    downloaded(jar, min(_written(scratch / "ivy", jar), jar.bytes))
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        return output.read()


def trust_options(java_tool_options: str) -> list[str]:
    """Return Java's option for this machine's certificates, or none if there are none or JAVA_TOOL_OPTIONS has others.

    An option of the command line would override that of the variable.
    """
    if _TRUST_OPTION in java_tool_options:
        return []
    return [f"-D{_TRUST_OPTION}={file}" for file in _TRUSTED if file.exists()][:1]


def _runs(process: subprocess.Popen[bytes]) -> bool:
    """Wait a fifth of a second at most. Return True if the process still runs."""
    try:
        process.wait(0.2)
    except subprocess.TimeoutExpired:
        return True
    return False


def _written(folder: Path, jar: Jar) -> int:
    """Return the size of the jar's download so far, which Ivy writes into its cache."""
    sizes = [0]
    for path in folder.rglob(f"{jar.module}-{jar.version}.jar*"):
        with suppress(FileNotFoundError):
            sizes.append(path.stat().st_size)
    return max(sizes)


def cache_folder() -> Path:
    """Return ``$LEVADA_CACHE``, or else ``levada`` below ``$XDG_CACHE_HOME`` or ``~/.cache``. It may not exist yet.

    Raise NeedsOperator ``cache_unwritable`` if no variable names one, and the user has no home.
    """
    if own := os.environ.get("LEVADA_CACHE"):
        return Path(own).absolute()
    if cache := os.environ.get("XDG_CACHE_HOME"):
        return Path(cache).absolute() / "levada"
    try:
        return Path.home() / ".cache" / "levada"
    except RuntimeError as error:  # of a user ID that the machine does not know, as a container's often is
        raise _unwritable("~/.cache/levada", f"HOME is not set, and user {os.geteuid()} has no home") from error


def _unwritable(folder: Path | str, why: str) -> NeedsOperator:
    return NeedsOperator(
        "cache_unwritable",
        f"the cache {folder}, for Spark's jars, cannot be used: {why}",
        hint="let the environment variable LEVADA_CACHE name a folder that this user can write",
    )


@contextmanager
def only_process(folder: Path) -> Iterator[Path]:
    """Create the folder, and hold its lock during the block. Other processes of this machine wait.

    Yield an empty folder inside it for downloads. A complete download is renamed into its place. The download folder is
    removed afterwards, and so is one that a killed process left.

    Raise NeedsOperator ``cache_unwritable`` if the folder cannot be created or written.
    """
    scratch = folder / ".fetching"
    with ExitStack() as held:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Closing the file releases the lock, and so does the end of the process.
            fcntl.flock(held.enter_context((folder / ".lock").open("w")), fcntl.LOCK_EX)
            shutil.rmtree(scratch, ignore_errors=True)
            scratch.mkdir()
        except OSError as error:
            raise _unwritable(folder, error.strerror or type(error).__name__) from error
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
