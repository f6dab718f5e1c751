"""The embedded PostgreSQL of the demo and the tests."""

from __future__ import annotations

import fcntl
import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

CREATE = (
    "import sys; from levada.local.postgres import create_system_user; print(create_system_user(sys.argv[1]).pw_uid)"
)


@pytest.mark.usefixtures("own_process")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root creates users")
def test_one_system_user_by_several_processes() -> None:
    """Processes that start their first servers simultaneously, on a new machine, all get the same system user."""
    name = f"levada-{secrets.token_hex(4)}"
    try:
        creating = [
            subprocess.Popen([sys.executable, "-c", CREATE, name], stdout=subprocess.PIPE, text=True) for _ in range(8)
        ]
        created = {process.communicate()[0] for process in creating}
        assert len(created) == 1
        assert [process.returncode for process in creating] == [0] * 8
    finally:
        with Path("/etc/passwd").open() as users:
            fcntl.flock(users, fcntl.LOCK_EX)
            subprocess.run(["userdel", name], check=True)
