"""The operator's probes and metrics, at the addresses that a pod has."""

from __future__ import annotations

import asyncio
import urllib.request

import pytest
from tests.rigs.waiting import LIMIT_S
from tests.servers.ports import free_port

from levada_operator.app.config import EACH_ADDRESS
from levada_operator.app.probes import Probes


def _status(address: str) -> int:
    with urllib.request.urlopen(address, timeout=LIMIT_S) as answer:
        return int(answer.status)


@pytest.mark.parametrize(
    ("bound", "at"), [(EACH_ADDRESS, ["127.0.0.1", "[::1]"]), ("127.0.0.1", ["127.0.0.1"]), ("::1", ["[::1]"])]
)
def test_addresses_of_both_kinds_are_served(bound: str, at: list[str]) -> None:
    """The kubelet asks a pod at its address of IPv6 where that is the only one."""

    async def asked() -> list[int]:
        port = free_port()
        probes = Probes(bound, port, lambda: "")
        await probes.start()
        try:
            return [await asyncio.to_thread(_status, f"http://{host}:{port}/livez") for host in at]
        finally:
            await probes.stop()

    assert asyncio.run(asked()) == [200] * len(at)
