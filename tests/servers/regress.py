"""PostgreSQL's own regression suite for Debian's PostgreSQL 15, from Debian's source package."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Final

from tests.lint.tree import ROOT
from tests.servers.debian import apt
from tests.servers.postgres import DEBIAN

_SERVER: Final = "postgresql-15"
_HEADERS: Final = "postgresql-server-dev-15"
_PROGRAMS: Final = DEBIAN / "15"
PG_REGRESS: Final = _PROGRAMS / "lib" / "pgxs" / "src" / "test" / "regress" / "pg_regress"


def suite() -> Path:
    """Return the folder of the suite for the installed server, with its library, which is fetched and built once."""
    version = _installed_version()
    folder = ROOT / "build" / "postgresql" / f"regress-{version}"
    if not folder.exists():
        scratch = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        _fetch(version, scratch)
        [archive] = scratch.glob("*.orig.tar.*")
        with tarfile.open(archive) as packed:
            members = [m for m in packed if "/src/test/regress/" in m.name]
            packed.extractall(scratch, members, filter="data")
        [found] = scratch.glob("*/src/test/regress")
        _build(found, scratch / "headers")
        found.replace(folder)
        shutil.rmtree(scratch)
    return folder


def _installed_version() -> str:
    command = ["dpkg-query", "--show", "--showformat=${Version}", _SERVER]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _fetch(version: str, folder: Path) -> None:
    """Fetch the source of the server and the headers, without a change of the machine's lists of packages."""
    sources, lists = folder / "sources", folder / "lists"
    (lists / "partial").mkdir(parents=True)
    sources.mkdir()
    for file in Path("/etc/apt/sources.list.d").glob("*.sources"):
        text = file.read_text()
        (sources / file.name).write_text(text.replace("Types: deb\n", "Types: deb deb-src\n"))
    (sources / "more.list").write_text(_with_sources(Path("/etc/apt/sources.list")))
    options = [f"Dir::Etc::SourceParts={sources}", "Dir::Etc::SourceList=/dev/null", f"Dir::State::Lists={lists}"]
    options += ["APT::Sandbox::User=root"]
    arguments = [argument for option in options for argument in ("-o", option)]
    apt(*arguments, "update")
    apt(*arguments, "source", "--download-only", f"{_SERVER}={version}", cwd=folder)
    apt(*arguments, "download", f"{_HEADERS}={version}", cwd=folder)
    [package] = folder.glob("*.deb")
    subprocess.run(["dpkg", "--extract", package, folder / "headers"], check=True)


def _with_sources(file: Path) -> str:
    lines = file.read_text().splitlines() if file.exists() else []
    return "".join(f"{line}\n{line.replace('deb ', 'deb-src ', 1)}\n" for line in lines if line.startswith("deb "))


def _build(folder: Path, headers: Path) -> None:
    includes = [headers / "usr/include/postgresql/15/server", headers / "usr/include/postgresql/internal", folder]
    options = ["-O2", "-fPIC", "-shared", "-fwrapv", "-fno-strict-aliasing", "-D_GNU_SOURCE"]
    options += [f"-I{include}" for include in includes]
    compiler = os.environ.get("CC", "cc")
    subprocess.run([compiler, *options, "-o", folder / "regress.so", folder / "regress.c"], check=True)
    for name in ("autoinc.so", "refint.so"):
        (folder / name).symlink_to(_PROGRAMS / "lib" / name)
