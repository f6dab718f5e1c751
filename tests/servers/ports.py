"""Ports of this machine."""

from __future__ import annotations

import fcntl
import socket
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

from tests.rigs.waiting import until

PORTS: Final = range(20_000, 32_000)
"""Below the ports that a kernel gives to connections and to servers that ask for any."""


def free_port() -> int:
    """Return a port that no other test process gets before this one ends, for a server that listens a while later."""
    _reserved.append(ReservedPort.of(PORTS))
    return _reserved[-1].number


def _can_be_bound(port: int) -> bool:
    """Return True if a server could listen on the port just now."""
    with socket.socket() as s, suppress(OSError):
        s.bind(("127.0.0.1", port))
        return True
    return False


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

    For servers that listen a while after their start: several test processes start one at the same time.
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
            if _can_be_bound(port):
                return cls(port, lock)
            lock.close()
        raise RuntimeError(f"no port of {ports} is free")


_reserved: Final[list[ReservedPort]] = []
