"""A server that ``pg_upgrade`` makes of another one, with its data, its port and, from version 17 on, its slots."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from levada.local.postgres import EmbeddedPostgres

_FORM = ("--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", "-U", "postgres")
_LOGICAL = "-c wal_level=logical -c max_replication_slots=20 -c max_wal_senders=20"


def upgraded(old: EmbeddedPostgres, version: int = 18) -> EmbeddedPostgres:
    """Return the server of a new version with the data of ``old``, which was stopped. It is not started yet."""
    if not (old.bin / "pg_controldata").exists():
        pytest.skip("the packages of this version have no pg_controldata")
    new = EmbeddedPostgres(old.data.parent / f"upgraded-{version}", version=version, port=old.port)
    scratch = old.data.parent / "upgrade"
    for folder in (new.data, scratch):
        folder.mkdir(mode=0o700)
        shutil.chown(folder, old.data.owner(), old.data.group())
    new._open_to_system_user()
    checksums = () if version < 18 else ("--data-checksums" if _has_checksums(old) else "--no-data-checksums",)
    _run(new, scratch, "initdb", *_FORM, *checksums, "-D", new.data)
    shutil.copy(old.data / "pg_hba.conf", new.data / "pg_hba.conf")
    shutil.chown(new.data / "pg_hba.conf", old.data.owner(), old.data.group())
    folders = ("-d", old.data, "-D", new.data, "-b", old.bin, "-B", new.bin)
    ports = ("-p", old.port, "-P", old.port, "-s", scratch, "-U", "postgres")
    _run(new, scratch, "pg_upgrade", *folders, *ports, "-o", _LOGICAL, "-O", _LOGICAL, "--no-sync")
    return new


def _has_checksums(server: EmbeddedPostgres) -> bool:
    control = subprocess.run([server.bin / "pg_controldata", server.data], capture_output=True, text=True, check=True)
    [line] = [line for line in control.stdout.splitlines() if line.startswith("Data page checksum version")]
    return not line.endswith(" 0")


def _run(server: EmbeddedPostgres, folder: Path, program: str, *args: object) -> None:
    """Run a program as the user of the servers, in a folder that it can write."""
    done = subprocess.run(
        [str(server.bin / program), *map(str, args)],
        user=server.data.owner() if os.geteuid() == 0 else None,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{program} ended with {done.returncode}\n{done.stdout}{done.stderr}"
