"""Ports of this machine."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from tests.rigs.waiting import until


def free_port() -> int:
    """Return a port on which no process listens just now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def is_open(port: int, address: str = "127.0.0.1") -> bool:
    """Return True if a process listens on the port just now."""
    with socket.socket() as s:
        return s.connect_ex((address, port)) == 0


def wait_for_port(process: subprocess.Popen[bytes], port: int, log: Path, address: str = "127.0.0.1") -> None:
    """Wait until the process listens on its port. Fail with its log, also if it ends before."""
    until(
        lambda: is_open(port, address),
        alive=lambda: process.poll() is None,
        report=lambda: f"port {port}: {log.read_text()[-4000:]}",
    )


@dataclass(frozen=True, slots=True)
class ReservedPort:
    """A port that no other test process of this machine reserves while this object lives.

    For servers that listen a good while after their start: several test processes start one at the same time.
    """

    number: int
    lock: TextIO

    @classmethod
    def of(cls, ports: Iterable[int]) -> ReservedPort:
        """Reserve the first of the ports that is free. Raise RuntimeError if none is."""
        for port in ports:
            lock = (Path(tempfile.gettempdir()) / f"levada-test-port-{port}.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                continue
            if not is_open(port):
                return cls(port, lock)
            lock.close()
        raise RuntimeError(f"no port of {ports} is free")
