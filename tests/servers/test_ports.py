"""Ports that test processes reserve."""

from __future__ import annotations

from tests.servers.ports import ReservedPort, free_port


def test_a_port_is_reserved_once() -> None:
    """Two servers that start at the same time get two ports, before either listens."""
    ports = [free_port(), free_port()]
    first, second = ReservedPort.of(ports), ReservedPort.of(ports)
    assert [first.number, second.number] == ports
