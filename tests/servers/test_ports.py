"""Ports that test processes reserve."""

from __future__ import annotations

import socket

from tests.servers.ports import PORTS, ReservedPort, free_port


def test_a_port_is_reserved_once() -> None:
    """Two servers that start at the same time get two ports, before either listens."""
    first = ReservedPort.of(PORTS)
    assert ReservedPort.of(PORTS).number != first.number
    assert len({free_port(), free_port(), first.number}) == 3


def test_a_port_in_use_is_not_reserved() -> None:
    """A process that reserves nothing may have it."""
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        assert ReservedPort.of(range(taken, taken + 100)).number != taken
