"""Ports of this machine."""

from __future__ import annotations

import fcntl
import socket
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO


def free_port() -> int:
    """Return a port on which no process listens just now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def is_free(port: int) -> bool:
    """Return True if no process listens on the port just now."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0


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
            if is_free(port):
                return cls(port, lock)
            lock.close()
        raise RuntimeError(f"no port of {ports} is free")
