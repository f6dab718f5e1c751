"""The process that forks Spark's Python workers ends when it is idle."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys

import pytest
from tests.rigs.waiting import LIMIT_S


@pytest.mark.usefixtures("own_jvm")
def test_it_ends_without_workers_and_not_with_one() -> None:
    """A worker keeps it, however long that lives. Without one it ends by itself, before Spark closes its input."""
    program = "from levada.copy.spark_daemon import main\nmain(idle_s=3)"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        [port] = struct.unpack("!i", process.stdout.read(4))
        with socket.create_connection(("127.0.0.1", port)) as connection:
            [worker] = struct.unpack("!i", connection.recv(4))
            os.kill(worker, 0)
            # Its timer has expired twice when this wait ends. A busy machine needs a second to connect.
            try:
                process.wait(7)
            except subprocess.TimeoutExpired:
                pass
            else:
                raise AssertionError("it ended while it had a worker")
        process.wait(LIMIT_S)
