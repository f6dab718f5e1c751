"""Ports of this machine."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Return a port that nobody listens on just now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def is_free(port: int) -> bool:
    """Return True if nobody listens on the port just now."""
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) != 0
