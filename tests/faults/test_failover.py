"""The tutorial of a failover, on two PostgreSQL servers of its own: its commands create, stop and promote them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docs.pages import run_page
from tests.servers.ports import free_port

from levada.local.postgres import EmbeddedPostgres

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "failover.md"
PROGRAMS = ("initdb", "pg_ctl", "pg_basebackup")
"""The programs that PostgreSQL refuses to run as root, or whose files its server owns."""


@pytest.fixture
def folder(postgres: EmbeddedPostgres) -> Iterator[Path]:
    """A folder that the servers' user can write too. The servers in it are stopped afterwards.

    Not in pytest's own folder, which is closed to others. Root gets programs that run as the user of the test servers.
    """
    with tempfile.TemporaryDirectory(prefix="levada-failover-") as name:
        folder = Path(name)
        programs = folder / "bin"
        programs.mkdir()
        for program in PROGRAMS if os.geteuid() == 0 else ():
            as_user = "setpriv --reuid=pgserver --regid=pgserver --clear-groups"
            (programs / program).write_text(f'#!/bin/sh\nexec {as_user} "{postgres.bin / program}" "$@"\n')
            (programs / program).chmod(0o755)
        folder.chmod(0o1777)
        try:
            yield folder
        finally:
            for server in ("primary", "standby"):
                if (folder / server / "postmaster.pid").exists():
                    command = ["pg_ctl", "--pgdata", server, "--mode=immediate", "stop"]
                    subprocess.run(command, cwd=folder, env=environment(folder, postgres), check=False)


def environment(folder: Path, postgres: EmbeddedPostgres) -> dict[str, str]:
    """Return an environment with the programs of PostgreSQL and of Levada."""
    path = f"{folder / 'bin'}:{Path(sys.executable).parent}:{postgres.bin}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


def test_the_pipeline_follows_a_failover(postgres: EmbeddedPostgres, folder: Path) -> None:
    """After the promotion of a standby the table is equal to the new primary, without a second copy."""
    ports = {"PRIMARY": str(free_port()), "STANDBY": str(free_port())}
    run_page(PAGE, folder, {**environment(folder, postgres), **ports}, timeout_s=550)
