"""PgBouncer as it is installed: a pooler in front of a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from tests.rigs.database import Database
from tests.rigs.waiting import until
from tests.servers.debian import install
from tests.servers.ports import free_port, is_open

from levada.local.jars import cache_folder, only_process

_PROGRAM: Final = "/usr/sbin/pgbouncer"

_SETTINGS = """
[databases]
{database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
auth_type = any
pool_mode = {mode}
unix_socket_dir =
{more}
"""


@contextmanager
def pgbouncer(db: Database, mode: str = "transaction", more: str = "") -> Iterator[int]:
    """Run PgBouncer with its defaults and these settings, and yield its port.

    Root installs it where it is missing. Anyone else skips the test then.
    """
    if os.geteuid() == 0 and shutil.which("apt-get"):
        with only_process(cache_folder() / "pgbouncer"):
            install({"pgbouncer": _PROGRAM})
    if not Path(_PROGRAM).exists():
        pytest.skip("PgBouncer is missing: apt-get install pgbouncer")
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="levada-pgbouncer-") as folder:
        os.chmod(folder, 0o755)
        settings = Path(folder, "pgbouncer.ini")
        # All logins of one role are one pool.
        database = f"{db.name} = host=127.0.0.1 port={db.server.port} user=postgres"
        settings.write_text(_SETTINGS.format(database=database, port=port, mode=mode, more=more))
        user = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen([_PROGRAM, "-q", *user, settings])
        try:
            until(lambda: is_open(port), alive=lambda: process.poll() is None)
            yield port
        finally:
            process.terminate()
            process.wait()
